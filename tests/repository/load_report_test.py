#!/usr/bin/env python3
"""Load reports: what the page shows, where the knee lies, what counts as growth."""

import copy
import html.parser
import json
import math
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SCRIPTS = ROOT / "loadtest/scripts"
sys.path.insert(0, str(SCRIPTS))
import make_trace  # noqa: E402  (the folder is not a package)
import replay_accounts  # noqa: E402
import report  # noqa: E402
import soak_sample  # noqa: E402


def durations(p99):
    return {"count": 100, "min_us": 1.0, "mean_us": p99 / 2, "p50_us": p99 / 2, "p75_us": p99 / 1.5, "p90_us": p99 / 1.2, "p95_us": p99 / 1.1, "p99_us": p99,
            "p99_9_us": p99 * 1.1, "max_us": p99 * 2}


def run(rate, p99, answered=None, failures=None):
    """A report of attnload run in an open loop."""
    failures = failures or {}
    return {"command": f"attnload run --rate {rate}", "date": "2026-01-01T00:00:00Z", "machine": {"cpu": "a <cpu>", "cores": 2, "kernel": "Linux", "memory_bytes": 1},
            "run": {"name": "decode", "loop": "open", "offered_requests_per_second": rate,
                    "result": {"ok_requests_per_second": rate if answered is None else answered, "failed": sum(failures.values()), "failures": failures,
                               "skipped": 0, "mean_batch_requests": 1.5, "latency": durations(p99), "service_time": durations(p99), "schedule_lag": durations(5),
                               "queue_time": durations(10), "kernel_time": durations(20)}}}


def comparison():
    side = {"tokens_per_second": 10.0, "p50_us": 5.0, "kernel_p50_us": 2.0}
    return {"command": "attnload compare", "date": "2026-01-01T00:00:00Z", "machine": run(1, 1)["machine"],
            "scenarios": [{"name": "prefill_512", "fused_tokens_per_second": 8_000_000.0, "naive_tokens_per_second": 2_000_000.0, "fused": side, "naive": side,
                           "floor_p50_us": 1.0, "fused_over_naive_interval": {"median": 4.0, "low_95": 3.5, "high_95": 4.5}}]}


def page(*reports, title="Title"):
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for number, each in enumerate(reports):
            files.append(pathlib.Path(folder) / f"{number}.json")
            files[-1].write_text(json.dumps(each), encoding="utf-8")
        out = pathlib.Path(folder) / "page.html"
        subprocess.run([sys.executable, SCRIPTS / "report.py", "--title", title, "--out", out, *files], check=True)
        return out.read_text(encoding="utf-8")


class Tags(html.parser.HTMLParser):

    def __init__(self, text):
        super().__init__()
        self.found, self.open, self.words = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.words.append(data)

    def count(self, tag):
        return sum(name == tag for name, _ in self.found)


class PageTest(unittest.TestCase):

    def test_it_needs_nothing_from_elsewhere(self):
        text = page(comparison(), run(10, 100), run(20, 200))
        tags = Tags(text)
        self.assertEqual(0, tags.count("script") + tags.count("link") + tags.count("img"))
        self.assertNotRegex(text, r"https?://|url\(|@import")

    def test_a_comparison_shows_both_sides_and_the_interval(self):
        text = page(comparison())
        self.assertIn("fused 8M", text)
        self.assertIn("naive 2M", text)
        self.assertIn("4.00× [3.50, 4.50]", text)
        widths = [float(attributes["width"]) for tag, attributes in Tags(text).found if tag == "rect"]
        self.assertAlmostEqual(4, widths[0] / widths[1], places=2)

    def test_a_sweep_is_drawn_over_its_rates(self):
        tags = Tags(page(run(30, 900), run(10, 100), run(20, 200)))
        lines = [attributes["points"].split() for tag, attributes in tags.found if tag == "polyline"]
        across = [float(point.split(",")[0]) for point in lines[0]]
        self.assertEqual(3, len(across))
        self.assertEqual(sorted(across), across)
        self.assertGreaterEqual(tags.count("svg"), 5)

    def test_higher_values_are_drawn_higher(self):
        drawn = report.line_plot("c", {"a": [(0, 1.0), (1, 10.0), (2, 100.0)]}, "x", "y", log=True)
        heights = [float(point.split(",")[1]) for point in re.search(r'points="([^"]*)"', drawn)[1].split()]
        self.assertEqual(sorted(heights, reverse=True), heights)
        self.assertAlmostEqual(heights[0] - heights[1], heights[1] - heights[2], places=1)

    def test_failures_stand_by_code(self):
        self.assertIn("RESOURCE_EXHAUSTED 7", page(run(10, 100, failures={"RESOURCE_EXHAUSTED": 7})))

    def test_text_of_the_machine_is_no_markup(self):
        text = page(run(10, 100), title="<b>")
        self.assertNotIn("<cpu>", text)
        self.assertIn("&lt;b&gt;", text)

    def test_what_is_not_a_report_is_refused(self):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump({"floors": []}, file)
            file.flush()
            done = subprocess.run([sys.executable, SCRIPTS / "report.py", file.name], capture_output=True, text=True, check=False)
        self.assertEqual(1, done.returncode)
        self.assertIn("neither a comparison nor a run", done.stderr)


