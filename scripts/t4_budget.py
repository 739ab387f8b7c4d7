#!/usr/bin/env python3
"""Writes the tables of docs/kernels/sm75.md from docs/kernels/data/sm75_{resources,sass}.json and the recorded runs.

A table stands between <!-- t4: NAME --> and <!-- end t4 -->; NAME is resources, mix, bounds or prediction. With --check
nothing is written: exit code 1 where the page is not what its data gives.
"""

import argparse
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/kernels/sm75.md"
DATA = ROOT / "docs/kernels/data"
RUN = ROOT / "docs/benchmarks/data/h200_kernels.jsonl"
MARK = re.compile(r"<!-- t4: (?P<name>\w+) -->\n.*?<!-- end t4 -->", re.DOTALL)

# Tiles of kernels/sm75/prefill.cuh: query rows of a warp, keys of a tile, CTAs on an SM by registers and shared memory.
TILES = {64: (32, 64, 2), 128: (32, 32, 1), 256: (16, 16, 2)}
WARPS = 4
SUB_CORES = 4
# Clocks of a sub-core a warp instruction; of the SM's shared memory for 512 bytes.
T4 = {"tensor": 8, "xu": 8, "fp32": 2, "shared": 8, "multiprocessors": 40}
# Hopper runs m16n8k8 at twice Turing's rate a sub-core and reads shared memory twice as fast.
H200 = {"tensor": 4, "xu": 8, "fp32": 1, "shared": 4}
CLOCKS_GHZ = (1.59, 0.70)
# Exposed a tile where a warp waits: two barriers (30 each), four dependent shuffles (25), the first LDSM (33), the row
# maximum's chain (2 x 4 x 6).
EXPOSED = 2 * 30 + 4 * 25 + 33 + 48


def load(name):
    return json.loads((DATA / name).read_text(encoding="utf-8"))


def head_dim(kernel):
    return int(re.search(r"_d(\d+)", kernel)[1])


def copies(dim):
    """LDG.128, and STS.128, of a thread for the K and V of one tile."""
    _, keys, _ = TILES[dim]
    return 2 * keys * dim * 2 // (16 * 32 * WARPS)


def flops(dim):
    rows, keys, _ = TILES[dim]
    return 4 * rows * keys * dim


def unit_clocks(kernel, hot, card):
    dim = head_dim(kernel)
    return {"tensor": hot["tensor"] * card["tensor"], "issue": hot["total"] + 2 * copies(dim),
            "FP32": hot["fp32"] * card["fp32"], "XU": (hot["mufu"] + hot["convert"]) * card["xu"],
            "shared": (hot["ldsm"] + copies(dim)) * card["shared"] * WARPS}


def unoverlapped(kernel, hot, card):
    """Clocks of a tile where the binding unit's work and everything else follow each other."""
    units = unit_clocks(kernel, hot, card)
    return max(units["tensor"], units["shared"]) + units["issue"] - hot["tensor"] + EXPOSED


def markdown(rows):
    head, *body = rows
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in [head, ["---"] * len(head), *body]) + "\n"


def resources_table():
    rows = [["kernel", "registers", "spilled bytes stored / loaded", "local accesses in the main loop (hot) / outside", "CTAs an SM"]]
    mix = load("sm75_sass.json")["kernels"]
    for kernel, values in sorted(load("sm75_resources.json")["kernels"].items(), key=lambda item: (head_dim(item[0]) if "_d" in item[0] else 0, item[0])):
        loop = mix.get(kernel)
        local = f"{loop['all']['local']} ({loop['hot']['local']}) / {loop['local_outside_loop']}" if loop else "-"
        ctas = TILES[head_dim(kernel)][2] if kernel.startswith("prefill") else "-"
        rows.append([f"`{kernel}`", values["registers"], f"{values['spill_store_bytes']} / {values['spill_load_bytes']}", local, ctas])
    return markdown(rows)


def plain(mix):
    return sorted(((kernel, loops) for kernel, loops in mix["kernels"].items() if kernel.startswith("prefill") and not kernel.endswith("_all")),
                  key=lambda item: head_dim(item[0]))


def mix_table():
    names = ["tensor", "ldsm", "mufu", "convert", "permute", "fp32", "shuffle", "barrier", "local", "other", "total"]
    rows = [["kernel", "rows x keys of a warp's tile", *names, "LDG.128, STS.128 a thread"]]
    mix = load("sm75_sass.json")
    for kernel, loops in plain(mix):
        dim = head_dim(kernel)
        rows.append([f"`{kernel}`", f"{TILES[dim][0]} x {TILES[dim][1]}", *(loops["hot"][name] for name in names), f"{copies(dim)} each"])
    return markdown(rows) + f"\nCompiled by {mix['compiler']}, disassembled by nvdisasm {mix['disassembler']}.\n"


def bounds_table():
    rows = [["kernel", "tensor", "issue", "FP32", "XU", "shared", "binds"]]
    for kernel, loops in plain(load("sm75_sass.json")):
        units = unit_clocks(kernel, loops["hot"], T4)
        rows.append([f"`{kernel}`", *units.values(), max(units, key=units.get)])
    return markdown(rows)


def measured_share(dim):
    """Of the m16n8k8 ceiling, on the recorded card: the non-causal case of 8192 tokens."""
    with open(RUN, encoding="utf-8") as lines:
        for line in map(json.loads, lines):
            shape = line.get("shape", {})
            if line.get("kernel") == f"sm75/prefill_fp16_d{dim}" and shape["kv_length"] == 8192 and not shape["causal"]:
                return line["fraction_of_floor"]
    sys.exit(f"t4_budget: {RUN} has no sm75 row of d {dim}")


def prediction_table():
    rows = [["kernel", "H200, model", "H200, measured", "T4, model: share of the tensor peak",
             *(f"TFLOP/s at {ghz:.2f} GHz" for ghz in CLOCKS_GHZ)]]
    for kernel, loops in plain(load("sm75_sass.json")):
        dim, hot = head_dim(kernel), loops["hot"]
        on_h200 = hot["tensor"] * H200["tensor"] / unoverlapped(kernel, hot, H200)
        clocks = unoverlapped(kernel, hot, T4)
        rates = [f"{flops(dim) / clocks * SUB_CORES * T4['multiprocessors'] * ghz * 1e-3:.0f}" for ghz in CLOCKS_GHZ]
        rows.append([f"`{kernel}`", f"{100 * on_h200:.0f} %", f"{100 * measured_share(dim):.0f} %",
                     f"{100 * hot['tensor'] * T4['tensor'] / clocks:.0f} %", *rates])
    return markdown(rows)


TABLES = {"resources": resources_table, "mix": mix_table, "bounds": bounds_table, "prediction": prediction_table}


def regenerate(text):
    return MARK.sub(lambda mark: f"<!-- t4: {mark['name']} -->\n{TABLES[mark['name']]()}<!-- end t4 -->", text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    before = PAGE.read_text(encoding="utf-8")
    after = regenerate(before)
    if before == after:
        return 0
    if check:
        print(f"{PAGE.relative_to(ROOT)}: not what its data gives; run scripts/t4_budget.py")
        return 1
    PAGE.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
