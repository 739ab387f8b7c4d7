#!/usr/bin/env python3
"""Instruction mix of the main loops of CUDA kernels, from their machine code.

    scripts/sass_mix.py --compiler 'nvcc 13.0.88' build/cuda/kernels/CMakeFiles/kernels_sm75.dir/sm75/prefill*.cu.o > mix.json

The main loop is the innermost loop with the most HMMA. Basic blocks of it that an expected run does not enter (masks, a
raised row maximum, pages smaller than a tile's rows) are found by their shape: a block that a forward branch can jump
over without passing an HMMA, LDSM, BAR or MUFU counts as rare. `hot` counts what is left, `all` the whole loop.
Needs nvdisasm and cuobjdump (the CUDA toolkit's own package cuda-nvdisasm, or the copies inside the triton wheel).
"""

import argparse
import collections
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

LABEL = re.compile(r"^(\.L[\w$]*):")
INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@(!?U?P[\dT]+)\s+)?([A-Z][A-Z0-9_.]*)\s*(.*?);")
TARGET = re.compile(r"`?\(?(\.L[\w$]*)")

CLASSES = {
    "tensor": ("HMMA",), "ldsm": ("LDSM",), "shared": ("LDS", "STS"), "mufu": ("MUFU",),
    "convert": ("F2F", "F2FP"), "permute": ("PRMT",), "fp32": ("FFMA", "FMUL", "FADD", "FMNMX", "FSEL", "FSETP"),
    "global": ("LDG", "STG", "LD", "ST"), "local": ("LDL", "STL"), "barrier": ("BAR",), "shuffle": ("SHFL", "VOTE"),
}


def tool(name, folder):
    """The path of a binary tool, or an exit that says where to get it."""
    found = shutil.which(name, path=folder) if folder else shutil.which(name)
    if found is None:
        try:
            import triton
            found = shutil.which(name, path=pathlib.Path(triton.__file__).parent / "backends/nvidia/bin")
        except ImportError:
            pass
    if found is None:
        sys.exit(f"sass_mix: {name} not found: install cuda-{name.lower()} or the wheel triton, or name its folder with --tools")
    return found


def functions(text):
    """name -> list of (label or None, predicate, opcode, operands) from nvdisasm's output."""
    result, current = {}, None
    for line in text.splitlines():
        section = re.match(r"\s*\.section\s+\.text\.([\w$]+)", line)
        if section:
            current = result.setdefault(section.group(1), [])
            continue
        if current is None:
            continue
        label = LABEL.match(line.strip())
        if label:
            current.append(("label", label.group(1)))
            continue
        found = INSTRUCTION.match(line)
        if found:
            current.append(("op", found.group(1), found.group(2), found.group(3)))
    return result


def main_loop(items):
    """The instructions of the innermost loop that has the most HMMA, its first index and the branch targets; None: there is none."""
    places, code = {}, []
    for item in items:
        if item[0] == "label":
            places[item[1]] = len(code)
        else:
            code.append(item[1:])
    loops = []
    for end, (_, opcode, operands) in enumerate(code):
        target = TARGET.search(operands)
        if opcode.startswith("BRA") and target and places.get(target.group(1), end + 1) <= end:
            begin = places[target.group(1)]
            tensor = sum(op.startswith("HMMA") for _, op, _ in code[begin:end + 1])
            if tensor:
                loops.append((tensor, begin - end, begin, end))
    if not loops:
        return None
    _, _, begin, end = max(loops)
    return code[begin:end + 1], begin, places


def hot_part(loop, begin, places):
    """Indices of the loop that no forward branch steps over without passing an instruction of the tile's own work."""
    work = re.compile(r"^(HMMA|LDSM|BAR|MUFU)")
    rare = set()
    for at, (_, opcode, operands) in enumerate(loop):
        target = TARGET.search(operands)
        if not opcode.startswith("BRA") or not target:
            continue
        to = places.get(target.group(1), -1) - begin
        if at < to <= len(loop) and not any(work.match(loop[i][1]) for i in range(at + 1, to)):
            rare.update(range(at + 1, to))
    return [i for i in range(len(loop)) if i not in rare]


def counts(instructions):
    by_opcode = collections.Counter(opcode.split(".")[0] for _, opcode, _ in instructions)
    mix = {name: sum(by_opcode[opcode] for opcode in opcodes) for name, opcodes in CLASSES.items()}
    mix["other"] = sum(by_opcode.values()) - sum(mix.values())
    mix["total"] = sum(by_opcode.values())
    return mix


def cubins(path, arch, folder, cuobjdump):
    subprocess.run([cuobjdump, "-xelf", arch, str(pathlib.Path(path).resolve())], cwd=folder, check=True, capture_output=True)
    return sorted(pathlib.Path(folder).glob("*.cubin"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="sm_75")
    parser.add_argument("--compiler", required=True, help="what compiled the objects, for the record: 'nvcc 13.0.88'")
    parser.add_argument("--tools", help="folder of nvdisasm and cuobjdump")
    parser.add_argument("objects", nargs="+")
    arguments = parser.parse_args()
    nvdisasm, cuobjdump = tool("nvdisasm", arguments.tools), tool("cuobjdump", arguments.tools)
    result = {}
    for path in arguments.objects:
        with tempfile.TemporaryDirectory() as folder:
            for cubin in cubins(path, arguments.arch, folder, cuobjdump):
                text = subprocess.run([nvdisasm, "-c", str(cubin)], check=True, capture_output=True, text=True).stdout
                for items in functions(text).values():
                    found = main_loop(items)
                    if found is None:
                        continue
                    loop, begin, places = found
                    hot = hot_part(loop, begin, places)
                    everywhere = [item[1:] for item in items if item[0] == "op"]
                    result[pathlib.Path(path).name.split(".")[0]] = {
                        "hot": counts([loop[i] for i in hot]), "all": counts(loop),
                        "local_outside_loop": counts(everywhere)["local"] - counts(loop)["local"]}
    version = subprocess.run([nvdisasm, "--version"], check=True, capture_output=True, text=True).stdout
    release = re.search(r"release [\d.]+, V([\d.]+)", version)
    json.dump({"compiler": arguments.compiler, "disassembler": release[1] if release else "unknown", "kernels": result}, sys.stdout,
              indent=1, sort_keys=True)
    print()


if __name__ == "__main__":
    main()
