#!/usr/bin/env python3
"""Joins `attnbench --device=cuda --traffic` with Nsight Compute's counters of the same process: modelled beside counted bytes.

    hbm_model.py MODEL.jsonl COUNTERS.csv OUT.jsonl

Kernels between two ReadAllKernel belong to one line of MODEL. What a launch leaves in the L2 is written back during the
ReadAllKernel behind it, so that kernel's writes count as the launch's. Of the lines whose working set exceeds the L2 (four
times) each is of one class:

    agrees   read and written bytes together are within 5 % of the model
    bounded  prefill and exact rows, whose tiles share K and V through the L2: what a tile still finds there depends on how
             far tiles that started together have drifted apart. The counted reads lie between each byte once and what all
             tiles ask for (max_read_bytes), the written bytes between the output and 30 % more (registers that are spilled
             around the main loop), and the model is within a factor of two
    off      anything else: exit code 1
"""

import argparse
import csv
import json
import sys

FLUSH = "ReadAllKernel"
TOLERANCE = 0.05
SPILLED = 0.3
FACTOR = 2
# The read-only flush of 512 MiB goes with a few page tables and counters: what a case cannot be charged for.
BEYOND_L2 = 4


def launches(path):
    """A list a case: (kernel name, read bytes, written bytes) of its kernels, the flush behind them last."""
    with open(path, encoding="utf-8", newline="") as file:
        rows = csv.DictReader(line for line in file if line.startswith('"'))
        kernels = {}
        for row in rows:
            kernel = kernels.setdefault(int(row["ID"]), {"name": row["Kernel Name"]})
            kernel[row["Metric Name"]] = float(row["Metric Value"].replace(",", ""))
    cases, current = [], None
    for _, kernel in sorted(kernels.items()):
        entry = (kernel["name"], kernel["dram__bytes_read.sum"], kernel["dram__bytes_write.sum"])
        if FLUSH not in entry[0]:
            if current is not None:  # not of the set-up between two cases
                current.append(entry)
        elif not current:
            current = []
        else:
            cases.append([*current, entry])
            current = None
    return cases


def joined(line, kernels, l2_bytes):
    *own, flush = kernels
    line["counted_read_bytes"] = sum(read for _, read, _ in own)
    line["counted_write_bytes"] = sum(write for _, _, write in own) + flush[2]
    line["kernels"] = len(own)
    line["beyond_l2"] = line["min_read_bytes"] + line["min_write_bytes"] > BEYOND_L2 * l2_bytes
    for way in ("read", "write"):
        line[f"{way}_over_model"] = round(line[f"counted_{way}_bytes"] / line[f"model_{way}_bytes"], 4)
    model = line["model_read_bytes"] + line["model_write_bytes"]
    line["total_over_model"] = round((line["counted_read_bytes"] + line["counted_write_bytes"]) / model, 4)
    if line["beyond_l2"]:
        line["class"] = class_of(line)
    return line


def class_of(line):
    if abs(line["total_over_model"] - 1) <= TOLERANCE:
        return "agrees"
    bounded = ("max_read_bytes" in line
               and (1 - TOLERANCE) * line["min_read_bytes"] <= line["counted_read_bytes"] <= (1 + TOLERANCE) * line["max_read_bytes"]
               and 1 - TOLERANCE <= line["counted_write_bytes"] / line["min_write_bytes"] <= 1 + SPILLED
               and 1 / FACTOR <= line["total_over_model"] <= FACTOR)
    return "bounded" if bounded else "off"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL.jsonl", help="what attnbench --traffic wrote")
    parser.add_argument("counters", metavar="COUNTERS.csv", help="ncu's raw page of the same process")
    parser.add_argument("out", metavar="OUT.jsonl")
    arguments = parser.parse_args()
    model, counters, out = arguments.model, arguments.counters, arguments.out
    with open(model, encoding="utf-8") as file:
        head, *lines = [json.loads(text) for text in file]
    cases = launches(counters)
    if len(cases) != len(lines):
        raise SystemExit(f"hbm_model: {len(lines)} launches in {model}, {len(cases)} in {counters}")
    head["counters"] = "ncu dram__bytes_read.sum, dram__bytes_write.sum"
    classes = {"agrees": 0, "bounded": 0, "off": 0}
    with open(out, "w", encoding="utf-8") as file:
        file.write(json.dumps(head) + "\n")
        for line, kernels in zip(lines, cases):
            joined(line, kernels, head["l2_bytes"])
            file.write(json.dumps(line) + "\n")
            if line["beyond_l2"]:
                classes[line["class"]] += 1
            print(f"{line['kernel']:28} {json.dumps(line['shape']):150} read {line['read_over_model']:7.3f} write {line['write_over_model']:7.3f} "
                  f"total {line['total_over_model']:7.3f}  {line.get('class', '(L2)')}")
    print(f"{len(lines)} launches; beyond the L2 {classes['agrees']} within {TOLERANCE:.0%}, {classes['bounded']} bounded, {classes['off']} off")
    return 1 if classes["off"] else 0


if __name__ == "__main__":
    sys.exit(main())