def account(launches):
    """What /statusz.json adds to a report."""
    return {"seconds": 5.0, "stages": {"queue": {"count": 4.0, "seconds": 0.004}, "kernel": {"count": 4.0, "seconds": 0.04}},
            "kernels": [{"kernel": "cpu/decode", "device": "cpu", "launches": launches, "busy_seconds": 2.0, "hbm_bytes": 2e10, "flops": 8e10},
                        {"kernel": "cpu/append", "device": "cpu", "launches": 1.0, "busy_seconds": 1.0, "hbm_bytes": 1e9, "flops": 0.0}],
            "batch_sequences": {"bounds": [1.0, 2.0, 4.0], "counts": [3.0, 0.0, 1.0, 0.0]},
            "ceilings": [{"family": "f", "labels": {"kind": "measured", "device": "cpu"}, "value": 4e10, "unit": "B/s"},
                         {"family": "f", "labels": {"kind": "datasheet", "device": "cpu"}, "value": 9e10, "unit": "B/s"}]}


class ServerAccountTest(unittest.TestCase):

    def test_accounts_of_several_runs_add_up(self):
        kernels, stages, batches, ceilings = report.add_up([account(10.0), account(20.0)])
        self.assertEqual(30, kernels["cpu/decode"]["launches"])
        self.assertEqual(4e10, kernels["cpu/decode"]["hbm_bytes"])
        self.assertEqual({"count": 8, "seconds": 0.08}, stages["kernel"])
        self.assertEqual([("1", 6), ("2", 0), ("3 to 4", 2), ("above 4", 0)], batches)
        self.assertEqual({"measured": 4e10}, ceilings)

    def test_a_page_shows_batches_stages_throughput_and_roofline(self):
        text = page({**run(10, 100), "server_work": account(10.0)})
        for shown in ("Batches by their sequences", "75.0%", "in each stage", "10 ms", "HBM throughput of each kernel", "10GB/s", "40GB/s", "Roofline"):
            self.assertIn(shown, text)

    def test_a_page_without_an_account_has_none_of_them(self):
        self.assertNotIn("Roofline", page(run(10, 100)))

    def test_a_point_stands_under_its_roof_by_its_share_of_it(self):
        # 4 FLOP/B at 4e10 FLOP/s under 4e10 B/s x 4 FLOP/B: a quarter.
        drawn = report.roofline_plot("c", [("k", 4.0, 4e10)], [("measured", 4e10)])
        circle = re.search(r'<circle cx="([\d.]+)" cy="([\d.]+)"', drawn)
        line = re.search(r'x1="([\d.]+)" y1="([\d.]+)" x2="([\d.]+)" y2="([\d.]+)" stroke="var\(--ink\)"', drawn)
        x, y = map(float, circle.groups())
        x1, y1, x2, y2 = map(float, line.groups())
        roof = y1 + (x - x1) / (x2 - x1) * (y2 - y1)
        marks = [float(each) for each in re.findall(r'<line x1="70" x2="612" y1="([\d.]+)"', drawn)]
        self.assertAlmostEqual(math.log10(4), (y - roof) / (marks[0] - marks[1]), delta=0.02)


class KneeTest(unittest.TestCase):

    def knee(self, *reports):
        return report.knee([each["run"] for each in reports])

    def test_it_is_the_last_rate_before_latency_leaves_its_floor(self):
        self.assertEqual(20, self.knee(run(30, 301), run(10, 100), run(20, 300)))

    def test_it_is_the_last_rate_that_is_kept_up_with(self):
        self.assertEqual(10, self.knee(run(10, 100), run(20, 100, answered=18.9)))

    def test_a_rate_beyond_the_knee_never_counts_again(self):
        self.assertEqual(10, self.knee(run(10, 100), run(20, 900), run(30, 100)))

    def test_there_is_none_where_the_lowest_rate_falls_behind(self):
        self.assertIsNone(self.knee(run(10, 100, answered=5)))


