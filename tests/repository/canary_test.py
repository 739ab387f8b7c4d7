#!/usr/bin/env python3
"""The linters still fire: every kind of violation in violations/canary.cc must be reported as an error."""

import pathlib
import shutil
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import thread_safety  # noqa: E402  pylint: disable=wrong-import-position
CANARY = ROOT / "tests/repository/violations/canary.cc"


def run(*command):
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


class CanaryTest(unittest.TestCase):

    @unittest.skipUnless(shutil.which("clang-tidy-14"), "clang-tidy-14 is not installed (scripts/setup.sh --lint)")
    def test_clang_tidy_fires_on_every_kind(self):
        done = run("clang-tidy-14", "--quiet", str(CANARY), "--", "-std=c++20")
        self.assertNotEqual(0, done.returncode)
        for message in ("invalid case style for class 'bad_class_name'", "invalid case style for parameter 'BadParameter'",
                        "invalid case style for private member 'counter'", "invalid case style for enum constant 'red'",
                        "performance-for-range-copy", "modernize-use-nullptr",
                        "readability-container-size-empty", "bugprone-sizeof-expression"):
            self.assertIn(message, done.stdout)
        self.assertIn("error:", done.stdout)

    @unittest.skipUnless(shutil.which("clang-tidy-14"), "clang-tidy-14 is not installed (scripts/setup.sh --lint)")
    def test_clang_tidy_accepts_the_tree_style(self):
        done = run("clang-tidy-14", "--quiet", str(ROOT / "tests/repository/violations/clean.cc"), "--", "-std=c++20")
        self.assertEqual((0, ""), (done.returncode, done.stdout))

    @unittest.skipUnless(shutil.which("clang++-14"), "clang++-14 is not installed (scripts/setup.sh --lint)")
    def test_thread_safety_analysis_fires_on_the_unlocked_read_alone(self):
        ok, output = thread_safety.check("clang++-14", CANARY.with_name("unlocked.cc"), ["-I.", "-std=c++20"])
        self.assertFalse(ok)
        self.assertEqual(1, output.count("error:"), output)
        self.assertIn("unlocked.cc:12", output)

    @unittest.skipUnless(shutil.which("clang-format-14"), "clang-format-14 is not installed (scripts/setup.sh --lint)")
    def test_clang_format_fires(self):
        done = run("clang-format-14", "--dry-run", "--Werror", str(CANARY))
        self.assertNotEqual(0, done.returncode)
        self.assertIn("clang-format-violations", done.stderr)
        self.assertEqual(0, run("clang-format-14", "--dry-run", "--Werror", str(CANARY.with_name("clean.cc"))).returncode)


if __name__ == "__main__":
    unittest.main()
