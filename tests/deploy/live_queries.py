#!/usr/bin/env python3
"""Asks a running Prometheus, which scrapes an attnd under load, every query of every dashboard and every rule.

  live_queries.py --prometheus http://127.0.0.1:9090 --dashboards FOLDER [--patience SECONDS]

A query passes with at least one finite sample; one without is asked again until patience, over all of them, ends: rates
need a history and each kind of traffic has its turn. The last line is the sum.
"""

import argparse
import json
import math
import pathlib
import re
import sys
import time
import urllib.parse
import urllib.request

# What Grafana would fill in. The window is wide enough for two scrapes and narrow enough for a short test.
BUILT_IN = {"__rate_interval": "20s", "__interval": "5s", "__range": "30m"}
SELECTOR = re.compile(r"(?<![\w:\"])(attnd_\w+|instance\w*:[\w:]+|up\b)(\{[^}]*\})?(\[[^\]]*\])?")
LABEL_VALUES = re.compile(r"label_values\((.*),\s*(\w+)\)$")


class Prometheus:

    def __init__(self, url, patience):
        self.url, self.deadline = url, time.monotonic() + patience

    def wait(self):
        """False when patience is at its end."""
        time.sleep(0.5)
        return time.monotonic() < self.deadline

    def get(self, path, **parameters):
        query = urllib.parse.urlencode(parameters, doseq=True)
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=20) as reply:
                return json.load(reply)["data"]
        except urllib.error.HTTPError as error:
            raise QueryError(json.load(error).get("error", str(error))) from error

    def finite_samples(self, expression):
        """How many series have a finite newest value."""
        return sum(1 for series in self.get("query", query=expression)["result"]
                   if math.isfinite(float((series.get("value") or series["values"][-1])[1])))


class QueryError(Exception):
    pass


class Tally:

    def __init__(self):
        self.passed, self.failures = 0, []

    def check(self, name, fault):
        if fault:
            self.failures.append(f"{name}: {fault}")
        else:
            self.passed += 1


def fill(text, values):
    return re.sub(r"\$(?:\{(\w+)\}|(\w+))", lambda match: values[match[1] or match[2]], text)


def variable_values(prometheus, board, tally):
    """The value of each variable, as Grafana would choose it at first sight; several values join to a regular expression."""
    values = dict(BUILT_IN)
    for variable in board["templating"]["list"]:
        if variable["type"] == "datasource":
            continue
        name = f"{board['title']}, variable {variable['name']}"
        metric, label = LABEL_VALUES.fullmatch(variable["query"]["query"]).groups()
        found = prometheus.get(f"label/{label}/values", **{"match[]": fill(metric, values)})
        tally.check(name, None if found else "no values")
        values[variable["name"]] = variable.get("allValue") or (found[0] if found else "")
    return values


def panels(board):
    for panel in board["panels"]:
        yield from panel.get("panels", []) if panel["type"] == "row" else [panel]


def fault_of(prometheus, expression):
    try:
        while not prometheus.finite_samples(expression):
            if not prometheus.wait():
                return f"no data from {expression}"
    except QueryError as error:
        return f"{error} in {expression}"
    return None


def check_dashboards(prometheus, folder, tally):
    for file in sorted(folder.glob("*.json")):
        board = json.loads(file.read_text(encoding="utf-8"))
        values = variable_values(prometheus, board, tally)
        for panel in panels(board):
            for target in panel["targets"]:
                name = f"{board['title']}, {panel['title']}, {target['refId']}"
                expression = fill(target["expr"], values)
                tally.check(name, fault_of(prometheus, expression))


def rules(prometheus):
    return [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]


def check_rules(prometheus, tally):
    """Every recorded series has data; so has every selector of an alert, which itself must be quiet under an ordinary load."""
    for rule in rules(prometheus):
        name = f"{rule['type']} rule {rule['name']}"
        if rule["health"] != "ok":
            tally.check(name, rule.get("lastError") or f"health {rule['health']}")
            continue
        if rule["type"] == "recording":
            tally.check(name, fault_of(prometheus, rule["name"]))
            continue
        tally.check(name, "fires under an ordinary load" if rule["state"] == "firing" else None)
        selectors = ["".join(part or "" for part in match.groups()) for match in SELECTOR.finditer(rule["query"])]
        tally.check(f"{name}, selectors", None if selectors else f"none found in {rule['query']}")
        for selector in selectors:
            # A range has no value of its own: its samples are counted.
            expression = f"count_over_time({selector})" if selector.endswith("]") else selector
            tally.check(f"{name}, {selector}", fault_of(prometheus, expression))


def wait_for_rules(prometheus):
    """Until each rule has been evaluated once, so the server has been scraped."""
    while prometheus.wait():
        try:
            if all(rule["health"] == "ok" for rule in rules(prometheus)) and prometheus.finite_samples("attnd_build_info"):
                return
        except OSError:
            pass  # still starting


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--prometheus", required=True)
    parser.add_argument("--dashboards", required=True, type=pathlib.Path)
    parser.add_argument("--patience", type=float, default=60)
    arguments = parser.parse_args()
    prometheus, tally = Prometheus(arguments.prometheus, arguments.patience), Tally()
    wait_for_rules(prometheus)
    check_dashboards(prometheus, arguments.dashboards, tally)
    check_rules(prometheus, tally)
    for failure in tally.failures:
        print(f"failed: {failure}")
    print(f"{tally.passed} passed, {len(tally.failures)} failed")
    return 1 if tally.failures or not tally.passed else 0


if __name__ == "__main__":
    sys.exit(main())
