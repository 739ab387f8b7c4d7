#!/usr/bin/env python3
"""Writes the tables of docs/benchmarks/*.md from the recorded runs in docs/benchmarks/data.

A page marks a table with a line
    <!-- table: FILE.jsonl op=prefill dtype=bf16 -->
and ends it with
    <!-- end table -->
What stands between them is generated. FILE is a name in docs/benchmarks/data; key=value pairs pick its lines
(causal=true and head_dim=64 look into the shape, kernel=PREFIX* matches the lines of a folder). columns=a,b,c picks the
columns. FILE.json is a report of `attnload run --json` and has one line, or of `attnload compare --json` and has one a
scenario. With --check nothing is written: exit code 1 and a list where a page is not what its data gives.
"""

import argparse
import fnmatch
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "benchmarks"
MARK = re.compile(r"<!-- table: (?P<spec>.+?) -->\n(?P<body>.*?)<!-- end table -->", re.DOTALL)

DEFAULT_COLUMNS = "shape,dtype,kernel,ms,tflops,share,bound,naive_ms,over_naive,peer_ms,over_peer,memory"


def shape_text(line):
    shape = line["shape"]
    if isinstance(shape, str):
        return shape
    if shape.get("kind") == "decode":
        return (f"{shape['sequences']} step on {shape['prompt']}, {shape['heads']}/{shape['kv_heads']} heads, "
                f"d {shape['head_dim']}")
    queries, keys = shape["query_length"], shape["kv_length"]
    tokens = f"{keys}" if queries == keys else f"{queries} on {keys}"
    text = f"{shape['sequences']} x {tokens}, {shape['num_heads']}/{shape['num_kv_heads']} heads, d {shape['head_dim']}"
    if shape["causal"] and queries > 1:
        text += ", causal"
    if shape.get("window_left", -1) >= 0:
        text += f", window {shape['window_left']}"
    if "ascending_pages" in shape and shape["page_tokens"] > 0:
        text += f", pages of {shape['page_tokens']}, {'ascending' if shape['ascending_pages'] else 'scattered'}"
    return text


def number(value):
    return "-" if value is None else f"{value:.4g}"


def microseconds(value):
    return f"{value:.1f}"


def overhead(line):
    return line["p50_us"] - line["floor_p50_us"] - line["kernel_p50_us"]


def ratio(line, other):
    return None if line.get(other) is None else line[other] / line["ms"]


def times(value):
    return "-" if value is None else f"{value:.2f}x"


def megabytes(value):
    return f"{value / 1e6:,.1f}"


def mib(value):
    return "-" if value is None else f"{value / 2**20:.1f}"


def service_ratio(interval):
    return f"{interval['median']:.2f}x [{interval['low_95']:.2f}, {interval['high_95']:.2f}]"


