#!/usr/bin/env python3
"""The example of the C++ client: a project of its own that adds this tree, built, and run against a server."""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SERVER_FLAGS = ["--listen=127.0.0.1:0", "--admin_listen=127.0.0.1:0", "--device=cpu", "--threads=1", "--cache_bytes=64MiB",
                "--measure_ceilings=false", "--lame_duck=0"]


class ClientExampleTest(unittest.TestCase):
    programs = None

    def test_the_example_builds_alone_and_steps_through_a_cache(self):
        with tempfile.TemporaryDirectory() as folder:
            self.run_ok("cmake", "-G", "Ninja", "-S", ROOT / "client/example", "-B", folder, "-DCMAKE_BUILD_TYPE=Release")
            self.run_ok("cmake", "--build", folder)
            self.assertEqual([], list(pathlib.Path(folder).rglob("libattnd_server_lib.a")), "only what the client needs")
            with subprocess.Popen([self.programs / "server/attnd", *SERVER_FLAGS], stderr=subprocess.PIPE, text=True) as server:
                try:
                    address = self.await_address(server)
                    done = self.run_ok(pathlib.Path(folder) / "kv_cache", address)
                    self.assertEqual("116 tokens were cached\n", done.stdout)
                finally:
                    server.terminate()
                    server.stderr.read()
                self.assertEqual(0, server.wait())

    def run_ok(self, *command):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertEqual(0, done.returncode, done.stdout[-4000:] + done.stderr[-4000:])
        return done

    def await_address(self, server):
        for line in server.stderr:
            if found := re.search(r" serving listen=(\S+)", line):
                return found.group(1)
        self.fail("the server ended before it served")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", type=pathlib.Path, required=True, help="build folder of attnd")
    ClientExampleTest.programs = parser.parse_args().programs
    unittest.main(argv=sys.argv[:1])
