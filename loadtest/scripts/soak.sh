#!/usr/bin/env bash
# Hours of ordinary work: does anything grow that should not?
#
#   loadtest/scripts/soak.sh [options]
#     ATTND_SOAK_MINUTES sets the length (default 60; --quick: a third of a minute)
# What it shows: rounds of decode streams, unary steps and prompts, each round with new connections and new sequences; after each round, with nothing
# in flight, the server's memory, threads, file descriptors, live sequences and pages in use, and the round's p99. The first quarter is warm-up: arenas
# and caches fill. Exit code 1 where from then to the end memory grows by more than 64 MiB, or threads or descriptors by more than 8, or where after a
# round a sequence or a request is left. Needs a server on this machine.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=loadtest/scripts/local_server.sh
source loadtest/scripts/local_server.sh
parse_options soak "$@"
if [[ -n $server ]]; then fail "--server: memory and threads are read from /proc, so the server must be this script's own"; fi

minutes=${ATTND_SOAK_MINUTES:-60} round=20
shape=heads=32,kv_heads=8,head_dim=128,type=bf16
if $quick; then
  minutes=${ATTND_SOAK_MINUTES:-0.34} round=1
  shape=heads=8,kv_heads=2,head_dim=64,type=bf16
fi
end=$(python3 -c 'import sys, time; print(int(time.time() + 60 * float(sys.argv[1])))' "$minutes")

start_server --cache_bytes=0  # the server's default
rm -f "$out/samples.jsonl"
while (($(date +%s) < end)); do
  attnload run --scenario "kind=decode,$shape,prompt=512,mode=stream,workers=8" --duration "$round" --warmup 0 --no_floor --json "$out/round.json" >"$out/round.txt" ||
    fail "a round of streams failed" "$out/round.txt"
  attnload run --scenario "kind=decode,$shape,prompt=256,sequences=2,workers=4" --duration "$round" --warmup 0 --no_floor >"$out/round.txt" ||
    fail "a round of unary steps failed" "$out/round.txt"
  attnload run --scenario "kind=attend,$shape,tokens=128,workers=2" --duration "$round" --warmup 0 --no_floor >"$out/round.txt" ||
    fail "a round of prompts failed" "$out/round.txt"
  python3 loadtest/scripts/soak_sample.py --pid "$server_pid" --admin "$admin" --round "$out/round.json" >>"$out/samples.jsonl"
done
stop_server
python3 loadtest/scripts/report.py --title "Soak" --out "$out/report.html" "$out/samples.jsonl"
echo "$script_name: report in $out/report.html"
python3 loadtest/scripts/soak_sample.py --judge "$out/samples.jsonl"
