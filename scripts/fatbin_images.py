#!/usr/bin/env python3
"""The images in the CUDA fat binaries of a file: one line an image, "kind architecture bytes". No CUDA tool is needed.

    scripts/fatbin_images.py build/cuda/kernels/CMakeFiles/kernels_sm75.dir/sm75/*.cu.o
    scripts/fatbin_images.py --need elf:75 --need ptx:75 bin/attnd      # exit code 1 where one is missing

A fat binary begins with the magic number 0xBA55ED50, a version (2 bytes), its header's size (2) and the size of what
follows (8). Every image in it begins with its kind (2 bytes; 1 PTX, 2 machine code), a version (2), its header's size (4),
its payload's size (8), and holds its architecture (75 for 7.5) in the 4 bytes at offset 28.
"""

import argparse
import pathlib
import struct
import sys

MAGIC = struct.pack("<I", 0xBA55ED50)
KINDS = {1: "ptx", 2: "elf"}


def images(data):
    """(kind, architecture, bytes) of every image in `data`, in order."""
    found = []
    at = data.find(MAGIC)
    while at >= 0:
        _, header, size = struct.unpack_from("<HHQ", data, at + 4)
        end = at + header + size
        image = at + header
        if header < 16 or end > len(data):
            at = data.find(MAGIC, at + 4)  # the number as an operand or constant somewhere, no fat binary
            continue
        while image + 64 <= end:
            kind, _, image_header, payload = struct.unpack_from("<HHIQ", data, image)
            if kind not in KINDS or image_header < 32:
                break
            architecture = struct.unpack_from("<I", data, image + 28)[0]
            found.append((KINDS[kind], architecture, payload))
            image += image_header + payload
        at = data.find(MAGIC, end)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--need", action="append", default=[], metavar="KIND:ARCH", help="fail where a file lacks it")
    parser.add_argument("files", nargs="+")
    arguments = parser.parse_args()
    missing = 0
    for path in arguments.files:
        found = images(pathlib.Path(path).read_bytes())
        print(f"{path}:")
        for kind, architecture, size in found:
            print(f"  {kind} {architecture} {size}")
        have = {f"{kind}:{architecture}" for kind, architecture, _ in found}
        for need in arguments.need:
            if need not in have:
                print(f"  missing: {need}")
                missing += 1
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
