#!/usr/bin/env python3
"""Each dashboard as one drawing, from the answers of a Prometheus to the panels' own queries: for documents, where there is no Grafana.

  draw_dashboards.py --prometheus URL [--seconds N] [--note TEXT] --out DIR

Panels stand where the dashboard puts them, with its titles, units and legends; the look is this script's, not Grafana's, and the drawing says so.
scripts/dashboards_test.sh --draw DIR calls it on the run that it has just made.
"""

import argparse
import datetime
import html
import json
import math
import pathlib
import re
import sys
import urllib.parse
import urllib.request

DASHBOARDS = pathlib.Path(__file__).resolve().parent / "dashboards"
COLUMN, ROW, GAP, TOP = 50, 34, 6, 46  # pixels of a cell of the grid, and of the head
COLOURS = ("#2563eb", "#c2690a", "#059669", "#7c3aed", "#be2f6d", "#0e7c9c", "#64748b", "#a16207")
INK, DIM, LINE = "#1b1f24", "#5b6470", "#d9dde3"
MOST_SERIES, MOST_ROWS = 8, 7
BUILT_IN = {"__rate_interval": "20s", "__interval": "5s", "__range": "5m"}
LABEL_VALUES = re.compile(r"label_values\((.*),\s*(\w+)\)$")


