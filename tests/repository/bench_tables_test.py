#!/usr/bin/env python3
"""The benchmark pages show what their recorded runs say, and the generator notices where they do not."""

import json
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import bench_tables  # noqa: E402  (the folder is not a package)
import t4_budget  # noqa: E402

HEAD = {"commit": "abc", "command": "attnbench", "device": "a CPU", "date": "2026-01-02T03:04:05Z"}
LINE = {
    "op": "prefill", "kernel": "cpu/x", "dtype": "bf16", "ms": 2.0, "tflops": 0.1, "gbps": 1.0, "floor_ms": 1.5,
    "fraction_of_floor": 0.75, "binding_unit": "bf16_dot", "naive_ms": 5.0, "workspace_bytes": 2**20,
    "shape": {"sequences": 1, "query_length": 8, "kv_length": 8, "num_heads": 2, "num_kv_heads": 1, "head_dim": 64,
              "causal": True, "window_left": -1},
}


class BenchTablesTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        pages = pathlib.Path(self.folder.name)
        (pages / "data").mkdir()
        lines = [HEAD, LINE, LINE | {"dtype": "fp32", "naive_ms": None, "ms": 7.0}]
        (pages / "data" / "run.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        self.addCleanup(setattr, bench_tables, "PAGES", bench_tables.PAGES)
        bench_tables.PAGES = pages

    def test_a_table_holds_the_lines_that_match(self):
        page = "before\n<!-- table: run.jsonl dtype=bf16 head_dim=64 causal=true -->\nold\n<!-- end table -->\nafter\n"
        text = bench_tables.regenerate(page)
        self.assertIn("| 1 x 8, 2/1 heads, d 64, causal | bf16 | `cpu/x` | 2 | 0.1 | 75 % | bf16_dot | 5 | 2.50x |", text)
        self.assertNotIn("fp32", text)
        self.assertNotIn("old", text)
        self.assertIn("a CPU, 2026-01-02, commit abc: `attnbench`", text)
        self.assertEqual(text, bench_tables.regenerate(text))

    def test_any_peer_of_the_data_is_a_column(self):
        line = LINE | {"kernel": "sm80/x", "flash_ms": 3.0, "eager_ms": 8.0, "eager_extra_bytes": 3 * 2**20}
        (bench_tables.PAGES / "data" / "run.jsonl").write_text("\n".join(map(json.dumps, [HEAD, LINE, line])), encoding="utf-8")
        text = bench_tables.table("run.jsonl kernel=sm80/* columns=ms,flash_tflops,over_flash,eager_ms,eager_extra")
        self.assertIn("| ms | flash TFLOP/s | over flash | eager ms | extra MiB, eager |", text)
        self.assertIn("| 2 | 0.06667 | 1.50x | 8 | 3.0 |", text)
        self.assertIn("over flash: 1.50x at least", text)
        with self.assertRaises(SystemExit):
            bench_tables.table("run.jsonl columns=nothing")

    def test_a_value_that_was_not_measured_is_a_dash(self):
        text = bench_tables.table("run.jsonl dtype=fp32 columns=ms,naive_ms,over_naive")
        self.assertIn("| 7 | - | - |", text)

    def test_a_load_report_is_a_line(self):
        latency = {"p50_us": 150.0, "p99_us": 300.0}
        report = {
            "command": "attnload run", "date": "2026-01-02T03:04:05Z", "machine": {"cpu": "a CPU"},
            "server": {"commit": "abc"},
            "run": {"shape": {"kind": "decode", "type": "bf16", "sequences": 1, "prompt": 64, "heads": 8, "kv_heads": 4,
                              "head_dim": 32},
                    "result": {"kernels": ["cpu/a", "cpu/b"], "latency": latency, "kernel_time": {"p50_us": 9.5}},
                    "floor": {"latency": {"p50_us": 120.25, "p99_us": 200.0}}},
        }
        (bench_tables.PAGES / "data" / "step.json").write_text(json.dumps(report), encoding="utf-8")
        text = bench_tables.table("step.json columns=shape,dtype,kernel,p50,p99,floor_p50,floor_p99,kernel_p50,overhead")
        self.assertIn("| 1 step on 64, 8/4 heads, d 32 | bf16 | `cpu/a`, `cpu/b` | 150.0 | 300.0 | 120.2 | 200.0 | 9.5 "
                      "| 20.2 |", text)
        self.assertIn("a CPU, 2026-01-02, commit abc: `attnload run`", text)

    def test_a_table_without_lines_is_an_error(self):
        with self.assertRaises(SystemExit):
            bench_tables.table("run.jsonl dtype=fp16")

    def test_a_file_without_its_origin_is_an_error(self):
        (bench_tables.PAGES / "data" / "bare.jsonl").write_text(json.dumps(LINE) + "\n", encoding="utf-8")
        with self.assertRaises(SystemExit):
            bench_tables.table("bare.jsonl op=prefill")


class ComparisonTableTest(unittest.TestCase):
    def test_service_and_kernels_stand_apart(self):
        side = {"tokens_per_second": 1234.4, "kernel_p50_us": 50.0, "p50_us": 900.0}
        report = {
            "server": {"commit": "abc", "devices": [{"name": "a GPU"}]}, "command": "attnload compare", "date": "2026-01-02T03:04:05Z",
            "scenarios": [{"name": "decode", "shape": {}, "fused": side, "naive": side | {"kernel_p50_us": 150.0},
                           "floor_p50_us": 800.0, "batching_on_over_off": None,
                           "fused_over_naive_interval": {"median": 1.5, "low_95": 1.25, "high_95": 1.75}}],
        }
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        pages = pathlib.Path(folder.name)
        (pages / "data").mkdir()
        (pages / "data" / "run.json").write_text(json.dumps(report), encoding="utf-8")
        self.addCleanup(setattr, bench_tables, "PAGES", bench_tables.PAGES)
        bench_tables.PAGES = pages
        text = bench_tables.table(
            "run.json columns=scenario,fused_rate,service_over_naive,kernel_over_naive,fused_p50,floor_p50,batching")
        self.assertIn("| decode | 1,234 | 1.50x [1.25, 1.75] | 3.00x | 900.0 | 800.0 | - |", text)
        self.assertIn("a GPU, 2026-01-02, commit abc: `attnload compare`.", text)


class CommittedPagesTest(unittest.TestCase):
    def test_pages_show_their_data(self):
        for page in sorted(bench_tables.PAGES.glob("*.md")):
            with self.subTest(page.name):
                text = page.read_text(encoding="utf-8")
                self.assertEqual(bench_tables.regenerate(text), text, "run scripts/bench_tables.py")

    def test_the_t4_budget_shows_its_data(self):
        text = t4_budget.PAGE.read_text(encoding="utf-8")
        self.assertEqual(t4_budget.regenerate(text), text, "run scripts/t4_budget.py")
        self.assertIn("prefill_fp16_d128", text)


if __name__ == "__main__":
    unittest.main()