# name -> (heading, text of a line)
COLUMNS = {
    # Of `attnload compare`: service and kernels apart.
    "scenario": ("scenario", lambda line: line["name"]),
    "fused_rate": ("fused, tokens/s", lambda line: f"{line['fused']['tokens_per_second']:,.0f}"),
    "naive_rate": ("naive, tokens/s", lambda line: f"{line['naive']['tokens_per_second']:,.0f}"),
    "service_over_naive": ("service over naive", lambda line: service_ratio(line["fused_over_naive_interval"])),
    "fused_kernel": ("fused kernels p50 us", lambda line: microseconds(line["fused"]["kernel_p50_us"])),
    "naive_kernel": ("naive kernels p50 us", lambda line: microseconds(line["naive"]["kernel_p50_us"])),
    "kernel_over_naive": ("kernels over naive",
                          lambda line: times(line["naive"]["kernel_p50_us"] / line["fused"]["kernel_p50_us"])),
    "fused_p50": ("fused p50 us", lambda line: microseconds(line["fused"]["p50_us"])),
    "batching": ("batching on over off", lambda line: times(line["batching_on_over_off"])),
    # Of attnbench and `attnload run`.
    "shape": ("shape", shape_text),
    "dtype": ("type", lambda line: line["dtype"]),
    "kernel": ("kernel", lambda line: f"`{line['kernel']}`"),
    "p50": ("p50 us", lambda line: microseconds(line["p50_us"])),
    "p99": ("p99 us", lambda line: microseconds(line["p99_us"])),
    "floor_p50": ("floor p50 us", lambda line: microseconds(line["floor_p50_us"])),
    "floor_p99": ("floor p99 us", lambda line: microseconds(line["floor_p99_us"])),
    "kernel_p50": ("kernels p50 us", lambda line: microseconds(line["kernel_p50_us"])),
    "overhead": ("p50 above floor and kernels, us", lambda line: microseconds(overhead(line))),
    "ms": ("ms", lambda line: number(line["ms"])),
    "tflops": ("TFLOP/s", lambda line: number(line["tflops"])),
    "gbps": ("GB/s", lambda line: number(line["gbps"])),
    "floor_ms": ("floor ms", lambda line: number(line["floor_ms"])),
    "share": ("of floor", lambda line: f"{100 * line['fraction_of_floor']:.0f} %"),
    "bound": ("bound by", lambda line: line["binding_unit"]),
    "read": ("read ceiling GB/s", lambda line: number(line.get("read_gbps"))),
    "naive_ms": ("naive ms", lambda line: number(line.get("naive_ms"))),
    "over_naive": ("over naive", lambda line: times(ratio(line, "naive_ms"))),
    "peer": ("peer", lambda line: line.get("peer", "-")),
    "peer_ms": ("peer ms", lambda line: number(line.get("peer_ms"))),
    "over_peer": ("over peer", lambda line: times(ratio(line, "peer_ms"))),
    # Of scripts/check_hbm_model.sh.
    "read_model": ("read, model MB", lambda line: megabytes(line["model_read_bytes"])),
    "read_counted": ("read, counted MB", lambda line: megabytes(line["counted_read_bytes"])),
    "write_model": ("written, model MB", lambda line: megabytes(line["model_write_bytes"])),
    "write_counted": ("written, counted MB", lambda line: megabytes(line["counted_write_bytes"])),
    "total_over_model": ("counted over model", lambda line: f"{line['total_over_model']:.3f}"),
    "class": ("class", lambda line: line["class"]),
    # Of a decode step alone.
    "launch_us": ("launch us", lambda line: microseconds(line["launch_us"])),
    "graph_launch_us": ("graph launch us", lambda line: microseconds(line["graph_launch_us"])),
    "step_us": ("step us", lambda line: microseconds(line["step_us"])),
    "graph_step_us": ("graph step us", lambda line: microseconds(line["graph_step_us"])),
    "memory": ("extra MiB (naive)",
               lambda line: f"{mib(line.get('workspace_bytes'))} ({mib(line.get('naive_workspace_bytes'))})"),
}


def read_report(path):
    """A report of `attnload run` or `compare` as the run's own line and its result lines."""
    report = json.loads(path.read_text(encoding="utf-8"))
    if "scenarios" in report:
        return ({"commit": report["server"]["commit"], "command": report["command"], "date": report["date"],
                 "device": report["server"]["devices"][0]["name"]}, report["scenarios"])
    run = report["run"]
    result, floor = run["result"], run["floor"]["latency"]
    head = {"commit": report["server"]["commit"], "command": report["command"], "date": report["date"],
            "device": report["machine"]["cpu"]}
    line = {"op": run["shape"]["kind"], "shape": run["shape"], "dtype": run["shape"]["type"],
            "kernel": "`, `".join(result["kernels"]), "p50_us": result["latency"]["p50_us"],
            "p99_us": result["latency"]["p99_us"], "kernel_p50_us": result["kernel_time"]["p50_us"],
            "floor_p50_us": floor["p50_us"], "floor_p99_us": floor["p99_us"]}
    return head, [line]


PEER_MS = re.compile(r"(?P<peer>\w+)_ms")
OVER_PEER = re.compile(r"over_(?P<peer>\w+)")
PEER_TFLOPS = re.compile(r"(?P<peer>\w+)_tflops")
PEER_MEMORY = re.compile(r"(?P<peer>\w+)_extra")