class GrowthTest(unittest.TestCase):

    def setUp(self):
        self.samples = [{"memory_bytes": 100 << 20, "threads": 20, "descriptors": 30, "sequences": 0, "requests": 0, "streams": 0} for _ in range(8)]

    def faults(self, **changes):
        samples = copy.deepcopy(self.samples)
        for name, values in changes.items():
            for sample, value in zip(samples, values, strict=True):
                sample[name] = value
        return soak_sample.faults(samples)

    def test_a_steady_server_is_well(self):
        self.assertEqual([], self.faults())

    def test_memory_may_grow_while_it_warms_up(self):
        self.assertEqual([], self.faults(memory_bytes=[0, 0] + [500 << 20] * 6))

    def test_memory_that_grows_later_is_found(self):
        self.assertRegex(self.faults(memory_bytes=[(100 + 20 * n) << 20 for n in range(8)])[0], "memory_bytes grew")

    def test_threads_and_descriptors_that_grow_are_found(self):
        self.assertEqual(2, len(self.faults(threads=range(20, 36, 2), descriptors=range(30, 46, 2))))

    def test_what_is_left_after_a_round_is_found(self):
        self.assertEqual(["2 sequences left after round 4"], self.faults(sequences=[0, 0, 0, 2, 0, 0, 0, 0]))

    def test_too_few_rounds_prove_nothing(self):
        self.assertRegex(soak_sample.faults(self.samples[:1])[0], "too few")


