#!/usr/bin/env python3
"""The installed folder runs from anywhere: moved, from another working directory, with an empty environment, with nothing of
this system but glibc."""

import argparse
import contextlib
import pathlib
import re
import shutil
import signal
import struct
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
        # Where it was made is gone when it runs.
        cls.bundle = cls.install("attnd", "naive").rename(cls.scratch / "moved here")
        cls.slim = cls.install("attnd").rename(cls.scratch / "without naive")

    @classmethod
    def install(cls, *components):
        for component in components:
            done = subprocess.run(["cmake", "--install", str(BUILD), "--prefix", str(cls.scratch / "made"), "--component", component],
                                  capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise RuntimeError(done.stdout + done.stderr)
        return cls.scratch / "made"

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

    @contextlib.contextmanager
    def serving(self, bundle, env=None):
        """A server of the folder; yields (process, address, lines of its log)."""
        server = subprocess.Popen(
            [bundle / "bin/attnd", "--listen=127.0.0.1:0", "--admin_listen=127.0.0.1:0", "--device=cpu", "--cache_bytes=64MiB",
             "--workspace_bytes=64MiB", "--measure_ceilings=false", "--threads=1", "--lame_duck=0"],
            cwd="/", env=env or {}, stderr=subprocess.PIPE, text=True)
        log = []
        try:
            address = None
            for line in server.stderr:
                log.append(line)
                if match := re.search(r"serving listen=(\S+)", line):
                    address = match.group(1)
                    break
            self.assertIsNotNone(address, log)
            yield server, address, log
        finally:
            server.kill()
            server.stderr.close()
            server.wait()

    def attend(self, bundle, address, algorithm):
        tensor = self.scratch / "ones.npy"
        header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 4), }"
        header = header.ljust(117) + b"\n"
        tensor.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + struct.pack("<4f", *[1.0] * 4))
        return run(str(bundle / "bin/attnctl"), "--server", address, "attend", *(f"--{name}={tensor}" for name in "qkv"), f"--algorithm={algorithm}")

    def test_the_server_serves(self):
        with self.serving(self.bundle) as (server, address, _):
            done = run(str(self.bundle / "bin/attnctl"), "info", "--server", address)
            self.assertEqual(0, done.returncode, done.stderr)
            self.assertIn("attnd", done.stdout)
            for algorithm in ("fused", "naive"):
                done = self.attend(self.bundle, address, algorithm)
                self.assertEqual(0, done.returncode, done.stderr)
            server.send_signal(signal.SIGTERM)
            self.assertEqual(0, server.wait(timeout=30))

    def test_naive_comes_from_the_bundle(self):
        with self.serving(self.bundle) as (server, _, _):
            mapped = {pathlib.PurePath(line.split(None, 5)[5].strip()) for line in pathlib.Path(f"/proc/{server.pid}/maps").read_text(encoding="utf-8").splitlines()
                      if ".so" in line}
            self.assertIn("libattnd_naive.so", {path.name for path in mapped})
            self.assertEqual([], [path for path in mapped if not path.is_relative_to(self.bundle) and not GLIBC.match(path.name)])

    def test_without_naives_libraries_it_serves_all_else_and_says_so(self):
        carried = {library.name for library in (self.slim / "lib").iterdir()}
        self.assertEqual([], [name for name in carried if name.startswith(("libattnd_naive", "libopenblas", "libdnnl", "libgomp", "libgfortran"))])
        with self.serving(self.slim) as (_, address, log):
            self.assertEqual(1, sum("ALGORITHM_NAIVE is not served" in line for line in log), log)
            done = self.attend(self.slim, address, "fused")
            self.assertEqual(0, done.returncode, done.stderr)
            done = self.attend(self.slim, address, "naive")
            self.assertEqual(1, done.returncode, done.stdout)
            self.assertIn("UNIMPLEMENTED", done.stderr)
            self.assertIn("libattnd_naive.so", done.stderr)
            kernels = run(str(self.slim / "bin/attnctl"), "--server", address, "--json", "info").stdout
            self.assertIn("cpu/exact", kernels)
            self.assertNotIn("cpu/naive", kernels)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True, type=pathlib.Path)
    arguments, rest = parser.parse_known_args()
    BUILD = arguments.build
    unittest.main(argv=sys.argv[:1] + rest)
