#!/usr/bin/env python3
"""The page /statusz of a running attnd, in headless Chromium.

  statusz_page_test.py --build DIR --out DIR

Called by scripts/statusz_test.sh. Screenshots stay in --out.
"""

import argparse
import json
import math
import pathlib
import re
import subprocess
import sys
import time
import unittest
import urllib.request

from playwright.sync_api import sync_playwright

CHROMIUM = "/usr/bin/chromium"
SHAPE = "heads=8,kv_heads=2,head_dim=64,type=bf16"
SIZES = {"wide": {"width": 1400, "height": 1000}, "narrow": {"width": 390, "height": 800}}
SAMPLE = re.compile(r"^(attnd_\w+)\{([^}]*)\} (\S+)$", re.MULTILINE)
LABEL = re.compile(r'(\w+)="([^"]*)"')
arguments = None


class Server:

    def __init__(self):
        with (arguments.out / "attnd.log").open("w", encoding="utf-8") as log:
            self.process = subprocess.Popen([arguments.build / "server/attnd", "--listen=127.0.0.1:0", "--admin_listen=127.0.0.1:0", "--log_format=json",
                                             "--cache_bytes=512MiB", "--threads=1"], stdout=log, stderr=subprocess.STDOUT)
        self.listen, self.admin = self.await_addresses()

    def await_addresses(self):
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and self.process.poll() is None:
            for line in (arguments.out / "attnd.log").read_text(encoding="utf-8").splitlines():
                if '"serving"' in line and line.endswith("}"):
                    found = json.loads(line)
                    return found["listen"], found["admin"]
            time.sleep(0.05)
        raise AssertionError("attnd did not start: " + (arguments.out / "attnd.log").read_text(encoding="utf-8"))

    def get(self, path):
        with urllib.request.urlopen(f"http://{self.admin}{path}", timeout=10) as reply:
            return reply.read().decode()

    def load(self):
        """A few seconds of prompts, steps and refusals: less than the window of a point, so that it holds all of them."""
        for command in (["compare", "--scenario", f"kind=decode,{SHAPE},prompt=256,workers=4", "--scenario", f"tokens=128,{SHAPE}",
                         "--blocks", "1", "--block_seconds", "0.2"],
                        ["run", "--scenario", f"kind=decode,{SHAPE},prompt=256,mode=stream,workers=8", "--duration", "2", "--warmup", "0", "--no_floor"]):
            done = subprocess.run([arguments.build / "loadtest/attnload", command[0], "--server", self.listen, "--no_progress", *command[1:]],
                                  capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr

    def kernel_totals(self):
        """kernel -> FLOPs, bytes and busy seconds since the start, from /metrics."""
        totals = {}
        for family, labels, value in SAMPLE.findall(self.get("/metrics")):
            kernel = dict(LABEL.findall(labels)).get("kernel")
            key = {"attnd_kernel_flops_total": "flops", "attnd_kernel_hbm_bytes_total": "bytes", "attnd_kernel_busy_seconds_total": "busy"}.get(family)
            if key:
                totals.setdefault(kernel, {"flops": 0.0, "bytes": 0.0, "busy": 0.0})[key] += float(value)
        return totals

    def stop(self):
        self.process.kill()
        self.process.wait()


def log_place(value, low, high):
    return math.log(value / low) / math.log(high / low)


class StatuszPageTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.addClassCleanup(cls.server.stop)
        cls.playwright = sync_playwright().start()
        cls.addClassCleanup(cls.playwright.stop)
        cls.browser = cls.playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        cls.addClassCleanup(cls.browser.close)

    def open(self, *, size="wide", scheme="light", answered=True):
        """A page that has drawn itself; what it says on the console and whom it asks is collected."""
        context = self.browser.new_context(viewport=SIZES[size], color_scheme=scheme)
        self.addCleanup(context.close)
        page = context.new_page()
        page.said, page.asked = [], []
        page.on("console", lambda message: page.said.append(message.text))
        page.on("pageerror", lambda error: page.said.append(str(error)))
        page.on("request", lambda request: page.asked.append(request.url))
        page.goto(f"http://{self.server.admin}/statusz")
        if answered:
            self.wait_until(page, "document.body.dataset.polls >= 1 && document.getElementById('state').textContent !== '…'")
        return page

    def wait_until(self, page, condition):
        """Asks from outside: the page's own policy forbids to evaluate text inside of it."""
        deadline = time.monotonic() + 15
        while not page.evaluate(condition):
            self.assertLess(time.monotonic(), deadline, condition)
            page.wait_for_timeout(50)

    def assert_quiet(self, page):
        self.assertEqual([], page.said)
        self.assertEqual([], [url for url in page.asked if not url.startswith((f"http://{self.server.admin}/statusz", "data:"))])

    def test_1_an_idle_server_shows_its_state_and_no_point(self):
        page = self.open()
        self.assertEqual("serving", page.inner_text("#state"))
        self.assertEqual(0, page.locator("#roofline circle.point").count())
        self.assertEqual("attnd", page.inner_text("#name"))
        self.assert_quiet(page)

    def test_2_points_stand_where_the_metrics_say(self):
        before = self.server.kernel_totals()
        self.server.load()
        time.sleep(2.5)  # the sample that ends after the load
        totals = self.server.kernel_totals()
        page = self.open()
        svg = page.locator("#roofline svg")
        box = {name: float(svg.get_attribute(f"data-{name}")) for name in ("x0", "x1", "y0", "y1", "left", "right", "top", "bottom")}
        points = {point.get_attribute("data-kernel"): point for point in page.locator("#roofline circle.point").all()}
        ran = {name: {key: each[key] - before.get(name, {}).get(key, 0.0) for key in each} for name, each in totals.items()}
        ran = {name: each for name, each in ran.items() if each["busy"] > 0 and each["flops"] > 0}
        self.assertEqual(set(ran), set(points))
        self.assertGreaterEqual(len(ran), 3, "fused and naive kernels of both kinds")
        for name, each in ran.items():
            x, y = float(points[name].get_attribute("cx")), float(points[name].get_attribute("cy"))
            across = log_place(each["flops"] / each["bytes"], box["x0"], box["x1"])
            up = log_place(each["flops"] / each["busy"], box["y0"], box["y1"])
            self.assertAlmostEqual(box["left"] + across * (box["right"] - box["left"]), x, delta=0.5, msg=name)
            self.assertAlmostEqual(box["bottom"] - up * (box["bottom"] - box["top"]), y, delta=0.5, msg=name)
            self.assertTrue(box["left"] <= x <= box["right"] and box["top"] <= y <= box["bottom"], name)
        self.assert_roof(page, box)
        self.assert_quiet(page)

    def assert_roof(self, page, box):
        measured = next(float(value) for family, labels, value in SAMPLE.findall(self.server.get("/metrics"))
                        if family == "attnd_device_hbm_bandwidth_bytes_per_second" and 'kind="measured"' in labels)
        roof = next(line for line in page.locator("#roofline line.roof").all()
                    if math.isclose(float(line.get_attribute("data-value")), measured, rel_tol=1e-5))
        for end in ("1", "2"):
            x, y = float(roof.get_attribute(f"x{end}")), float(roof.get_attribute(f"y{end}"))
            intensity = box["x0"] * (box["x1"] / box["x0"]) ** ((x - box["left"]) / (box["right"] - box["left"]))
            rate = box["y0"] * (box["y1"] / box["y0"]) ** ((box["bottom"] - y) / (box["bottom"] - box["top"]))
            self.assertAlmostEqual(1, rate / intensity / measured, delta=0.01)

    def test_3_every_part_has_something_to_show_after_a_load(self):
        page = self.open()
        for plot in ("#hbm path", "#latency path", "#answers path", "#queue path", "#batches rect", "#kernels tbody tr", "#cache-table tbody tr",
                     "#answers-table tbody tr", "#stages tbody tr", "#roofline line.roof"):
            self.assertGreater(page.locator(plot).count(), 0, plot)
        self.assertGreater(page.locator("#hbm line.limit").count(), 0)
        self.assertEqual(7, page.locator(".tile").count())
        self.assertNotIn("NaN", page.inner_text("body"))
        self.assertNotIn("undefined", page.inner_text("body"))
        self.assert_quiet(page)

    def test_4_flags_that_differ_stand_first(self):
        page = self.open()
        page.click("summary")
        rows = page.locator("#flags tbody tr")
        names = [row.locator("td").first.inner_text() for row in rows.all()]
        self.assertIn("threads", names[:page.locator("#flags tr.changed").count()])
        self.assertIn("stop_limit", names)
        self.assert_quiet(page)

    def test_5_it_goes_on_by_itself(self):
        page = self.open()
        self.wait_until(page, "document.body.dataset.polls >= 3")
        self.assertEqual("", page.inner_text("#fresh"))
        self.assert_quiet(page)

    def test_6_light_and_dark_wide_and_narrow(self):
        backgrounds = {}
        for size in SIZES:
            for scheme in ("light", "dark"):
                page = self.open(size=size, scheme=scheme)
                page.screenshot(path=arguments.out / f"statusz_{size}_{scheme}.png", full_page=True)
                self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth"), SIZES[size]["width"], "the page is wider than its window")
                backgrounds[scheme] = page.evaluate("getComputedStyle(document.body).backgroundColor")
                self.assert_quiet(page)
        self.assertNotEqual(backgrounds["light"], backgrounds["dark"])

    def test_7_names_of_the_server_are_text(self):
        page = self.open()
        page.route("**/statusz.json", lambda route: route.fulfill(
            body=json.dumps({**json.loads(self.server.get("/statusz.json")), "serving": False, "reason": "<img src=x onerror=alert(1)>"})))
        self.wait_until(page, "document.getElementById('state').textContent.includes('not serving')")
        self.assertIn("<img", page.inner_text("#state"))
        self.assertEqual(0, page.locator("#state img").count())
        self.assertIn("bad", page.get_attribute("#state", "class"))

    def test_8_a_compute_roof_ends_the_memory_roof(self):
        page = self.open()
        document = json.loads(self.server.get("/statusz.json"))
        memory = max(each["value"] for each in document["ceilings"])
        document["ceilings"].append({"family": "attnd_device_peak_flops_per_second", "labels": {"kind": "measured"}, "value": 10 * memory, "unit": "FLOP/s"})
        page.route("**/statusz.json", lambda route: route.fulfill(body=json.dumps(document)))
        self.wait_until(page, "document.querySelectorAll('#roofline line.roof').length >= 2")
        roofs = {float(roof.get_attribute("data-value")): roof for roof in page.locator("#roofline line.roof").all()}
        self.assertAlmostEqual(float(roofs[memory].get_attribute("x2")), float(roofs[10 * memory].get_attribute("x1")), delta=0.5)
        self.assertAlmostEqual(float(roofs[memory].get_attribute("y2")), float(roofs[10 * memory].get_attribute("y1")), delta=0.5)

    def test_9_it_tells_when_the_server_is_gone(self):
        page = self.open()
        self.server.stop()
        self.wait_until(page, "document.getElementById('fresh').textContent.includes('no answer since')")
        self.assertIn("stale", page.get_attribute("body", "class"))
        page.screenshot(path=arguments.out / "statusz_gone.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    arguments, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])
