#!/usr/bin/env bash
# Throughput of fused attention against the naive backend, and of batching on against off, through the whole service.
#
#   loadtest/scripts/throughput_vs_naive.sh [options]
# What it shows: for prompts of growing length (prefill) and for decode steps of growing numbers of sequences, the tokens a second of
# both sides on the same server and the same tensors, block by block in turn, so that a noisy machine slows both. The ratio has a 95 %
# bootstrap interval. Decode reads a cache that lies in the server; prefill sends its keys along, so the wire is in its figure: compare
# the row `floor` of the report. Exit code 1 where fused is slower than naive with certainty (the whole interval below 1).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=loadtest/scripts/local_server.sh
source loadtest/scripts/local_server.sh
parse_options throughput_vs_naive "$@"

shape=heads=32,kv_heads=8,head_dim=128,type=bf16
prompts=(512 1024 2048 4096 8192 16384) sequences=(1 4 16 64 256) cached=4096 blocks=7 seconds=0.5
if $quick; then
  shape=heads=8,kv_heads=2,head_dim=64,type=bf16
  prompts=(256 512) sequences=(1 4) cached=512 blocks=2 seconds=0.2
fi
scenarios=()
for tokens in "${prompts[@]}"; do
  scenarios+=(--scenario "name=prefill_$tokens,kind=attend,$shape,tokens=$tokens,workers=1")
done
for count in "${sequences[@]}"; do
  scenarios+=(--scenario "name=decode_${count}_sequences,kind=decode,$shape,prompt=$cached,workers=$count,mode=stream")
done

start_server --cache_bytes=0  # the server's default
attnload compare --blocks "$blocks" --block_seconds "$seconds" --json "$out/compare.json" "${scenarios[@]}"
stop_server
python3 loadtest/scripts/report.py --title "Fused against naive" --out "$out/report.html" "$out/compare.json"
echo "$script_name: report in $out/report.html"
python3 - "$out/compare.json" <<'PYTHON'
import json
import sys

slower = [each["name"] for each in json.load(open(sys.argv[1], encoding="utf-8"))["scenarios"] if each["fused_over_naive_interval"]["high_95"] < 1]
if slower:
    sys.exit(f"throughput_vs_naive: fused is slower than naive in {', '.join(slower)}")
PYTHON
