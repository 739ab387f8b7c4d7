"""The CUDA objects of a build: which images they hold, and what the T4 rows take of an SM, against the committed budget."""

import argparse
import json
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import fatbin_images  # noqa: E402

BUDGET = ROOT / "docs" / "kernels" / "data" / "sm75_resources.json"
IMAGES = {"kernels_sm75": [("elf", 75), ("ptx", 75)], "kernels_sm80": [("elf", 80), ("ptx", 80)],
          "kernels_any": [("elf", 75), ("elf", 80), ("elf", 90), ("ptx", 90)]}
REPORT = re.compile(
    r"Compiling entry function '(?P<function>\w+)' for '(?P<arch>\w+)'.*?"
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads.*?"
    r"Used (?P<registers>\d+) registers", re.DOTALL)
KERNELS = None  # folder of the build, from the command line


def resources(folder):
    """kernel file -> what ptxas reported for it."""
    found = {}
    for report in sorted((folder / "CMakeFiles/kernels_sm75.dir/sm75").glob("*.cu.o.ptxas")):
        for match in REPORT.finditer(report.read_text(encoding="utf-8")):
            values = {name: int(match[name]) for name in ("registers", "stack", "stores", "loads")}
            found[report.name.split(".")[0]] = {"registers": values["registers"], "stack_bytes": values["stack"],
                                                "spill_store_bytes": values["stores"], "spill_load_bytes": values["loads"]}
    return found


def objects(target):
    """The objects of a target whose source is still in the tree."""
    folder = KERNELS / f"CMakeFiles/{target}.dir"
    return [path for path in sorted(folder.rglob("*.cu.o"))
            if (ROOT / "kernels" / path.relative_to(folder).with_suffix("")).exists()]


def weak_symbols(path):
    listing = subprocess.run(["nm", str(path)], check=True, capture_output=True, text=True).stdout
    return {line.split()[-1] for line in listing.splitlines() if re.search(r" [WVu] _ZN5attnd", line)}


class CudaBudgetTest(unittest.TestCase):
    def test_every_object_holds_exactly_the_images_of_its_folder(self):
        for target, expected in IMAGES.items():
            found = objects(target)
            self.assertTrue(found, f"no object of {target}: is this a CUDA build?")
            for path in found:
                images = sorted((kind, architecture) for kind, architecture, _ in fatbin_images.images(path.read_bytes()))
                self.assertEqual(images, sorted(expected), path.name)

    def test_no_two_objects_define_the_same_name(self):
        """The linker would keep one of them without a word, and one architecture's code would answer for another's."""
        if shutil.which("nm") is None:
            self.skipTest("nm is not installed")
        owner = {}
        for target in IMAGES:
            for path in objects(target):
                for symbol in weak_symbols(path):
                    self.assertNotIn(symbol, owner, f"{symbol}: {owner.get(symbol)} and {path.name}")
                    owner[symbol] = path.name
        self.assertTrue(any("LaunchPrefill" in symbol for symbol in owner))

    def test_the_t4_rows_keep_to_their_budget(self):
        budget = json.loads(BUDGET.read_text(encoding="utf-8"))["kernels"]
        measured = resources(KERNELS)
        self.assertEqual(sorted(measured), sorted(budget))
        for kernel, values in measured.items():
            for name, value in values.items():
                self.assertLessEqual(value, budget[kernel][name], f"{kernel}: {name}")

    def test_a_missing_image_and_a_broken_header_are_noticed(self):
        header = fatbin_images.MAGIC + (1).to_bytes(2, "little") + (16).to_bytes(2, "little")
        image = (2).to_bytes(2, "little") + bytes(2) + (64).to_bytes(4, "little") + (8).to_bytes(8, "little")
        image = (image + bytes(12) + (75).to_bytes(4, "little")).ljust(64, b"\0") + bytes(8)
        whole = b"junk" + header + len(image).to_bytes(8, "little") + image
        self.assertEqual(fatbin_images.images(whole), [("elf", 75, 8)])
        self.assertEqual(fatbin_images.images(whole[:-1]), [])
        self.assertEqual(fatbin_images.images(b"junk"), [])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--kernels", type=pathlib.Path, required=True, help="the kernels folder of a CUDA build")
    parser.add_argument("--write", action="store_true", help="write what was measured as the budget")
    arguments, rest = parser.parse_known_args()
    KERNELS = arguments.kernels
    if arguments.write:
        compiler = "nvcc 13.0.88"
        text = json.dumps({"compiler": compiler, "kernels": resources(KERNELS)}, indent=1, sort_keys=True)
        BUDGET.write_text(text + "\n", encoding="utf-8")
    else:
        unittest.main(argv=[sys.argv[0], *rest])
