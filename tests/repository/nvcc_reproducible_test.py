"""Two compilations of one .cu file, as this build compiles it, in two folders give the same bytes: a released program can be made again."""

import argparse
import json
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCE = "kernels/any/merge_states.cu"  # small, with kernels in an unnamed namespace
BUILD = None  # folder of the build, from the command line


def commands():
    """source -> the compiler's command line, of every .cu file of the tree."""
    found = {}
    for entry in json.loads((BUILD / "compile_commands.json").read_text(encoding="utf-8")):
        path = pathlib.Path(entry["file"])
        if path.suffix == ".cu":
            found[path.relative_to(ROOT).as_posix()] = shlex.split(entry["command"])
    return found


def start(command, folder):
    """Compiles a copy of the tree's kernels in `folder`."""
    shutil.copytree(ROOT / "kernels", folder / "kernels")
    command = [word.replace(str(ROOT), str(folder)) for word in command]
    command[command.index("-o") + 1] = "object.o"
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


class NvccReproducibleTest(unittest.TestCase):
    def test_two_compilations_in_two_folders_give_the_same_object(self):
        command = commands()[SOURCE]
        if shutil.which(command[0]) is None:
            self.skipTest(f"no {command[0]}")
        if "-lineinfo" in command:
            self.skipTest("ATTND_CUDA_LINEINFO is on: line tables hold the path of the build folder")
        with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
            folders = [pathlib.Path(one), pathlib.Path(other) / "deeper"]
            compilers = [start(command, folder) for folder in folders]
            for compiler in compilers:
                said, _ = compiler.communicate()
                self.assertEqual(0, compiler.returncode, said)
            objects = [(folder / "object.o").read_bytes() for folder in folders]
            self.assertGreater(len(objects[0]), 10_000)
            self.assertTrue(objects[0] == objects[1], "the objects differ: see attnd_arch_kernels in kernels/cuda/cuda_kernels.cmake")

    def test_every_file_has_a_seed_of_its_own(self):
        """Names of what unnamed namespaces hold come from it: two files with one seed would define the same names."""
        seeds = {}
        for source, command in commands().items():
            mine = [word for word in command if word.startswith("-frandom-seed=")]
            self.assertEqual([f"-frandom-seed={source}"], mine, source)
            seeds[source] = mine[0]
        self.assertGreater(len(seeds), 30)
        self.assertEqual(len(seeds), len(set(seeds.values())))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, required=True, help="a build with CUDA")
    arguments, rest = parser.parse_known_args()
    BUILD = arguments.build
    unittest.main(argv=[sys.argv[0], *rest])
