#!/usr/bin/env python3
"""A made-up trace with the statistics of a public one, for everyday use of attnload replay where the original is not at hand.

  make_trace.py --like azure_conversation|azure_code|mooncake_conversation --sessions N [--seed S] [--rate R] --out FILE.jsonl

Lengths are log-normal, gaps are gamma-distributed with the original's mean and coefficient of variation (1: Poisson; above: bursts). What is lost:
the rhythm of a day, and prompts that share a prefix. `--rate` keeps the burstiness and changes the mean rate.
"""

import argparse
import json
import math
import pathlib
import random
import sys

# Fitted to the whole traces: mean and standard deviation of the logarithm of tokens, largest, sessions a second, coefficient of variation of gaps.
LIKE = {
    "azure_conversation": {"prompt": (6.633, 0.985, 14050), "output": (5.019, 0.859, 1000), "rate": 5.5301, "variation": 1.094},
    "azure_code": {"prompt": (6.999, 1.360, 7437), "output": (2.788, 0.847, 1899), "rate": 2.5664, "variation": 13.151},
    "mooncake_conversation": {"prompt": (8.737, 1.199, 126195), "output": (5.336, 1.358, 2000), "rate": 3.4012, "variation": 3.034},
}


def tokens(generator, fit):
    mean, deviation, most = fit
    return min(most, max(1, round(math.exp(generator.gauss(mean, deviation)))))


def sessions(like, count, seed, rate=None):
    """Records as in Mooncake's traces, without hash_ids."""
    fit, generator = LIKE[like], random.Random(seed)
    shape = 1 / fit["variation"] ** 2
    scale = 1 / ((rate or fit["rate"]) * shape)
    seconds = 0.0
    for _ in range(count):
        yield {"timestamp": round(seconds * 1000), "input_length": tokens(generator, fit["prompt"]), "output_length": tokens(generator, fit["output"])}
        seconds += generator.gammavariate(shape, scale)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--like", choices=LIKE, default="azure_conversation")
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    if arguments.sessions < 1 or (arguments.rate is not None and arguments.rate <= 0):
        parser.error("--sessions and --rate must be above 0")
    lines = (json.dumps(each) for each in sessions(arguments.like, arguments.sessions, arguments.seed, arguments.rate))
    arguments.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