class MadeUpTraceTest(unittest.TestCase):

    def test_it_has_the_statistics_that_it_claims(self):
        # At 20,000 sessions five standard errors of a mean of logarithms are 5 x 1.4 / sqrt(20000) = 0.05; cutting at the largest shifts it by less.
        for like, fit in make_trace.LIKE.items():
            made = list(make_trace.sessions(like, 20_000, seed=7))
            for key, name in (("input_length", "prompt"), ("output_length", "output")):
                mean, _, most = fit[name]
                self.assertAlmostEqual(mean, sum(math.log(each[key]) for each in made) / len(made), delta=0.1, msg=f"{like} {name}")
                self.assertLessEqual(max(each[key] for each in made), most)
            times = [each["timestamp"] for each in made]
            self.assertEqual(sorted(times), times)
            # A mean gap has a relative standard error of variation / sqrt(n): five of them.
            self.assertAlmostEqual(1, fit["rate"] * times[-1] / 1000 / (len(made) - 1), delta=5 * fit["variation"] / len(made) ** 0.5, msg=like)

    def test_prompts_share_as_much_as_in_the_original(self):
        # Of the original's 288,500 blocks 36.6 % are a prefix that was seen before; every prompt begins with the same one, and 38.7 % share more.
        made = list(make_trace.sessions("mooncake_conversation", 12_000, seed=3))
        seen, blocks, known, continuing = set(), 0, 0, 0
        for record in made:
            names = record["hash_ids"]
            self.assertEqual(-(-record["input_length"] // 512), len(names))
            prefix = next((index for index, name in enumerate(names) if name not in seen), len(names))
            blocks, known, continuing = blocks + len(names), known + prefix, continuing + (prefix > 1)
            seen.update(names)
        self.assertAlmostEqual(0.366, known / blocks, delta=0.06)
        # Prompts of one block cannot share more.
        self.assertAlmostEqual(0.387, continuing / len(made), delta=0.06)
        self.assertEqual({0}, {record["hash_ids"][0] for record in made})
        self.assertNotIn("hash_ids", next(make_trace.sessions("azure_code", 1, 3)))

    def test_the_same_seed_gives_the_same_trace(self):
        self.assertEqual(list(make_trace.sessions("azure_code", 50, 3)), list(make_trace.sessions("azure_code", 50, 3)))
        self.assertNotEqual(list(make_trace.sessions("azure_code", 50, 3)), list(make_trace.sessions("azure_code", 50, 4)))

    def test_another_rate_keeps_lengths_and_scales_gaps(self):
        slow, fast = (list(make_trace.sessions("mooncake_conversation", 500, 1, rate)) for rate in (1.0, 10.0))
        self.assertEqual([each["input_length"] for each in slow], [each["input_length"] for each in fast])
        self.assertAlmostEqual(10, slow[-1]["timestamp"] / fast[-1]["timestamp"], delta=0.1)


def replay_report(interrupted=False, decodes=7, failures=None):
    """Of three sessions with seven calls of Decode."""
    failures = failures or {}
    failed = sum(failures.values())
    return {"run": {"shape": {"layers": 1},
                    "result": {"sent": 3, "ok": 3 - failed, "failed": failed, "failures": failures, "skipped": 0, "interrupted": interrupted},
                    "replay": {"trace": "a.csv", "sessions": 3, "first_token": {"count": 3 - failed}, "prompt_tokens": 17, "forked_tokens": 1, "step": {"count": 4},
                               "calls": {"CreateSequence": {"OK": 2}, "ForkSequence": {"OK": 1}, "Decode": {"OK": decodes}, "DeleteSequences": {"OK": 3}}}}}


def counters(**changes):
    """What a server tells after that replay."""
    values = {"CreateSequence": 2, "ForkSequence": 1, "Decode": 7, "DeleteSequences": 3, "deleted": 3, "expired": 0, "evicted": 0, "idle": 0, "tokens": 20} | changes
    lines = ["# HELP attnd_requests_total Calls."]
    lines += [f'attnd_requests_total{{method="{method}",code="OK"}} {values[method]}' for method in replay_accounts.METHODS]
    lines += [f'attnd_sequences_ended_total{{reason="{reason}"}} {values[reason]}' for reason in ("deleted", "expired", "evicted")]
    lines += ['attnd_sequences{state="active"} 0', f'attnd_sequences{{state="idle"}} {values["idle"]}', f'attnd_batch_tokens_sum {values["tokens"]}']
    return replay_accounts.samples("\n".join(lines))


NOTHING = counters(CreateSequence=0, ForkSequence=0, Decode=0, DeleteSequences=0, deleted=0, tokens=0)


class ReplayAccountsTest(unittest.TestCase):

    def test_what_agrees_has_no_fault(self):
        self.assertEqual([], replay_accounts.faults([replay_report()], NOTHING, counters()))
        before, after = counters(), counters(CreateSequence=6, ForkSequence=3, Decode=21, DeleteSequences=9, deleted=9, tokens=60)
        self.assertEqual([], replay_accounts.faults([replay_report(), replay_report()], before, after), "only what grew counts")

    def test_each_difference_is_told(self):
        for changes, told in (({"Decode": 8}, "Decode, OK: 8 on the server, 7 here"), ({"deleted": 2, "expired": 1}, "sequences expired: 1"),
                              ({"deleted": 2}, "sequences deleted, of those made: 2 on the server, 3 here"), ({"idle": 1}, "sequences idle at the end: 1"),
                              ({"tokens": 21}, "tokens: 21 on the server, 20 here")):
            self.assertIn(told, "; ".join(replay_accounts.faults([replay_report()], NOTHING, counters(**changes))))
        lost = replay_report()
        lost["run"]["result"]["ok"] = 2
        self.assertIn("a.csv: 3 sessions sent, 2 ended OK and 0 failed", replay_accounts.faults([lost], NOTHING, counters()))
        unsent = replay_report()
        unsent["run"]["replay"]["sessions"] = 4
        self.assertIn("a.csv: 4 sessions, 3 sent and 0 skipped", replay_accounts.faults([unsent], NOTHING, counters()))

    def test_a_call_that_was_cancelled_on_its_way_may_or_may_not_have_come(self):
        cut = replay_report(interrupted=True, decodes=6, failures={"CANCELLED": 1})
        cut["run"]["replay"]["calls"]["Decode"]["CANCELLED"] = 1
        for came in (6, 7):
            self.assertEqual([], replay_accounts.faults([cut], NOTHING, counters(Decode=came)))
        for came in (5, 8):
            self.assertIn(f"Decode, OK: {came} on the server, 6 to 7 here", replay_accounts.faults([cut], NOTHING, counters(Decode=came)))


class HelpTest(unittest.TestCase):

    def test_every_script_explains_itself(self):
        scripts = [file for file in SCRIPTS.glob("*.sh") if file.name != "local_server.sh"]
        self.assertGreaterEqual(len(scripts), 5)
        for script in scripts:
            done = subprocess.run([script, "--help"], capture_output=True, text=True, check=False)
            self.assertEqual(0, done.returncode, script.name)
            self.assertIn("What it shows:", done.stdout, script.name)
            self.assertIn("--quick", done.stdout, script.name)
            self.assertEqual(2, subprocess.run([script, "--sideways"], capture_output=True, check=False).returncode, script.name)


if __name__ == "__main__":
    unittest.main()
