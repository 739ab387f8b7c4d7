#!/usr/bin/env bash
# Traffic with the arrivals and lengths of a recorded trace.
#
#   loadtest/scripts/trace_replay.sh [options]
#     ATTND_TRACE names a trace of your own: .csv as Azure's LLM inference traces, .jsonl as Mooncake's. Without it a made-up one with the statistics of
#     Azure's conversations is replayed (make_trace.py)
#     ATTND_TRACE_FLAGS: more flags of attnload replay, for example "--speed 0.5 --length_scale 0.1 --sessions 500"
# What it shows: whole sessions, each arriving when it did: latency from the time due, time to the first token, time of each further token, and how many
# sessions the server carries at once (skipped: more than 256 were under way). Bursts and long prompts beside short steps are what makes this harder than a
# steady load of the same mean.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=loadtest/scripts/local_server.sh
source loadtest/scripts/local_server.sh
parse_options trace_replay "$@"

scenario=kind=decode,heads=32,kv_heads=8,head_dim=128,type=bf16,layers=4
sessions=500 flags=()
if $quick; then
  scenario=kind=decode,heads=8,kv_heads=2,head_dim=64,type=bf16,layers=1
  sessions=20 flags=(--speed 4 --length_scale 0.1)
fi
read -r -a more <<<"${ATTND_TRACE_FLAGS:-}"
trace=${ATTND_TRACE:-}
if [[ -z $trace ]]; then
  trace=$out/made_up.jsonl
  python3 loadtest/scripts/make_trace.py --like azure_conversation --sessions "$sessions" --out "$trace"
fi

start_server --cache_bytes=0  # the server's default
attnload replay --trace "$trace" --scenario "$scenario" "${flags[@]}" "${more[@]}" --json "$out/replay.json"
left=$(metric 'attnd_sequences{state="idle"}')
stop_server
python3 loadtest/scripts/report.py --title "Traffic of a trace" --out "$out/report.html" "$out/replay.json"
echo "$script_name: report in $out/report.html"
if [[ $left != 0 ]]; then fail "$left sequences are left after the last session"; fi
