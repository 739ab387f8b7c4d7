#!/usr/bin/env python3
"""Holds the reports of attnload replay against the counters of the server that they ran on: every session ended once, and what attnload counted
is what the server counted.

  replay_accounts.py --before METRICS --after METRICS REPORT...

METRICS are pages of /metrics from before the first and after the last replay, nothing else having run on the server between them. A difference is
printed, and the exit code is 1. After an interrupt calls may have been cancelled on their way: the server's numbers then lie between what ended OK
here and all that was sent."""

import argparse
import collections
import json
import pathlib
import re
import sys

SAMPLE = re.compile(r"^(?P<name>\w+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)$")
LABEL = re.compile(r'(\w+)="([^"]*)"')
METHODS = ("CreateSequence", "ForkSequence", "Decode", "DeleteSequences")


def samples(text):
    """(name, labels as sorted pairs) -> value."""
    found = {}
    for line in text.splitlines():
        match = SAMPLE.match(line)
        if match and not line.startswith("#"):
            found[match["name"], tuple(sorted(LABEL.findall(match["labels"] or "")))] = float(match["value"])
    return found


def sums(reports):
    """Over all reports: sessions, calls by (method, code), tokens put through every layer."""
    total = collections.Counter()
    calls = collections.Counter()
    for report in reports:
        run = report["run"]
        result, replay = run["result"], run["replay"]
        total["recorded"] += replay["sessions"]
        for key in ("sent", "ok", "failed", "skipped"):
            total[key] += result[key]
        total["tokens"] += (replay["prompt_tokens"] - replay["forked_tokens"] + replay["step"]["count"]) * run["shape"]["layers"]
        total["reports interrupted"] += result["interrupted"]
        for method, codes in replay["calls"].items():
            for code, count in codes.items():
                calls[method, code] += count
    return total, calls


def faults(reports, before, after):
    """What does not agree, a line each."""
    total, calls = sums(reports)

    def grown(name, **labels):
        key = name, tuple(sorted(labels.items()))
        return after.get(key, 0) - before.get(key, 0)

    found = []

    def expect(what, got, least, most=None):
        most = least if most is None else most
        if not least <= got <= most:
            found.append(f"{what}: {got:.0f} on the server, {least:.0f} here" if least == most else
                         f"{what}: {got:.0f} on the server, {least:.0f} to {most:.0f} here")

    for report in reports:
        result, replay = report["run"]["result"], report["run"]["replay"]
        trace = replay["trace"]
        if result["sent"] != result["ok"] + result["failed"]:
            found.append(f"{trace}: {result['sent']} sessions sent, {result['ok']} ended OK and {result['failed']} failed")
        if result["failed"] != sum(result["failures"].values()):
            found.append(f"{trace}: {result['failed']} failed, {result['failures']} by code")
        if not result["interrupted"] and result["sent"] + result["skipped"] != replay["sessions"]:
            found.append(f"{trace}: {replay['sessions']} sessions, {result['sent']} sent and {result['skipped']} skipped")
        if replay["first_token"]["count"] < result["ok"]:
            found.append(f"{trace}: {result['ok']} sessions ended OK, {replay['first_token']['count']} have a first token")
    cut_short = total["reports interrupted"] > 0
    for method in METHODS:
        here = {code: count for (of, code), count in calls.items() if of == method}
        everything = sum(here.values())
        there = {dict(labels)["code"] for name, labels in after if name == "attnd_requests_total" and dict(labels)["method"] == method}
        ok = grown("attnd_requests_total", method=method, code="OK")
        all_codes = sum(grown("attnd_requests_total", method=method, code=code) for code in there)
        if cut_short:
            expect(f"{method}, OK", ok, here.get("OK", 0), everything)
            expect(f"{method}, any code", all_codes, here.get("OK", 0), everything)
        else:
            for code in there | set(here):
                expect(f"{method}, {code}", grown("attnd_requests_total", method=method, code=code), here.get(code, 0))
    made = sum(grown("attnd_requests_total", method=method, code="OK") for method in ("CreateSequence", "ForkSequence"))
    expect("sequences deleted, of those made", grown("attnd_sequences_ended_total", reason="deleted"), made)
    for reason in ("expired", "evicted"):
        expect(f"sequences {reason}", grown("attnd_sequences_ended_total", reason=reason), 0)
    for state in ("active", "idle"):
        expect(f"sequences {state} at the end", after.get(("attnd_sequences", (("state", state),)), -1), 0)
    if not cut_short and total["failed"] == 0:
        expect("tokens", grown("attnd_batch_tokens_sum"), total["tokens"])
    else:
        expect("tokens", grown("attnd_batch_tokens_sum"), total["tokens"], float("inf"))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=pathlib.Path, required=True)
    parser.add_argument("--after", type=pathlib.Path, required=True)
    parser.add_argument("reports", nargs="+", type=pathlib.Path)
    arguments = parser.parse_args()
    reports = [json.loads(path.read_text(encoding="utf-8")) for path in arguments.reports]
    pages = [samples(path.read_text(encoding="utf-8")) for path in (arguments.before, arguments.after)]
    total, calls = sums(reports)
    print("sessions: " + ", ".join(f"{total[key]:,} {key}" for key in ("recorded", "sent", "ok", "failed", "skipped")))
    print("calls: " + ", ".join(f"{count:,} {method} {code}" for (method, code), count in sorted(calls.items())))
    found = faults(reports, *pages)
    for fault in found:
        print(f"DIFFERS: {fault}")
    if not found:
        print("the server's counters agree")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
