#!/usr/bin/env bash
# How many decode steps a second go through one stream, and what of that is transport.
#
#   loadtest/scripts/stream_rate.sh [options]
#     ATTND_RATE sets the rate offered in the open loop (default 20000 steps/s; --quick: 1000)
# What it shows: steps of 12 KiB in and 8 KiB out on sequences of a few cached tokens, so that the kernels' part is small, 16 in flight on one
# DecodeStream. First the floor, the same bytes through an echo server; then the server in a closed loop; then in an open loop with Poisson arrivals,
# with the lag of the load generator itself. The last line is the share of the floor that the server reaches in the closed loop, the floor measured
# before and after it. Exit code 1 where a run breaks.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=loadtest/scripts/local_server.sh
source loadtest/scripts/local_server.sh
parse_options stream_rate "$@"

scenario=name=stream,kind=decode,heads=32,kv_heads=8,head_dim=128,type=bf16,prompt=1,steps=16,mode=stream,workers=16
seconds=5 rate=${ATTND_RATE:-20000}
if $quick; then seconds=1 rate=${ATTND_RATE:-1000}; fi

floor() {
  "$build/loadtest/attnload" floor --scenario "$scenario" --duration "$seconds" --no_progress --json "$out/$1.json" >"$out/$1.txt" ||
    fail "the floor could not be measured" "$out/$1.txt"
}

start_server --cache_bytes=0  # the server's default
floor floor_before
attnload run --scenario "$scenario" --duration "$seconds" --no_floor --json "$out/closed.json" >"$out/closed.txt" || fail "the closed loop ended badly" "$out/closed.txt"
floor floor_after
# What cannot be sent is part of the answer.
attnload run --scenario "$scenario" --rate "$rate" --max_in_flight 16 --duration "$seconds" --no_floor --max_failure_ratio 1 --json "$out/open.json" \
  >"$out/open.txt" || fail "the open loop ended badly" "$out/open.txt"
stop_server
python3 loadtest/scripts/report.py --title "Steps through one stream" --out "$out/report.html" "$out/closed.json" "$out/open.json"
echo "$script_name: report in $out/report.html"
python3 - "$out" <<'PYTHON'
import json
import pathlib
import sys

folder = pathlib.Path(sys.argv[1])


def read(name):
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


floors = [read(name)["floors"][0]["requests_per_second"] for name in ("floor_before", "floor_after")]
closed, opened = (read(name)["run"] for name in ("closed", "open"))
result = opened["result"]
print(f"floor: {floors[0]:.0f} and {floors[1]:.0f} calls/s")
print(f"open loop: {result['ok_requests_per_second']:.0f} of {opened['offered_requests_per_second']:.0f} steps/s offered, {result['skipped']} skipped, "
      f"lag p99 {result['schedule_lag']['p99_us']:.0f} us, latency p99 {result['latency']['p99_us']:.0f} us")
rate = closed["result"]["ok_requests_per_second"]
print(f"closed loop: {rate:.0f} steps/s in batches of {closed['result']['mean_batch_requests']:.1f}, {2 * rate / sum(floors):.0%} of the floor")
PYTHON