class Prometheus:

    def __init__(self, url, seconds):
        self.url, self.seconds = url, seconds
        self.end = float(self.get("query", query="time()")["result"][1])

    def get(self, path, **parameters):
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters, doseq=True)}", timeout=30) as reply:
            return json.load(reply)["data"]

    def series(self, expression):
        """(labels, [(time, value), ...]) of each series over the recorded time; finite values only."""
        found = self.get("query_range", query=expression, start=self.end - self.seconds, end=self.end, step=max(1, self.seconds // 120))["result"]
        return [(each["metric"], [(float(time), float(value)) for time, value in each["values"] if math.isfinite(float(value))]) for each in found]


def fill(text, values):
    return re.sub(r"\$(?:\{(\w+)\}|(\w+))", lambda match: values[match[1] or match[2]], text)


def variable_values(prometheus, board):
    values = dict(BUILT_IN)
    for variable in board["templating"]["list"]:
        if variable["type"] != "datasource":
            metric, label = LABEL_VALUES.fullmatch(variable["query"]["query"]).groups()
            found = prometheus.get(f"label/{label}/values", **{"match[]": fill(metric, values)})
            values[variable["name"]] = variable.get("allValue") or (found[0] if found else "")
    return values


def scaled(value, unit):
    for bound, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= bound:
            return f"{value / bound:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}".rstrip()


def shown(value, unit):
    """A value as the panel's unit would have it."""
    if unit == "percentunit":
        return f"{100 * value:.3g} %"
    if unit == "s":
        return f"{value * 1e6:.3g} µs" if abs(value) < 1e-3 else f"{value * 1e3:.3g} ms" if abs(value) < 1 else f"{value:.3g} s"
    names = {"Bps": "B/s", "bytes": "B", "flops": "FLOP/s", "ops": "/s", "reqps": "/s", "hertz": "Hz", "watt": "W", "celsius": "°C"}
    return scaled(value, unit.removeprefix("suffix:") if unit.startswith("suffix:") else names.get(unit, ""))


def legend(template, labels):
    text = re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda match: labels.get(match[1], ""), template)
    return text.strip() or ", ".join(f"{name} {value}" for name, value in labels.items() if name not in ("__name__", "job", "instance")) or "value"


def text(x, y, content, *, size=11, color=DIM, anchor="start", weight=400):
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{color}" text-anchor="{anchor}" font-weight="{weight}">{html.escape(content)}</text>'


def steps(high):
    step = 10 ** math.floor(math.log10(high / 3))
    step = next(step * factor for factor in (1, 2, 5, 10) if high / (step * factor) <= 4)
    return [step * index for index in range(int(high / step) + 1)]


def draw_stat(box, series, unit):
    x, y, width, height = box
    values = [points[-1][1] for _, points in series if points]
    return text(x + width / 2, y + height / 2 + 16, shown(sum(values) / len(values), unit) if values else "no data", size=20, color=INK, anchor="middle", weight=600)


def draw_lines(box, series, unit, start, end):
    x, y, width, height = box
    kept = sorted((each for each in series if each[1]), key=lambda each: -max(value for _, value in each[1]))[:MOST_SERIES]
    if not kept:
        return text(x + width / 2, y + height / 2, "no data", anchor="middle")
    legend_rows = (len(kept) + 1) // 2
    left, top, right, bottom = x + 66, y + 26, x + width - 10, y + height - 18 - 14 * legend_rows
    high = max(value for _, points in kept for _, value in points)
    high = high * 1.05 if high > 0 else 1.0
    parts = []
    for mark in steps(high):
        level = bottom - mark / high * (bottom - top)
        parts.append(f'<line x1="{left}" x2="{right}" y1="{level:.1f}" y2="{level:.1f}" stroke="{LINE}"/>' + text(left - 6, level + 4, shown(mark, unit), anchor="end"))
    for index, (name, points) in enumerate(kept):
        path = " ".join(f"{left + (time - start) / (end - start) * (right - left):.1f},{bottom - max(0.0, value) / high * (bottom - top):.1f}" for time, value in points)
        color = COLOURS[index % len(COLOURS)]
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.6"/>')
        parts.append(f'<circle cx="{left + index % 2 * (right - left) / 2:.1f}" cy="{bottom + 14 + 14 * (index // 2):.1f}" r="4" fill="{color}"/>'
                     + text(left + 9 + index % 2 * (right - left) / 2, bottom + 18 + 14 * (index // 2), name[:46]))
    return "".join(parts)


def draw_heatmap(box, series, unit, start, end):
    """Series of cumulative buckets, by their label le: cells are the share of each bucket alone."""
    x, y, width, height = box
    bounds = sorted(((float(labels["le"]), dict(points)) for labels, points in series if "le" in labels), key=lambda each: each[0])
    rows, below = [], {}
    for bound, points in bounds:
        rows.append((bound, {time: max(0.0, value - below.get(time, 0.0)) for time, value in points.items()}))
        below = points
    rows = [row for row in rows if any(row[1].values())]
    if not rows:
        return text(x + width / 2, y + height / 2, "no data", anchor="middle")
    left, top, right, bottom = x + 66, y + 26, x + width - 10, y + height - 12
    times = sorted({time for _, cells in rows for time in cells})
    most = max(value for _, cells in rows for value in cells.values())
    # A cell stands for the time up to its sample.
    step = min((later - earlier for earlier, later in zip(times, times[1:])), default=end - start)
    cell = min(right - left, step / (end - start) * (right - left))
    parts, tall = [], (bottom - top) / len(rows)
    for index, (bound, cells) in enumerate(rows):
        level = bottom - (index + 1) * tall
        parts.append(text(left - 6, level + tall / 2 + 4, "above" if math.isinf(bound) else shown(bound, unit), anchor="end", size=min(11, max(7, tall))))
        parts += [f'<rect x="{max(left, left + (time - start) / (end - start) * (right - left) - cell):.1f}" y="{level:.1f}" width="{cell:.1f}" height="{tall:.1f}" fill="{COLOURS[0]}" '
                  f'fill-opacity="{value / most:.2f}"/>' for time, value in cells.items() if value > 0]
    return "".join(parts)


def draw_table(box, series):
    x, y, _, _ = box
    rows = [", ".join(f"{name} {value}" for name, value in labels.items() if name not in ("__name__", "job", "instance")) for labels, points in series if points]
    return "".join(text(x + 12, y + 40 + 17 * index, row[:150], color=INK) for index, row in enumerate(rows[:MOST_ROWS])) or text(x + 12, y + 40, "no data")


def draw_panel(prometheus, panel, values):
    place, unit = panel["gridPos"], panel["fieldConfig"]["defaults"].get("unit", "none")
    box = (place["x"] * COLUMN + GAP, TOP + place["y"] * ROW + GAP, place["w"] * COLUMN - GAP, place["h"] * ROW - GAP)
    raw, named = [], []
    for target in panel["targets"]:
        for labels, points in prometheus.series(fill(target["expr"], values)):
            raw.append((labels, points))
            named.append((legend(target.get("legendFormat", ""), labels), points))
    start, end = prometheus.end - prometheus.seconds, prometheus.end
    inside = {"stat": lambda: draw_stat(box, named, unit), "table": lambda: draw_table(box, raw), "heatmap": lambda: draw_heatmap(box, raw, unit, start, end),
              "timeseries": lambda: draw_lines(box, named, unit, start, end)}[panel["type"]]()
    return (f'<rect x="{box[0]}" y="{box[1]}" width="{box[2]}" height="{box[3]}" rx="4" fill="#fff" stroke="{LINE}"/>'
            + text(box[0] + 10, box[1] + 17, panel["title"], size=12, color=INK, weight=600) + inside)


def draw(prometheus, board, note):
    values = variable_values(prometheus, board)
    parts = [text(GAP, 18, board["title"], size=16, color=INK, weight=700)]
    when = datetime.datetime.fromtimestamp(prometheus.end, datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    parts.append(text(GAP, 36, f"Drawn by draw_dashboards.py from the panels' own queries over {prometheus.seconds} s of a recorded run; not a picture of Grafana. {when}. {note}"))
    height = 0
    for panel in board["panels"]:
        place = panel["gridPos"]
        height = max(height, place["y"] + place["h"])
        if panel["type"] == "row":
            parts.append(text(GAP, TOP + place["y"] * ROW + 22, panel["title"], size=13, color=INK, weight=600))
        else:
            parts.append(draw_panel(prometheus, panel, values))
    width, tall = 24 * COLUMN + GAP, TOP + height * ROW + GAP
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {tall}" width="{width}" height="{tall}" font-family="system-ui, sans-serif">'
            f'<rect width="{width}" height="{tall}" fill="#f5f6f8"/>{"".join(parts)}</svg>\n')


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--prometheus", required=True)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--note", default="")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    prometheus = Prometheus(arguments.prometheus, arguments.seconds)
    for file in sorted(DASHBOARDS.glob("*.json")):
        drawing = draw(prometheus, json.loads(file.read_text(encoding="utf-8")), arguments.note)
        (arguments.out / f"{file.stem}.svg").write_text(drawing, encoding="utf-8")
        print(arguments.out / f"{file.stem}.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())
