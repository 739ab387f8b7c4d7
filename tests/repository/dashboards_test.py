#!/usr/bin/env python3
"""Dashboards and rules as files: complete, tidy, and asking only for metrics that the server documents."""

import collections
import json
import pathlib
import re
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DEPLOY = ROOT / "deploy"
UNITS = {"none", "short", "s", "ops", "reqps", "Bps", "bytes", "flops", "percentunit", "hertz", "watt", "celsius", "suffix:FLOP/B"}
OLDEST_SCHEMA = 36  # Grafana 9
SUFFIXES = ("_bucket", "_sum", "_count")


def dashboards():
    return {file.name: json.loads(file.read_text(encoding="utf-8")) for file in sorted((DEPLOY / "grafana/dashboards").glob("*.json"))}


def shown(board):
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def overlaps(panels):
    """Pairs of panels that share a cell of the grid, and panels that leave it."""
    cells, faults = collections.defaultdict(list), []
    for panel in panels:
        place = panel["gridPos"]
        if place["x"] < 0 or place["x"] + place["w"] > 24 or place["w"] < 1 or place["h"] < 1:
            faults.append(f"{panel['title']} leaves the page")
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                cells[x, y].append(panel["title"])
    return faults + sorted({" over ".join(titles) for titles in cells.values() if len(titles) > 1})


def documented_families():
    families = re.findall(r"^\| `(attnd_\w+)` \| (\w+) \|", (ROOT / "docs/metrics.md").read_text(encoding="utf-8"), re.MULTILINE)
    return {name + suffix for name, kind in families for suffix in (SUFFIXES if kind == "histogram" else ("",))}


def recorded_names():
    text = (DEPLOY / "prometheus/rules/recording.yaml").read_text(encoding="utf-8")
    return set(re.findall(r"^\s*- record: (\S+)$", text, re.MULTILINE))


def asked_names(text):
    """Metrics and recorded series that a text of queries names."""
    return set(re.findall(r"(?<![\w:])attnd_\w+(?![\w:])|\binstance\w*:[\w:]+", text))


class DashboardsTest(unittest.TestCase):

    def test_files_are_what_their_generator_writes(self):
        done = subprocess.run([sys.executable, DEPLOY / "grafana/make_dashboards.py", "--check"], capture_output=True, text=True,
              check=False)
        self.assertEqual((0, ""), (done.returncode, done.stderr))

    def test_the_four_pages_are_there_and_link_to_each_other(self):
        boards = dashboards()
        self.assertEqual({"service.json", "kernels.json", "cache.json", "device.json"}, set(boards))
        uids = {board["uid"] for board in boards.values()}
        self.assertEqual(len(boards), len(uids))
        for name, board in boards.items():
            self.assertGreaterEqual(board["schemaVersion"], OLDEST_SCHEMA, name)
            targets = {link["url"].removeprefix("/d/") for link in board["links"]}
            self.assertEqual(uids - {board["uid"]}, targets, name)
            self.assertTrue(all(link["includeVars"] and link["keepTime"] for link in board["links"]), name)

    def test_every_panel_says_what_it_shows_and_in_which_unit(self):
        for name, board in dashboards().items():
            self.assertGreater(len(shown(board)), 5, name)
            titles = collections.Counter(panel["title"] for panel in shown(board))
            self.assertEqual([], [title for title, count in titles.items() if count > 1], name)
            self.assertEqual(len(board["panels"]), len({panel["id"] for panel in board["panels"]}), name)
            for panel in shown(board):
                place = f"{name}: {panel['title']}"
                self.assertIn(panel["fieldConfig"]["defaults"].get("unit"), UNITS, place)
                self.assertTrue(panel["description"], place)
                self.assertTrue(panel["targets"], place)
                self.assertEqual(len(panel["targets"]), len({target["refId"] for target in panel["targets"]}), place)

    def test_every_query_goes_through_the_data_source_variable(self):
        for name, board in dashboards().items():
            variables = {variable["name"]: variable for variable in board["templating"]["list"]}
            self.assertEqual("datasource", variables["datasource"]["type"], name)
            for panel in shown(board):
                for holder in (panel, *panel["targets"]):
                    self.assertEqual({"type": "prometheus", "uid": "${datasource}"}, holder["datasource"], f"{name}: {panel['title']}")
                for target in panel["targets"]:
                    used = set(re.findall(r"\$(\w+)", target["expr"])) - {"__rate_interval", "__range"}
                    self.assertLessEqual({"job", "instance"}, used, f"{name}: {panel['title']}")
                    self.assertLessEqual(used, set(variables), f"{name}: {panel['title']}")

    def test_panels_do_not_overlap(self):
        for name, board in dashboards().items():
            self.assertEqual([], overlaps(board["panels"]), name)

    def test_overlap_is_found(self):
        def at(title, x, y, w, h):
            return {"title": title, "gridPos": {"x": x, "y": y, "w": w, "h": h}}
        self.assertEqual([], overlaps([at("a", 0, 0, 12, 4), at("b", 12, 0, 12, 4), at("c", 0, 4, 24, 1)]))
        self.assertEqual(["a over b"], overlaps([at("a", 0, 0, 12, 4), at("b", 11, 3, 12, 4)]))
        self.assertEqual(["a leaves the page"], overlaps([at("a", 13, 0, 12, 4)]))

    def test_only_documented_metrics_and_recorded_series_are_asked_for(self):
        known = documented_families() | recorded_names()
        files = [*(DEPLOY / "prometheus/rules").glob("*.yaml"), *(DEPLOY / "grafana/dashboards").glob("*.json")]
        self.assertEqual(6, len(files))
        for file in files:
            # Expressions only: names of groups are no metrics.
            text = "\n".join(line for line in file.read_text(encoding="utf-8").splitlines() if not re.match(r"\s*- name:", line))
            self.assertEqual(set(), asked_names(text) - known, file.name)

    def test_every_documented_family_is_on_a_dashboard_or_in_a_rule(self):
        asked = set()
        for file in [*(DEPLOY / "prometheus/rules").glob("*.yaml"), *(DEPLOY / "grafana/dashboards").glob("*.json")]:
            asked |= asked_names(file.read_text(encoding="utf-8"))
        for family in re.findall(r"^\| `(attnd_\w+)` \|", (ROOT / "docs/metrics.md").read_text(encoding="utf-8"), re.MULTILINE):
            self.assertTrue({family, *(family + suffix for suffix in SUFFIXES)} & asked, f"{family} is shown nowhere")

    def test_names_are_found_in_queries(self):
        self.assertEqual({"attnd_a_total", "instance_kernel:attnd_b:rate5m"},
                         asked_names("sum by (instance) (rate(attnd_a_total{job=\"x\"}[1m])) / instance_kernel:attnd_b:rate5m"))


if __name__ == "__main__":
    unittest.main()
