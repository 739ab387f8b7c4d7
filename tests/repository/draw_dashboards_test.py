#!/usr/bin/env python3
"""Drawings of dashboards, from a stand-in for Prometheus: every panel is there, values stand where they belong, text is no markup."""

import http.server
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import unittest
import urllib.parse
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "deploy/grafana"))
import draw_dashboards  # noqa: E402  (the folder is not a package)

NOW = 1_000_000.0


def matrix(*series):
    return {"resultType": "matrix", "result": [{"metric": labels, "values": [[time, str(value)] for time, value in points]} for labels, points in series]}


class StandIn(http.server.BaseHTTPRequestHandler):
    """Answers every range query with two series, one of them with a name that is markup."""

    def do_GET(self):
        path = urllib.parse.urlparse(self.path).path
        if path.endswith("/query"):
            data = {"resultType": "scalar", "result": [NOW, str(NOW)]}
        elif "/label/" in path:
            data = ["a"]
        else:
            data = matrix(({"kernel": "cpu/<b>", "device": "cpu", "le": "0.5"}, [(NOW - 30, 1), (NOW, 3)]),
                          ({"kernel": "cpu/two", "device": "cpu", "le": "+Inf"}, [(NOW - 30, 2), (NOW, 8)]))
        body = json.dumps({"status": "success", "data": data}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class DrawDashboardsTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), StandIn)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        cls.addClassCleanup(server.server_close)
        cls.addClassCleanup(server.shutdown)
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        subprocess.run([sys.executable, ROOT / "deploy/grafana/draw_dashboards.py", "--prometheus", f"http://127.0.0.1:{server.server_port}",
                        "--note", "A <note>.", "--out", cls.folder], check=True, capture_output=True)

    def drawings(self):
        for file in sorted((ROOT / "deploy/grafana/dashboards").glob("*.json")):
            yield json.loads(file.read_text(encoding="utf-8")), (self.folder / f"{file.stem}.svg").read_text(encoding="utf-8")

    def test_every_panel_of_every_dashboard_is_drawn(self):
        count = 0
        for board, drawing in self.drawings():
            words = [element.text for element in xml.etree.ElementTree.fromstring(drawing).iter("{http://www.w3.org/2000/svg}text")]
            for panel in board["panels"]:
                self.assertIn(panel["title"], words, board["title"])
            self.assertNotIn("no data", words, board["title"])
            count += 1
        self.assertEqual(4, count)

    def test_a_drawing_says_what_it_is_and_needs_nothing_from_elsewhere(self):
        for _, drawing in self.drawings():
            self.assertIn("not a picture of Grafana", drawing)
            self.assertIn("A &lt;note&gt;.", drawing)
            self.assertNotIn("<b>", drawing)
            self.assertNotRegex(drawing, r"href|<script|url\(")

    def test_nothing_leaves_its_panel(self):
        for board, drawing in self.drawings():
            width = 24 * draw_dashboards.COLUMN + draw_dashboards.GAP
            for tag, attributes in re.findall(r"<(rect|circle|line) ([^>]*)", drawing):
                numbers = {name: float(value) for name, value in re.findall(r'\b(x|x2|cx|width)="([\d.]+)"', attributes)}
                right = max(numbers.get("x", 0) + numbers.get("width", 0), numbers.get("x2", 0), numbers.get("cx", 0))
                self.assertLessEqual(right, width, f"{board['title']}: {tag} {attributes}")

    def test_higher_values_are_drawn_higher(self):
        drawn = draw_dashboards.draw_lines((0, 0, 400, 200), [("a", [(0.0, 1.0), (10.0, 2.0), (20.0, 4.0)])], "s", 0.0, 20.0)
        points = [tuple(map(float, point.split(","))) for point in re.search(r'points="([^"]*)"', drawn)[1].split()]
        self.assertEqual(sorted(x for x, _ in points), [x for x, _ in points])
        self.assertAlmostEqual(2 * (points[0][1] - points[1][1]), points[1][1] - points[2][1], delta=0.3)

    def test_a_heat_map_shows_each_bucket_alone(self):
        # Cumulative 1 and 4: the upper bucket alone holds 3, the darkest cell.
        drawn = draw_dashboards.draw_heatmap((0, 0, 400, 200), [({"le": "1"}, [(0.0, 1.0), (10.0, 1.0)]), ({"le": "+Inf"}, [(0.0, 4.0), (10.0, 1.0)])], "s", 0.0, 10.0)
        self.assertEqual(["0.33", "0.33", "1.00"], sorted(re.findall(r'fill-opacity="([\d.]+)"', drawn)))

    def test_units_are_the_panels(self):
        for value, unit, text in ((0.25, "percentunit", "25 %"), (2.5e-5, "s", "25 µs"), (3.2e9, "Bps", "3.2 GB/s"), (7.0, "suffix:FLOP/B", "7 FLOP/B"),
                                  (12.0, "none", "12"), (1.6e9, "hertz", "1.6 GHz")):
            self.assertEqual(text, draw_dashboards.shown(value, unit))


if __name__ == "__main__":
    unittest.main()
