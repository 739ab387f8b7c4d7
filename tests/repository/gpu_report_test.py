#!/usr/bin/env python3
"""scripts/gpu_report.sh with programs that stand in for the card: the shape of its file, the clocks of each row, what it refuses."""

import json
import os
import pathlib
import shutil
import stat
import subprocess
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SCRIPT = ROOT / "scripts/gpu_report.sh"

HEAD = {"commit": "abc", "device": "Tesla T4", "compute_capability": 75, "multiprocessors": 40, "read_gbps": 250.0,
        "m16n8k8_tflops": 40.0, "m16n8k16_tflops": 0.0}
SMI = """#!/bin/bash
# Rises by 1 MHz a sample, as the fifth one caps.
case "$*" in
  *-lms*)
    for ((i = 0; i < 600; i++)); do
      reason=0x0000000000000001; if ((i >= 4)); then reason=0x0000000000000004; fi
      echo "$((1000 + i)), 5000, 69.50, 61, $reason"
      sleep 0.02
    done ;;
  *) echo 'Tesla "T4", GPU-1, 580.1, 15360 MiB, 70.00 W, 70.00 W, 1590 MHz, 5001 MHz, Enabled, [N/A]' ;;
esac
"""
BENCH = """#!/bin/bash
echo "$* devices=$CUDA_VISIBLE_DEVICES" >>"$(dirname "$0")/bench_calls"
for ((i = 1; i <= $#; i++)); do if [[ ${!i} == --json ]]; then next=$((i + 1)); json=${!next}; fi; done
head='HEAD'
echo "$head"
if [[ " $* " == *" --ceilings "* ]]; then sleep 0.3; exit CEILINGS_STATUS; fi
row() { echo "{\\"kernel\\":\\"$1\\",\\"tflops\\":$2,\\"gbps\\":$3,\\"began_unix_s\\":$4,\\"ended_unix_s\\":$5}" >>"$json"; }
echo "$head" >"$json"
began=$EPOCHREALTIME
sleep 0.3
row sm75/prefill_fp16_d64 20.0 10.0 "$began" "$EPOCHREALTIME"
row sm75/decode_mma_fp16_d128 1.0 200.0 "$began" "$EPOCHREALTIME"
row any/decode_dot_fp32_d64 1.0 200.0 1.5 2.5
ROWS_END
"""
TABLE = """#!/bin/bash
echo "[       OK ] A.One$GTEST_SHARD_INDEX (3 ms)"
echo "[  SKIPPED ] A.Skipped (0 ms)"
TABLE_END
"""


