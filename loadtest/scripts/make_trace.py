#!/usr/bin/env python3
"""A made-up trace with the statistics of a public one, for everyday use of attnload replay where the original is not at hand.

  make_trace.py --like azure_conversation|azure_code|mooncake_conversation --sessions N [--seed S] [--rate R] --out FILE.jsonl

Lengths are log-normal, gaps are gamma-distributed with the original's mean and coefficient of variation (1: Poisson; above: bursts). Where the original
names the blocks of its prompts (Mooncake), every prompt begins with the same block, and so many of them continue an earlier one as there. What is lost:
the rhythm of a day. `--rate` keeps the burstiness and changes the mean rate.
"""

import argparse
import bisect
import json
import math
import pathlib
import random
import sys

# Fitted to the whole traces: mean and standard deviation of the logarithm of tokens, largest, sessions a second, coefficient of variation of gaps.
LIKE = {
    "azure_conversation": {"prompt": (6.633, 0.985, 14050), "output": (5.019, 0.859, 1000), "rate": 5.5301, "variation": 1.094},
    "azure_code": {"prompt": (6.999, 1.360, 7437), "output": (2.788, 0.847, 1899), "rate": 2.5664, "variation": 13.151},
    "mooncake_conversation": {"prompt": (8.737, 1.199, 126195), "output": (5.336, 1.358, 2000), "rate": 3.4012, "variation": 3.034,
                              "continues": (0.084, 0.457)},
}
BLOCK_TOKENS = 512
# `continues`: how many prompts of fewer and of more than so many blocks begin like an earlier one.
FEW_BLOCKS = 4
# Of the prompts that continue an earlier one: quantiles of the share that they have in common, and the logarithm of the seconds in between.
SHARES = ((0.0, 0.1), (0.1, 0.29), (0.25, 0.52), (0.5, 0.80), (0.75, 0.93), (0.9, 0.97), (1.0, 1.0))
AGE = (4.81, 0.95)
MOST_LOOKED_AT = 1000


def tokens(generator, fit):
    mean, deviation, most = fit
    return min(most, max(1, round(math.exp(generator.gauss(mean, deviation)))))


def between(points, at):
    """The value at `at` on the line through `points`."""
    index = min(max(1, bisect.bisect_left([x for x, _ in points], at)), len(points) - 1)
    (x0, y0), (x1, y1) = points[index - 1], points[index]
    return y0 + (y1 - y0) * (at - x0) / (x1 - x0)


class Blocks:
    """Names for the blocks of prompts that now and then continue an earlier one."""

    def __init__(self, generator, continues):
        self.generator, self.continues = generator, continues
        self.next, self.earlier = 1, []  # (seconds, names), in order of time

    def names(self, seconds, length):
        count = -(-length // BLOCK_TOKENS)
        shared = [0]
        if self.generator.random() < self.continues[count >= FEW_BLOCKS]:
            wanted = max(2, round(between(SHARES, self.generator.random()) * count))
            shared = self.parent(seconds - self.generator.lognormvariate(*AGE), wanted)[:wanted]
        names = (shared + list(range(self.next, self.next + count)))[:count]
        self.next += count
        self.earlier.append((seconds, names))
        return names

    def parent(self, until, wanted):
        """The names of a prompt before `until` with as many blocks as wanted, or of the longest one looked at."""
        found = [0]
        last = bisect.bisect_left(self.earlier, until, key=lambda each: each[0])
        for _, names in reversed(self.earlier[max(0, last - MOST_LOOKED_AT):last]):
            if len(names) > len(found):
                found = names
            if len(found) >= wanted:
                break
        return found


def sessions(like, count, seed, rate=None):
    """Records as in Mooncake's traces; hash_ids where the original has them."""
    fit, generator = LIKE[like], random.Random(seed)
    shape = 1 / fit["variation"] ** 2
    scale = 1 / ((rate or fit["rate"]) * shape)
    seconds, blocks = 0.0, Blocks(random.Random(seed + 1), fit["continues"]) if "continues" in fit else None
    for _ in range(count):
        record = {"timestamp": round(seconds * 1000), "input_length": tokens(generator, fit["prompt"]), "output_length": tokens(generator, fit["output"])}
        if blocks:
            record["hash_ids"] = blocks.names(seconds, record["input_length"])
        yield record
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
