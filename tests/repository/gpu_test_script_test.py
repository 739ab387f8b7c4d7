"""scripts/gpu_test.sh with made-up test programs: it counts what they tell, and one that dies without a word, and runs them all."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/gpu_test.sh"
PROGRAMS = {
    "a_silent_test": "exit 3",
    "b_slow_test": "sleep 30",
    "c_good_test": "echo '[       OK ] Suite.One (1 ms)'; echo '[  SKIPPED ] Suite.Two (0 ms)'",
    "d_bad_test": "echo '[  FAILED  ] Suite.Three (1 ms)'; exit 1",
}


class GpuTestScriptTest(unittest.TestCase):
    def run_script(self, names):
        with tempfile.TemporaryDirectory() as folder:
            for name in names:
                program = pathlib.Path(folder, name)
                program.write_text(f"#!/bin/sh\n{PROGRAMS[name]}\n", encoding="utf-8")
                program.chmod(0o755)
            return subprocess.run(["bash", SCRIPT, "--tests", folder, "--logs", f"{folder}/logs", "--limit", "1"],
                                  capture_output=True, text=True, timeout=60, check=False)

    def test_every_program_runs_and_counts(self):
        done = self.run_script(PROGRAMS)
        self.assertEqual(1, done.returncode)
        for name in PROGRAMS:
            self.assertIn(name, done.stdout)
        self.assertIn("1 passed, 3 failed, 1 skipped", done.stdout.splitlines()[-1])

    def test_all_good_is_success(self):
        done = self.run_script(["c_good_test"])
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)
        self.assertIn("1 passed, 0 failed, 1 skipped", done.stdout.splitlines()[-1])


if __name__ == "__main__":
    sys.exit(unittest.main())
