#!/usr/bin/env python3
"""The installed folder runs from anywhere: moved, from another working directory, with an empty environment, with nothing of
this system but glibc."""

import argparse
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

BUILD = None  # set by main
PROGRAMS = ("attnd", "attnctl", "attnload", "attnbench")
GLIBC = re.compile(r"^(ld-linux-x86-64|lib(c|m|dl|rt|pthread|resolv|util|anl|mvec|nsl))\.so")


def run(*command, env=None):
    return subprocess.run(command, cwd="/", env=env or {}, capture_output=True, text=True, check=False, timeout=60)


class BundleTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.scratch = pathlib.Path(tempfile.mkdtemp())
        done = subprocess.run(["cmake", "--install", str(BUILD), "--prefix", str(cls.scratch / "made"), "--component", "attnd"],
                              capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(done.stdout + done.stderr)
        # Where it was made is gone when it runs.
        cls.bundle = (cls.scratch / "made").rename(cls.scratch / "moved here")

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.scratch)

    def test_every_program_runs(self):
        for program in PROGRAMS:
            done = run(str(self.bundle / "bin" / program), "--help")
            self.assertEqual(0, done.returncode, program + done.stderr)

    def test_only_glibc_comes_from_the_system(self):
        for program in PROGRAMS:
            done = run(str(self.bundle / "bin" / program), "--help", env={"LD_DEBUG": "libs"})
            loaded = [pathlib.PurePath(path) for path in re.findall(r"calling init: (\S.*)", done.stderr)]
            self.assertGreater(len(loaded), 3, done.stderr[-2000:])
            strangers = [path for path in loaded if not path.is_relative_to(self.bundle) and not GLIBC.match(path.name)]
            self.assertEqual([], strangers, program)

    def test_glibc_and_the_driver_are_not_carried(self):
        for library in (self.bundle / "lib").iterdir():
            self.assertIsNone(GLIBC.match(library.name))
            self.assertFalse(library.name.startswith(("libcuda.", "libnvidia")), library.name)
            self.assertFalse(library.is_symlink())

    def test_the_server_serves(self):
        server = subprocess.Popen(
            [self.bundle / "bin/attnd", "--listen=127.0.0.1:0", "--admin_listen=127.0.0.1:0", "--device=cpu", "--cache_bytes=64MiB",
             "--workspace_bytes=64MiB", "--measure_ceilings=false", "--threads=1", "--lame_duck=0"],
            cwd="/", env={}, stderr=subprocess.PIPE, text=True)
        try:
            address = None
            for line in server.stderr:
                if match := re.search(r"serving listen=(\S+)", line):
                    address = match.group(1)
                    break
            self.assertIsNotNone(address)
            done = run(str(self.bundle / "bin/attnctl"), "info", "--server", address)
            self.assertEqual(0, done.returncode, done.stderr)
            self.assertIn("attnd", done.stdout)
            server.send_signal(signal.SIGTERM)
            self.assertEqual(0, server.wait(timeout=30))
        finally:
            server.kill()
            server.stderr.close()
            server.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True, type=pathlib.Path)
    arguments, rest = parser.parse_known_args()
    BUILD = arguments.build
    unittest.main(argv=sys.argv[:1] + rest)
