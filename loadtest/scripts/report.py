#!/usr/bin/env python3
"""One self-contained HTML page, or a table in the terminal, from the JSON that attnload and soak_sample.py write.

  report.py --title TEXT --out PAGE.html FILE...    FILE: attnload compare or run --json, or samples of a soak run (.jsonl)
  report.py --knee FILE...                          runs of growing rate: a table, and the highest rate before the knee

The page needs no network and no script: plots are drawings in it. Figures that no run has are left out, never guessed.
"""

import argparse
import html
import json
import math
import pathlib
import sys

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 260, 70, 28, 14, 44
KNEE_FACTOR = 3  # p99 of the knee over p99 of the lowest rate, at most
KNEE_KEEPS_UP = 0.95  # answers over offer, at least
STAGES = ("wire_decode", "queue", "host_to_device", "kernel", "device_to_host", "wire_encode")
PERCENTILES = (("p50_us", 0.5), ("p75_us", 0.75), ("p90_us", 0.9), ("p95_us", 0.95), ("p99_us", 0.99), ("p99_9_us", 0.999))
STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --dim: #667; --line: #d5d8de; --page: #fff; --s0: #2563eb; --s1: #d97706; --s2: #059669; --s3: #7c3aed; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8eb; --dim: #9aa3ad; --line: #3a4048; --page: #14171a; --s0: #6ea8fe; --s1: #f5b74f; --s2: #4ecb9a; --s3: #b79cf7; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); max-width: 1340px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.5em } h2 { font-size: 1.15em; margin-top: 2em } .plots { display: flex; flex-wrap: wrap; gap: 1em } figure { margin: 0; flex: 1 1 420px; max-width: 660px }
figcaption, .dim { color: var(--dim); font-size: .9em } table { border-collapse: collapse; display: block; overflow-x: auto } td, th { padding: .25em .8em; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap }
td:first-child, th:first-child { text-align: left } svg { width: 100%; height: auto } svg text { fill: var(--dim); font-size: 11px } code { overflow-wrap: anywhere }
"""


def number(value):
    """Three significant digits with a suffix."""
    for bound, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= bound:
            return f"{value / bound:.3g}{suffix}"
    return f"{value:.3g}"


def duration(microseconds):
    return f"{microseconds / 1e3:.3g} ms" if microseconds >= 1e3 else f"{microseconds:.3g} µs"


def ticks(low, high, log):
    if log:
        return [10.0 ** power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
    step = 10 ** math.floor(math.log10((high - low) / 4))
    step = next(step * factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= 6)
    return [low + step * index for index in range(int((high - low) / step + 1e-9) + 1)]


def line_plot(caption, series, x_label, y_label, *, log=False, shown=number, x_shown=number):
    """series: name -> list of (x, y). Points where y is not positive are left out of a logarithmic plot."""
    series = {name: [(x, y) for x, y in points if not log or y > 0] for name, points in series.items()}
    points = [point for each in series.values() for point in each]
    if not points:
        return ""
    x_low, x_high = min(x for x, _ in points), max(x for x, _ in points)
    x_high = x_high if x_high > x_low else x_low + 1
    y_high = max(y for _, y in points)
    y_marks = ticks(min(y for _, y in points), y_high, True) if log else ticks(0, y_high if y_high > 0 else 1, False)
    y_low, y_high = y_marks[0], max(y_marks[-1], y_high)
    if log and y_high == y_low:
        y_high = y_low * 10

    def at(x, y):
        across = (x - x_low) / (x_high - x_low)
        up = math.log(y / y_low) / math.log(y_high / y_low) if log else (y - y_low) / (y_high - y_low)
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    parts = []
    for mark in y_marks:
        y = at(x_low, mark)[1]
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="var(--line)"/>'
                     f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{html.escape(shown(mark))}</text>')
    for share in (0, 0.5, 1):
        x = x_low + share * (x_high - x_low)
        parts.append(f'<text x="{at(x, y_low)[0]:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{html.escape(x_shown(x))}</text>')
    for index, (name, each) in enumerate(series.items()):
        color = f"var(--s{index % 4})"
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*point) for point in each))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts.extend(f'<circle cx="{at(x, y)[0]:.1f}" cy="{at(x, y)[1]:.1f}" r="3" fill="{color}"><title>{html.escape(name)}: {html.escape(shown(y))} at '
                     f'{html.escape(x_shown(x))}</title></circle>' for x, y in each)
        parts.append(f'<text x="{LEFT + 8 + 110 * index}" y="{HEIGHT - 6}" style="fill:{color}">{html.escape(name)}</text>')
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" text-anchor="end">{html.escape(x_label)}</text>')
    return figure(f"{caption} ({y_label})", parts, HEIGHT)


def bar_plot(caption, groups, shown=number, *, largest=None):
    """groups: (name, {side: value}) pairs. Bars are drawn against `largest`, or against the largest of their own group where groups may differ by
    orders of magnitude."""
    parts, y, sides = [], 6, list(dict.fromkeys(side for _, values in groups for side in values))
    for name, values in groups:
        parts.append(f'<text x="{LEFT - 60}" y="{y + 12}">{html.escape(name)}</text>')
        y += 18
        for side, value in values.items():
            length = (WIDTH - LEFT - 250) * value / max(largest or max(values.values()), 1e-12)
            parts.append(f'<rect x="{LEFT}" y="{y}" width="{length:.1f}" height="12" rx="2" fill="var(--s{sides.index(side) % 4})"/>'
                         f'<text x="{LEFT + length + 6:.1f}" y="{y + 10}">{html.escape(side)} {html.escape(shown(value))}</text>')
            y += 15
        y += 6
    return figure(caption, parts, y + 4)


def roofline_plot(caption, points, roofs):
    """points: (name, FLOP a byte, FLOP/s). roofs: (name, bytes a second). Both axes are logarithmic."""
    if not points:
        return ""
    x_low = 10.0 ** math.floor(math.log10(min(x for _, x, _ in points) / 2))
    x_high = 10.0 ** math.ceil(math.log10(max(x for _, x, _ in points) * 2))
    tops = [y for _, _, y in points] + [bandwidth * x_low * 3 for _, bandwidth in roofs]
    y_low, y_high = 10.0 ** math.floor(math.log10(min(tops) / 2)), 10.0 ** math.ceil(math.log10(max(tops) * 2))

    def at(x, y):
        return (LEFT + math.log(x / x_low) / math.log(x_high / x_low) * (WIDTH - LEFT - RIGHT),
                HEIGHT - BOTTOM - math.log(y / y_low) / math.log(y_high / y_low) * (HEIGHT - TOP - BOTTOM))

    parts = []
    for mark in ticks(y_low, y_high, True):
        y = at(x_low, mark)[1]
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="var(--line)"/>'
                     f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{number(mark)}</text>')
    for mark in ticks(x_low, x_high, True):
        parts.append(f'<text x="{at(mark, y_low)[0]:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{number(mark)}</text>')
    for name, bandwidth in roofs:
        start, end = max(x_low, y_low / bandwidth), min(x_high, y_high / bandwidth)
        if start < end:
            (x1, y1), (x2, y2) = at(start, bandwidth * start), at(end, bandwidth * end)
            parts.append(f'<line class="roof" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="var(--ink)" stroke-width="1.5"/>'
                         f'<text x="{(x1 + x2) / 2 - 8:.1f}" y="{(y1 + y2) / 2 - 8:.1f}" text-anchor="end">{html.escape(name)} {number(bandwidth)}B/s</text>')
    for index, (name, intensity, rate) in enumerate(points):
        x, y = at(intensity, rate)
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="var(--s{index % 4})"><title>{html.escape(name)}: {number(rate)}FLOP/s at {number(intensity)} FLOP/B</title></circle>'
                     f'<text x="{x + 9:.1f}" y="{y + 4:.1f}">{html.escape(name)}</text>')
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" text-anchor="end">FLOP a byte of device memory</text>')
    return figure(f"{caption} (FLOP/s)", parts, HEIGHT)


def figure(caption, parts, height):
    return f'<figure><svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{html.escape(caption)}">{"".join(parts)}</svg><figcaption>{html.escape(caption)}</figcaption></figure>'


def table(head, rows):
    cells = "".join(f"<th>{html.escape(each)}</th>" for each in head)
    lines = "".join("<tr>" + "".join(f"<td>{html.escape(str(each))}</td>" for each in row) + "</tr>" for row in rows)
    return f"<table><tr>{cells}</tr>{lines}</table>"


def interval(each, key):
    found = each.get(key)
    return f"{found['median']:.2f}× [{found['low_95']:.2f}, {found['high_95']:.2f}]" if found else "–"


def comparison_section(report):
    groups, rows = [], []
    for each in report["scenarios"]:
        values = {"fused": each["fused_tokens_per_second"], "naive": each["naive_tokens_per_second"]}
        if "alone" in each:
            values["fused, never batched"] = each["alone"]["tokens_per_second"]
        if "naive_alone" in each:
            values["naive, never batched"] = each["naive_alone"]["tokens_per_second"]
        groups.append((each["name"], values))
        rows.append((each["name"], number(values["fused"]), number(values["naive"]), interval(each, "fused_over_naive_interval"),
                     interval(each, "batching_on_over_off_interval"),
                     interval(each, "naive_batching_on_over_off_interval"), duration(each["fused"]["p50_us"]), duration(each["naive"]["p50_us"]),
                     duration(each["fused"]["kernel_p50_us"]), duration(each["naive"]["kernel_p50_us"]), duration(each["floor_p50_us"])))
    return ("<h2>Both sides</h2><div class=plots>" + bar_plot("Tokens a second, through the whole service", groups) + "</div>" +
            table(("scenario", "fused tokens/s", "naive tokens/s", "fused / naive [95 %]", "batching on / off [95 %]", "of naive", "fused p50", "naive p50",
                   "fused kernel p50", "naive kernel p50", "floor p50"), rows) +
            "<p class=dim>Sides in turn, block by block, on the same server and tensors; the interval is a bootstrap over blocks. floor: the same bytes "
            "through an echo server.</p>")


def run_rows(runs):
    for run in runs:
        result = run["result"]
        offered = run.get("offered_requests_per_second")
        yield (run["name"], number(offered) if offered else "closed loop", number(result["ok_requests_per_second"]), result["failed"], result["skipped"],
               *(duration(result["latency"][key]) for key in ("p50_us", "p90_us", "p99_us")), duration(result["schedule_lag"]["p99_us"]),
               f"{result['mean_batch_requests']:.2f}" if "mean_batch_requests" in result else "–",
               ", ".join(f"{name} {count}" for name, count in result["failures"].items()) or "–")


def runs_section(runs):
    swept = sorted((run for run in runs if "offered_requests_per_second" in run), key=lambda run: run["offered_requests_per_second"])
    plots = []
    if len(swept) > 1:
        def over_rate(key, part="latency"):
            return [(run["offered_requests_per_second"], run["result"][part][key]) for run in swept]
        plots.append(line_plot("Latency against offered rate", {"p50": over_rate("p50_us"), "p90": over_rate("p90_us"), "p99": over_rate("p99_us"),
                                                                "lag p99": over_rate("p99_us", "schedule_lag")},
                               "requests/s offered", "from the time due, logarithmic", log=True, shown=duration))
        plots.append(line_plot("Answered against offered rate", {
            "answered OK": [(run["offered_requests_per_second"], run["result"]["ok_requests_per_second"]) for run in swept],
            "offered": [(run["offered_requests_per_second"], run["offered_requests_per_second"]) for run in swept]}, "requests/s offered", "requests/s"))
        plots.append(line_plot("Requests in a batch", {"mean": [(run["offered_requests_per_second"], run["result"]["mean_batch_requests"])
                                                                for run in swept if "mean_batch_requests" in run["result"]]}, "requests/s offered", "mean"))
    chosen = {f"{number(run['offered_requests_per_second'])}/s": run for run in swept[:: max(1, len(swept) // 4)][:4]} or {run["name"]: run for run in runs[:4]}
    plots.append(line_plot("Percentiles", {name: [(-math.log10(1 - p), run["result"]["latency"][key]) for key, p in PERCENTILES]
                                           for name, run in chosen.items()}, "percentile", "latency, logarithmic", log=True, shown=duration,
                           x_shown=lambda x: f"{100 * (1 - 10 ** -x):.4g} %"))
    plots.append(bar_plot("Mean time of a request by part", [
        (name, {"kernel": run["result"]["kernel_time"]["mean_us"], "queue": run["result"]["queue_time"]["mean_us"],
                "rest (transport, copies)": max(0.0, run["result"]["service_time"]["mean_us"] - run["result"]["kernel_time"]["mean_us"]
                                                       - run["result"]["queue_time"]["mean_us"])}) for name, run in chosen.items()], duration))
    replays = [(run["replay"]["trace"], run["replay"]) for run in runs if "replay" in run]
    for name, replay in replays:
        plots.append(line_plot(f"Tokens of {pathlib.Path(name).name}", {
            label: [(-math.log10(1 - p), replay[part][key]) for key, p in PERCENTILES] for label, part in (("first token", "first_token"), ("each step", "step"))},
                               "percentile", "time, logarithmic", log=True, shown=duration, x_shown=lambda x: f"{100 * (1 - 10 ** -x):.4g} %"))
    return ("<h2>Runs</h2><div class=plots>" + "".join(plots) + "</div>" +
            table(("scenario", "offered/s", "OK/s", "failed", "skipped", "p50", "p90", "p99", "lag p99", "batch", "failures"), run_rows(runs)))


def add_up(works):
    """One account of several: kernels, stages and batches are sums, ceilings the last ones."""
    kernels, stages, bounds, counts = {}, {}, [], []
    for work in works:
        for kernel in work["kernels"]:
            sums = kernels.setdefault(kernel["kernel"], dict.fromkeys(("launches", "busy_seconds", "hbm_bytes", "flops"), 0.0))
            for key in sums:
                sums[key] += kernel[key]
        for stage, each in work["stages"].items():
            sums = stages.setdefault(stage, {"count": 0.0, "seconds": 0.0})
            for key in sums:
                sums[key] += each[key]
        bounds = work["batch_sequences"]["bounds"]
        counts = [one + other for one, other in zip(counts or [0.0] * (len(bounds) + 1), work["batch_sequences"]["counts"], strict=True)]
    ceilings = {" ".join(["measured", *(value for label, value in each["labels"].items() if label not in ("device", "kind"))]): each["value"]
                for each in works[-1]["ceilings"] if each["unit"] == "B/s" and each["labels"].get("kind") == "measured"}
    return kernels, stages, list(zip(batch_names(bounds), counts, strict=True)) if bounds else [], ceilings


def batch_names(bounds):
    names = [f"{bounds[0]:g}"]
    names += [f"{high:g}" if high == low + 1 else f"{low + 1:g} to {high:g}" for low, high in zip(bounds, bounds[1:])]
    return [*names, f"above {bounds[-1]:g}"]


def server_section(works):
    """What the servers themselves account for, all reports together."""
    kernels, stages, batches, ceilings = add_up(works)
    plots, total = [], sum(count for _, count in batches)
    if total:
        plots.append(bar_plot("Batches by their sequences", [(f"{name} sequences", {"share": count / total}) for name, count in batches if count], lambda share: f"{share:.1%}",
                              largest=max(count for _, count in batches) / total))
    in_order = [stage for stage in STAGES if stage in stages]
    if in_order:
        means = {stage.replace("_", " "): 1e6 * stages[stage]["seconds"] / stages[stage]["count"] for stage in in_order}
        plots.append(bar_plot("Mean time of a request or its batch in each stage of the server", [(stage, {"mean": mean}) for stage, mean in means.items()], duration,
                              largest=max(means.values())))
    rates = {name: each["hbm_bytes"] / each["busy_seconds"] for name, each in kernels.items() if each["busy_seconds"] > 0 and each["hbm_bytes"] > 0}
    if rates:
        bars = [(name, {"modelled bytes over kernel time": rate}) for name, rate in sorted(rates.items())]
        bars += [(name, {"ceiling": value}) for name, value in ceilings.items()]
        plots.append(bar_plot("HBM throughput of each kernel", bars, lambda rate: f"{number(rate)}B/s", largest=max([*rates.values(), *ceilings.values()])))
    points = [(name, each["flops"] / each["hbm_bytes"], each["flops"] / each["busy_seconds"])
              for name, each in sorted(kernels.items()) if each["flops"] > 0 and each["hbm_bytes"] > 0 and each["busy_seconds"] > 0]
    plots.append(roofline_plot("Roofline", points, list(ceilings.items())))
    rows = [(name, f"{each['launches']:.0f}", duration(1e6 * each["busy_seconds"] / each["launches"]),
             f"{number(rates[name])}B/s" if name in rates else "–", f"{number(each['flops'] / each['busy_seconds'])}" if each["busy_seconds"] > 0 else "–")
            for name, each in sorted(kernels.items())]
    return ("<h2>The server's own account</h2><div class=plots>" + "".join(plots) + "</div>" +
            table(("kernel", "launches", "mean time", "HBM throughput", "FLOP/s"), rows) +
            "<p class=dim>From /statusz.json of the admin port before and after each run, warm-up included; bytes are modelled from the shapes.</p>")


def soak_section(samples):
    start = samples[0]["time"]

    def over_time(key, scale=1.0):
        return [((each["time"] - start) / 60, each[key] * scale) for each in samples]
    plots = [line_plot("Memory of the server", {"resident": over_time("memory_bytes", 1e-6)}, "minutes", "MB"),
             line_plot("Threads and descriptors", {"threads": over_time("threads"), "descriptors": over_time("descriptors")}, "minutes", "count"),
             line_plot("p99 of the rounds", {"p99": over_time("p99_us")}, "minutes", "latency", shown=duration),
             line_plot("Left after a round", {name: over_time(name) for name in ("sequences", "requests", "streams")}, "minutes", "count")]
    return f"<h2>{len(samples)} rounds</h2><div class=plots>" + "".join(plots) + "</div>"


def page(title, comparisons, runs, samples):
    reports = comparisons + runs
    facts = []
    if reports:
        first = reports[0]
        machine = first["machine"]
        facts.append(f"{first['date']} · load generator on {machine['cpu']}, {machine['cores']} cores, {machine['kernel']}")
        server = first.get("server")
        if server:
            devices = ", ".join(f"{device['name']} ({device['backend']}, {device['kernel_arch']}, "
                                f"{number(device['measured_read_bytes_per_second'])}B/s measured)" for device in server["devices"])
            facts.append(f"server {server['name']} {server['version']}, commit {server['commit']}, on {devices}")
    sections = [comparison_section(report) for report in comparisons]
    if runs:
        sections.append(runs_section([report["run"] for report in runs]))
    works = [report["server_work"] for report in reports if "server_work" in report]
    if works:
        sections.append(server_section(works))
    if samples:
        sections.append(soak_section(samples))
    commands = "".join(f"<li><code>{html.escape(report['command'])}</code></li>" for report in reports)
    return (f"<!doctype html><html lang=en><head><meta charset=utf-8><meta name=viewport content='width=device-width, initial-scale=1'>"
            f"<title>{html.escape(title)}</title><style>{STYLE}</style></head><body><h1>{html.escape(title)}</h1>"
            + "".join(f"<p class=dim>{html.escape(fact)}</p>" for fact in facts) + "".join(sections)
            + (f"<h2>Commands</h2><ul>{commands}</ul>" if commands else "") + "</body></html>\n")


def read(files):
    """(comparisons, runs, samples)"""
    comparisons, runs, samples = [], [], []
    for file in map(pathlib.Path, files):
        text = file.read_text(encoding="utf-8")
        if file.suffix == ".jsonl":
            samples += [json.loads(line) for line in text.splitlines()]
            continue
        report = json.loads(text)
        if "scenarios" in report:
            comparisons.append(report)
        elif "run" in report:
            runs.append(report)
        else:
            sys.exit(f"report: {file} is neither a comparison nor a run of attnload")
    return comparisons, runs, samples


def knee(runs):
    """The highest offered rate before latency leaves its floor or answers fall behind; None where even the lowest does."""
    swept = sorted((run for run in runs if "offered_requests_per_second" in run), key=lambda run: run["offered_requests_per_second"])
    found = None
    for run in swept:
        offered, result = run["offered_requests_per_second"], run["result"]
        if result["latency"]["p99_us"] > KNEE_FACTOR * swept[0]["result"]["latency"]["p99_us"] or result["ok_requests_per_second"] < KNEE_KEEPS_UP * offered:
            break
        found = offered
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--title", default="Load report")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--knee", action="store_true")
    parser.add_argument("files", nargs="+")
    arguments = parser.parse_args()
    comparisons, runs, samples = read(arguments.files)
    if arguments.knee:
        print(f"{'offered/s':>12} {'OK/s':>12} {'p50':>10} {'p99':>10} {'lag p99':>10} {'failed':>8}")
        for report in sorted(runs, key=lambda report: report["run"].get("offered_requests_per_second", 0)):
            run = report["run"]
            result = run["result"]
            print(f"{run['offered_requests_per_second']:12.1f} {result['ok_requests_per_second']:12.1f} {duration(result['latency']['p50_us']):>10} "
                  f"{duration(result['latency']['p99_us']):>10} {duration(result['schedule_lag']['p99_us']):>10} {result['failed']:8}")
        found = knee([report["run"] for report in runs])
        print(f"knee: {found:.1f} requests/s" if found else "knee: below the lowest rate")
    if arguments.out:
        arguments.out.write_text(page(arguments.title, comparisons, runs, samples), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
