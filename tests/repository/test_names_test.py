#!/usr/bin/env python3
"""Test names: a suite named after its file, no suite in two files, claims in PascalCase without underscores."""

import collections
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TEST = re.compile(r"^\s*(?:TYPED_)?TEST(?:_[FP])?\(\s*(\w+)\s*,\s*(\w+)\s*\)", re.MULTILINE)
PASCAL = re.compile(r"^[A-Z][A-Za-z0-9]*$")


def cases(root):
    """(file, suite, name) of every GoogleTest case below `root`/tests."""
    found = []
    for file in sorted((root / "tests").rglob("*_test.cc")):
        path = file.relative_to(root).as_posix()
        found += [(path, suite, name) for suite, name in TEST.findall(file.read_text(encoding="utf-8"))]
    return found


def faults(found):
    out = []
    files = collections.defaultdict(set)
    suites = collections.defaultdict(set)
    for path, suite, name in found:
        files[path].add(suite)
        suites[suite].add(path)
        if not (PASCAL.match(suite) and PASCAL.match(name)):
            out.append(f"{path}: {suite}.{name} is not PascalCase")
    for path, names in files.items():
        own = "".join(word.capitalize() for word in pathlib.PurePath(path).stem.split("_"))
        if own.lower() not in {name.lower() for name in names}:
            out.append(f"{path}: no suite {own}, only {sorted(names)}")
    out += [f"{suite} stands in {sorted(paths)}" for suite, paths in suites.items() if len(paths) > 1]
    return out


class TestNamesTest(unittest.TestCase):

    def test_names_in_the_tree(self):
        self.assertEqual([], faults(cases(ROOT)))

    def test_rules_fire(self):
        self.assertEqual([], faults([("a_test.cc", "ATest", "HoldsOne"), ("b_test.cc", "BTest", "HoldsOne")]))
        self.assertEqual([], faults([("a_b_test.cc", "ABTest", "A"), ("a_b_test.cc", "ABThreadTest", "A")]))
        self.assertEqual(1, len(faults([("a_test.cc", "ATest", "Holds_one")])))
        self.assertEqual(1, len(faults([("a_test.cc", "BTest", "A")])))
        twice = faults([("a_test.cc", "ATest", "A"), ("b_test.cc", "BTest", "B"), ("b_test.cc", "ATest", "B")])
        self.assertEqual(1, len(twice), twice)


if __name__ == "__main__":
    unittest.main()