def column(name):
    """(heading, text of a line) of a column; NAME_ms, NAME_tflops, NAME_extra and over_NAME for any peer NAME that the data holds."""
    if name in COLUMNS:
        return COLUMNS[name]
    if match := OVER_PEER.fullmatch(name):
        return f"over {match['peer']}", lambda line: times(ratio(line, f"{match['peer']}_ms"))
    if match := PEER_MS.fullmatch(name):
        return f"{match['peer']} ms", lambda line: number(line.get(name))
    if match := PEER_TFLOPS.fullmatch(name):
        peer_ms = f"{match['peer']}_ms"
        return f"{match['peer']} TFLOP/s", lambda line: number(None if line.get(peer_ms) is None else line["tflops"] / ratio(line, peer_ms))
    if match := PEER_MEMORY.fullmatch(name):
        return f"extra MiB, {match['peer']}", lambda line: mib(line.get(f"{match['peer']}_extra_bytes"))
    raise SystemExit(f"bench_tables: there is no column '{name}'")


def read_run(path):
    """The run's own line and its result lines."""
    if path.suffix == ".json":
        return read_report(path)
    with open(path, encoding="utf-8") as lines:
        head, *results = [json.loads(text) for text in lines if text.strip()]
    for field in ("commit", "command", "device", "date"):
        if field not in head:
            raise SystemExit(f"bench_tables: {path}: the first line has no '{field}'")
    return head, results


def matches(line, conditions):
    for key, wanted in conditions.items():
        shape = line["shape"] if isinstance(line["shape"], dict) else {}
        value = line.get(key, shape.get(key))
        if isinstance(value, bool):
            value = str(value).lower()
        if not any(fnmatch.fnmatchcase(str(value), pattern) for pattern in wanted.split("|")):
            return False
    return True


def geometric_mean(values):
    product = 1.0
    for value in values:
        product *= value
    return product ** (1 / len(values))


def table(spec):
    """Markdown of one marked table."""
    name, *pairs = spec.split()
    conditions = dict(pair.split("=", 1) for pair in pairs)
    columns = conditions.pop("columns", DEFAULT_COLUMNS).split(",")
    head, results = read_run(PAGES / "data" / name)
    lines = [line for line in results if matches(line, conditions)]
    if not lines:
        raise SystemExit(f"bench_tables: no line of {name} matches {conditions}")
    chosen = [column(name) for name in columns]
    rows = [[heading for heading, _ in chosen], ["---"] * len(columns)]
    rows += [[cell(line) for _, cell in chosen] for line in lines]
    text = "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"
    notes = []
    for name in columns:
        match = OVER_PEER.fullmatch(name)
        other = f"{match['peer']}_ms" if match else ""
        ratios = [ratio(line, other) for line in lines if line.get(other) is not None]
        if ratios:
            label = "the peer" if name == "over_peer" else match["peer"]
            notes.append(f"over {label}: {min(ratios):.2f}x at least, {geometric_mean(ratios):.2f}x geometric mean")
    source = f"{head['device']}, {head['date'][:10]}, commit {head['commit']}: `{head['command']}`"
    if "fp32_gflops" in head:
        source += (f"; ceilings at its start: FP32 {head['fp32_gflops']} GFLOP/s, BF16 {head['bf16_gflops']} GFLOP/s, "
                   f"memory read {head['read_gbps']} GB/s")
    if "m16n8k16_tflops" in head:
        source += (f"; ceilings at its start: m16n8k8 {head['m16n8k8_tflops']} TFLOP/s, m16n8k16 {head['m16n8k16_tflops']} TFLOP/s, "
                   f"memory read {head['read_gbps']} GB/s")
    return text + "\n" + (". ".join(notes) + ".\n" if notes else "") + source + ".\n"


def regenerate(text):
    return MARK.sub(lambda mark: f"<!-- table: {mark['spec']} -->\n{table(mark['spec'])}<!-- end table -->", text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, fail where a page would change")
    arguments = parser.parse_args()
    stale = []
    for page in sorted(PAGES.glob("*.md")):
        before = page.read_text(encoding="utf-8")
        after = regenerate(before)
        if before == after:
            continue
        stale.append(page.relative_to(ROOT))
        if not arguments.check:
            page.write_text(after, encoding="utf-8")
    for page in stale:
        print(f"{page}: {'not what its data gives; run scripts/bench_tables.py' if arguments.check else 'written'}")
    return 1 if stale and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
