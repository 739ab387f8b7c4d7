"""scripts/hbm_model.py: which launches agree with the cost model, which lie inside its stated bounds, and which fail the check."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
MB = 1_000_000


def line(operation, model_read=1000, min_read=1000, max_read=None):
    shape = {"op": operation, "kernel": f"any/{operation}", "shape": {}, "min_read_bytes": min_read * MB, "min_write_bytes": 100 * MB,
             "model_read_bytes": model_read * MB, "model_write_bytes": 100 * MB}
    return shape if max_read is None else {**shape, "max_read_bytes": max_read * MB}


def check(lines, counted):
    """(exit code, the classes) for lines and the (read, written) megabytes that were counted of each."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder)
        head = {"l2_bytes": 60 * MB}
        (path / "model.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in (head, *lines)), encoding="utf-8")
        rows, number = ["ID,Kernel Name,Metric Name,Metric Value"], 0
        # Quoted, as the profiler writes it.
        rows[0] = ",".join(f'"{name}"' for name in rows[0].split(","))
        for read, written in counted:
            for kernel, values in (("ReadAllKernel", (512, 0)), ("OwnKernel", (read, written)), ("ReadAllKernel", (512, 0))):
                for name, value in zip(("dram__bytes_read.sum", "dram__bytes_write.sum"), values):
                    rows.append(f'"{number}","{kernel}","{name}","{value * MB:,}"')
                number += 1
        (path / "counters.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
        run = subprocess.run([sys.executable, str(ROOT / "scripts/hbm_model.py"), *(str(path / name) for name in
                              ("model.jsonl", "counters.csv", "out.jsonl"))], capture_output=True, text=True, check=False)
        if not (path / "out.jsonl").exists():
            raise AssertionError(run.stderr)
        results = [json.loads(text) for text in (path / "out.jsonl").read_text(encoding="utf-8").splitlines()[1:]]
        return run.returncode, [result.get("class") for result in results]


class HbmModelTest(unittest.TestCase):
    def test_within_five_percent_agrees(self):
        self.assertEqual(check([line("decode"), line("decode")], [(1050, 100), (950, 100)]), (0, ["agrees", "agrees"]))

    def test_decode_beyond_five_percent_is_off(self):
        self.assertEqual(check([line("decode")], [(1070, 100)]), (1, ["off"]))

    def test_prefill_may_lie_between_its_bounds(self):
        self.assertEqual(check([line("prefill", max_read=9000)], [(1600, 120)]), (0, ["bounded"]))

    def test_prefill_outside_its_bounds_is_off(self):
        below, above = (800, 100), (1350, 100)
        self.assertEqual(check([line("prefill", max_read=9000), line("prefill", max_read=1200)], [below, above]), (1, ["off", "off"]))

    def test_more_than_a_factor_of_two_or_much_written_is_off(self):
        far, written = (2300, 100), (1300, 140)
        self.assertEqual(check([line("prefill", max_read=9000)] * 2, [far, written]), (1, ["off", "off"]))

    def test_a_small_working_set_is_not_judged(self):
        self.assertEqual(check([line("decode", model_read=10, min_read=10)], [(90, 100)]), (0, [None]))


if __name__ == "__main__":
    unittest.main()
