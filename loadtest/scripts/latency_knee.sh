#!/usr/bin/env bash
# Latency against offered load, up to the knee where it leaves the floor.
#
#   loadtest/scripts/latency_knee.sh [options]
# What it shows: first the capacity, by a closed loop; then open loops at growing shares of it, Poisson arrivals, latency counted from the time at
# which a request was due. Below the knee p99 stays near its value at the lowest rate, above it the queue grows for as long as the run lasts. The
# knee that is printed is the highest rate whose p99 is at most three times that of the lowest rate and whose answers keep up with the offer (95 %).
# `lag` is how late attnload itself sent: where it is no small part of the latency, the machine of the load generator is the limit.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=loadtest/scripts/local_server.sh
source loadtest/scripts/local_server.sh
parse_options latency_knee "$@"

scenario=name=decode,kind=decode,heads=32,kv_heads=8,head_dim=128,type=bf16,prompt=4096,mode=stream,workers=64
shares=(5 10 20 30 40 50 60 70 80 90 100 110) seconds=10 warmup=2
if $quick; then
  scenario=name=decode,kind=decode,heads=8,kv_heads=2,head_dim=64,type=bf16,prompt=512,mode=stream,workers=8
  shares=(10 50 120) seconds=1 warmup=0.3
fi

start_server --cache_bytes=0  # the server's default
attnload run --scenario "$scenario" --duration "$seconds" --warmup "$warmup" --json "$out/capacity.json" >"$out/capacity.txt"
capacity=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["run"]["result"]["ok_requests_per_second"])' "$out/capacity.json")
printf 'capacity: %.0f requests/s in a closed loop\n' "$capacity"

rm -f "$out"/rate_*.json
for share in "${shares[@]}"; do
  rate=$(python3 -c 'import sys; print(max(1, float(sys.argv[1]) * float(sys.argv[2]) / 100))' "$capacity" "$share")
  # Failures are part of what is measured beyond capacity.
  attnload run --scenario "$scenario" --rate "$rate" --duration "$seconds" --warmup "$warmup" --no_floor --max_failure_ratio 1 --max_in_flight 1024 \
    --json "$(printf '%s/rate_%03d.json' "$out" "$share")" >"$out/rate.txt" || fail "the run at $share % ended badly" "$out/rate.txt"
done
stop_server
python3 loadtest/scripts/report.py --title "Latency against load" --out "$out/report.html" "$out/capacity.json" "$out"/rate_*.json
python3 loadtest/scripts/report.py --knee "$out"/rate_*.json
echo "$script_name: report in $out/report.html"
