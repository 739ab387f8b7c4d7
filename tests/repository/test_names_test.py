#!/usr/bin/env python3
"""Test names: one suite a file, no name twice in the tree, claims in PascalCase without underscores."""

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
    out += [f"{path}: more than one suite: {sorted(names)}" for path, names in files.items() if len(names) > 1]
    out += [f"{suite} stands in {sorted(paths)}" for suite, paths in suites.items() if len(paths) > 1]
    return out


class TestNamesTest(unittest.TestCase):

    def test_names_in_the_tree(self):
        self.assertEqual([], faults(cases(ROOT)))

    def test_rules_fire(self):
        self.assertEqual([], faults([("a_test.cc", "ATest", "HoldsOne"), ("b_test.cc", "BTest", "HoldsOne")]))
        self.assertEqual(1, len(faults([("a_test.cc", "ATest", "Holds_one")])))
        self.assertEqual(1, len(faults([("a_test.cc", "ATest", "A"), ("a_test.cc", "BTest", "B")])))
        self.assertEqual(1, len(faults([("a_test.cc", "ATest", "A"), ("b_test.cc", "ATest", "B")])))


if __name__ == "__main__":
    unittest.main()