class GpuReportTest(unittest.TestCase):

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        self.write("bin/nvidia-smi", SMI)
        self.write("attnbench", BENCH, CEILINGS_STATUS="0", ROWS_END="exit 0")
        self.write("cuda_rows_test", TABLE, TABLE_END="exit 0")

    def write(self, name, text, **values):
        file = self.folder / name
        file.parent.mkdir(exist_ok=True)
        for key, value in {"HEAD": json.dumps(HEAD), **values}.items():
            text = text.replace(key, value)
        file.write_text(text, encoding="utf-8")
        file.chmod(file.stat().st_mode | stat.S_IXUSR)

    def run_script(self, *arguments, path=None):
        """The finished process, and the report or None."""
        out = self.folder / "report.json"
        done = subprocess.run(
            [SCRIPT, "--bench", self.folder / "attnbench", "--test", self.folder / "cuda_rows_test", "--out", out, *arguments],
            env={**os.environ, "PATH": path or f"{self.folder / 'bin'}:{os.environ['PATH']}"}, capture_output=True, text=True,
            check=False, timeout=60)
        return done, json.loads(out.read_text(encoding="utf-8")) if done.returncode < 2 and out.exists() else None

    def without_nvidia_smi(self):
        """A PATH with what the script needs and no nvidia-smi, whatever this machine has."""
        folder = self.folder / "plain"
        folder.mkdir()
        for name in ("bash", "awk", "cat", "date", "dirname", "grep", "head", "mktemp", "nproc", "rm", "sed", "sleep", "sort", "stdbuf",
                     "tail", "timeout", "tr", "wc"):
            (folder / name).symlink_to(shutil.which(name))
        return str(folder)

    def test_a_good_card_gives_one_whole_file(self):
        done, report = self.run_script("--shards", "3")
        self.assertEqual((0, ""), (done.returncode, done.stderr), done.stdout)
        self.assertEqual("Tesla T4", report["card"]["name"])
        self.assertEqual("580.1", report["card"]["driver_version"])
        self.assertIsNone(report["card"]["persistence_mode"])
        self.assertEqual({**HEAD, "clocks": report["ceilings"]["clocks"]}, report["ceilings"])
        self.assertEqual((3, 0, 3, 0, 0, []), tuple(report["case_table"][name] for name in (
            "passed", "failed", "skipped", "unfinished_processes", "broken_processes", "failures")))
        self.assertEqual((True, 0, 3), (report["rows_complete"], report["rows_wrong"], len(report["rows"])))
        calls = (self.folder / "bench_calls").read_text(encoding="utf-8").splitlines()
        self.assertIn("--device=cuda --ceilings", calls[0])
        self.assertIn("--filter ^sm75/", calls[1])
        self.assertTrue(all(call.endswith("devices=0") for call in calls), calls)

    def test_in_a_bundle_it_finds_its_programs_and_the_prediction(self):
        place = self.folder / "bundle/share/attnd"
        (place / "tests").mkdir(parents=True)
        (self.folder / "bundle/bin").mkdir()
        shutil.copy(SCRIPT, place)
        shutil.copy(ROOT / "docs/kernels/sm75.md", place)
        shutil.copy(self.folder / "cuda_rows_test", place / "tests")
        shutil.copy(self.folder / "attnbench", self.folder / "bundle/bin")
        done = subprocess.run([place / "gpu_report.sh", "--shards", "1"], cwd=self.folder, capture_output=True, text=True, check=False, timeout=60,
                              env={**os.environ, "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"})
        self.assertEqual((0, ""), (done.returncode, done.stderr))
        report = json.loads((self.folder / "gpu_report.json").read_text(encoding="utf-8"))
        self.assertIn("t4_predicted_share", report["rows"][0])
        install = (ROOT / "cmake/install.cmake").read_text(encoding="utf-8")
        for name in ("scripts/gpu_report.sh", "docs/kernels/sm75.md", "docs/t4.md"):
            self.assertRegex(install, rf"install\((PROGRAMS|FILES)[^)]*{name}[^)]*DESTINATION share/attnd COMPONENT gpu_tests")

    def test_every_row_has_the_clocks_of_its_own_seconds(self):
        _, report = self.run_script("--shards", "1")
        prefill, decode, other = report["rows"]
        first = report["ceilings"]["clocks"]
        clocks = prefill["clocks"]
        self.assertGreaterEqual(clocks["samples"], 3)
        self.assertGreater(clocks["sm_mhz_min"], first["sm_mhz"])  # the clock rises all the time
        self.assertGreaterEqual(clocks["sm_mhz"], clocks["sm_mhz_min"])
        self.assertEqual((5000, 69.5, 61), (clocks["memory_mhz"], clocks["watts"], clocks["celsius"]))
        self.assertEqual(["0x0000000000000004"], clocks["throttle"])
        self.assertEqual(["0x0000000000000001", "0x0000000000000004"], first["throttle"])
        self.assertEqual(clocks["sm_mhz_min"], decode["clocks"]["sm_mhz_min"])
        self.assertIsNone(other["clocks"])  # a second in which nobody looked

    def test_rows_stand_beside_the_prediction_of_the_page(self):
        _, report = self.run_script("--shards", "1")
        prefill, decode, other = report["rows"]
        page = (ROOT / "docs/kernels/sm75.md").read_text(encoding="utf-8")
        self.assertIn(f" | {100 * prefill['t4_predicted_share']:.0f} % | ", page)
        self.assertAlmostEqual(20e6 / (40 * 1024 * prefill["clocks"]["sm_mhz"]), prefill["tensor_share_at_clock"], places=2)
        self.assertIn(f"Predicted: {100 * decode['t4_predicted_share']:.0f} % of what a plain read", page)
        self.assertEqual(0.8, decode["read_share"])
        self.assertNotIn("t4_predicted_share", other)

    def test_a_card_other_than_turing_has_no_share_of_turings_pipe(self):
        self.write("attnbench", BENCH, HEAD=json.dumps({**HEAD, "compute_capability": 90}), CEILINGS_STATUS="0", ROWS_END="exit 0")
        _, report = self.run_script("--shards", "1")
        self.assertNotIn("tensor_share_at_clock", report["rows"][0])

    def test_without_nvidia_smi_there_are_no_clocks(self):
        done, report = self.run_script("--shards", "1", path=self.without_nvidia_smi())
        self.assertEqual(0, done.returncode, done.stderr)
        self.assertIn("no nvidia-smi", done.stderr)
        self.assertIsNone(report["card"])
        self.assertTrue(all(row["clocks"] is None for row in report["rows"]))

    def test_a_failed_case_is_named_and_fails(self):
        self.write("cuda_rows_test", TABLE, TABLE_END='echo "[  FAILED  ] A.Two, where GetParam() = 4 (5 ms)"; exit 1')
        done, report = self.run_script("--shards", "1")
        self.assertEqual(1, done.returncode)
        self.assertEqual((1, ["A.Two"]), (report["case_table"]["failed"], report["case_table"]["failures"]))
        self.assertIn("A.Two", done.stderr)

    def test_a_table_that_dies_or_takes_too_long_fails(self):
        self.write("cuda_rows_test", TABLE, TABLE_END="kill -SEGV $$")
        done, report = self.run_script("--shards", "2")
        self.assertEqual((1, 2, 0), (done.returncode, report["case_table"]["broken_processes"], report["case_table"]["failed"]))
        self.write("cuda_rows_test", TABLE, TABLE_END="exec sleep 30")
        start = time.monotonic()
        done, report = self.run_script("--shards", "2", "--limit", "1")
        self.assertLess(time.monotonic() - start, 20)
        self.assertEqual((1, 2), (done.returncode, report["case_table"]["unfinished_processes"]))
        self.assertIn("not done in 1 s", done.stderr)

    def test_a_wrong_row_fails_and_the_others_are_kept(self):
        self.write("attnbench", BENCH, CEILINGS_STATUS="0", ROWS_END="echo 'sm75/prefill/x WRONG: error 3'; exit 1")
        done, report = self.run_script("--shards", "1")
        self.assertEqual((1, False, 1, 3), (done.returncode, report["rows_complete"], report["rows_wrong"], len(report["rows"])))
        self.assertIn("WRONG: error 3", done.stderr)

    def test_a_row_that_was_cut_short_is_left_out(self):
        self.write("attnbench", BENCH, CEILINGS_STATUS="0", ROWS_END="printf '{\"kernel\":\"sm75/' >>\"$json\"; kill -KILL $$")
        done, report = self.run_script("--shards", "1")
        self.assertEqual((1, 3), (done.returncode, len(report["rows"])))

    def test_a_machine_without_a_card_says_so_and_leaves_no_file(self):
        self.write("attnbench", "#!/bin/bash\necho 'attnbench: CUDA device: no CUDA-capable device is detected' >&2; exit 1\n")
        done, _ = self.run_script()
        self.assertEqual(1, done.returncode)
        self.assertIn("no CUDA-capable device", done.stderr)
        self.assertFalse((self.folder / "report.json").exists())

    def test_wrong_arguments_are_refused_by_name(self):
        for arguments, told in ((["--fast"], "unknown argument '--fast'"), (["--gpu", "one"], "--gpu: got 'one'"),
                                (["--shards", "0"], "--shards: got '0'"), (["--limit", "-1"], "--limit: got '-1'"),
                                (["--bench", "/no/such/program"], "/no/such/program is not there"),
                                (["--test", "/no/such/program"], "/no/such/program is not there"),
                                (["--out", "/no/such/folder/file"], "cannot write /no/such/folder/file")):
            done, _ = self.run_script(*arguments)
            self.assertEqual(2, done.returncode, arguments)
            self.assertIn(told, done.stderr)
        self.assertFalse((self.folder / "bench_calls").exists())

    def test_help_is_the_head_of_the_script(self):
        done, _ = self.run_script("--help")
        self.assertEqual(0, done.returncode)
        self.assertIn("docs/t4.md", done.stdout)


if __name__ == "__main__":
    unittest.main()
