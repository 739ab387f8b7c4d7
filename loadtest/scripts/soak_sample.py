#!/usr/bin/env python3
"""One sample of a soak run as a line of JSON, or the verdict over all of them.

  soak_sample.py --pid PID --admin HOST:PORT --round FILE.json     prints a sample
  soak_sample.py --judge SAMPLES.jsonl                             exit code 1 where something grew
"""

import argparse
import json
import pathlib
import re
import sys
import time
import urllib.request

MEMORY_GROWTH_BYTES = 64 << 20
COUNT_GROWTH = 8  # threads, descriptors
SETTLE_SECONDS = 5  # what is left of a round's connections may still be on its way out


def process_facts(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return {"memory_bytes": int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) * 1024,
            "threads": int(re.search(r"Threads:\s+(\d+)", status)[1]),
            "descriptors": len(list(pathlib.Path(f"/proc/{pid}/fd").iterdir()))}


def metrics(admin):
    with urllib.request.urlopen(f"http://{admin}/metrics", timeout=10) as reply:
        lines = reply.read().decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line and line[0] != "#")}


def left_over(admin):
    values = metrics(admin)
    return {"sequences": sum(value for name, value in values.items() if name.startswith("attnd_sequences{")),
            "requests": values["attnd_queue_depth"] + values["attnd_running_requests"],
            "streams": values["attnd_open_streams"]}


def sample(arguments):
    deadline = time.monotonic() + SETTLE_SECONDS
    left = left_over(arguments.admin)
    while any(left.values()) and time.monotonic() < deadline:
        time.sleep(0.1)
        left = left_over(arguments.admin)
    result = json.loads(pathlib.Path(arguments.round).read_text(encoding="utf-8"))["run"]["result"]
    return {"time": time.time(), **process_facts(arguments.pid), **left, "p99_us": result["latency"]["p99_us"],
            "requests_per_second": result["ok_requests_per_second"]}


def faults(samples):
    """What grew, in words. The first quarter is warm-up."""
    found = [f"{each[name]:.0f} {name} left after round {number}" for number, each in enumerate(samples, 1)
             for name in ("sequences", "requests", "streams") if each[name]]
    counted = samples[len(samples) // 4:]
    if len(counted) < 2:
        return [*found, f"{len(samples)} rounds are too few to see growth"]
    for name, limit in (("memory_bytes", MEMORY_GROWTH_BYTES), ("threads", COUNT_GROWTH), ("descriptors", COUNT_GROWTH)):
        growth = counted[-1][name] - counted[0][name]
        if growth > limit:
            found.append(f"{name} grew by {growth}, more than {limit}")
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--pid", type=int)
    parser.add_argument("--admin")
    parser.add_argument("--round")
    parser.add_argument("--judge")
    arguments = parser.parse_args()
    if not arguments.judge:
        print(json.dumps(sample(arguments)))
        return 0
    samples = [json.loads(line) for line in pathlib.Path(arguments.judge).read_text(encoding="utf-8").splitlines()]
    found = faults(samples)
    for fault in found:
        print(f"soak: {fault}", file=sys.stderr)
    if not found:
        print(f"soak: {len(samples)} rounds, memory {samples[-1]['memory_bytes'] / 1e6:.0f} MB, {samples[-1]['threads']} threads, nothing grew")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
