#!/usr/bin/env bash
# Traffic with the arrivals and lengths of a recorded trace.
#
#   loadtest/scripts/trace_replay.sh [options]
#     ATTND_TRACE names traces of your own, separated by spaces: .csv as Azure's LLM inference traces, .jsonl as Mooncake's. Without it a made-up one with
#     the statistics of Azure's conversations is replayed (make_trace.py)
#     ATTND_TRACE_FLAGS: more flags of attnload replay, for example "--speed 0.5 --length_scale 0.1 --sessions 500"
#     ATTND_TRACE_SCENARIO: shape and layers, instead of kind=decode,heads=32,kv_heads=8,head_dim=128,type=bf16,layers=4
#     ATTND_TRACE_INTERRUPT=SECONDS: each replay is ended by SIGINT (Ctrl-C) then, and reports what it has
# What it shows: whole sessions, each arriving when it did: latency from the time due, time to the first token, time of each further token, and how many
# sessions the server carries at once (skipped: more than 256 were under way). Bursts and long prompts beside short steps are what makes this harder than a
# steady load of the same mean. Fails where the server's counters differ from what attnload counted (replay_accounts.py), or a sequence is left.
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
scenario=${ATTND_TRACE_SCENARIO:-$scenario}
read -r -a more <<<"${ATTND_TRACE_FLAGS:-}"
read -r -a traces <<<"${ATTND_TRACE:-}"
if ((${#traces[@]} == 0)); then
  traces=("$out/made_up.jsonl")
  python3 loadtest/scripts/make_trace.py --like azure_conversation --sessions "$sessions" --out "${traces[0]}"
fi

start_server --cache_bytes=0  # the server's default
metrics_page >"$out/before.txt"
reports=()
for trace in "${traces[@]}"; do
  report=$out/replay_${#reports[@]}.json
  reports+=("$report")
  replay=(--trace "$trace" --scenario "$scenario" "${flags[@]}" "${more[@]}" --json "$report")
  if [[ -z ${ATTND_TRACE_INTERRUPT:-} ]]; then
    attnload replay "${replay[@]}"
  else
    status=0
    timeout --preserve-status --signal=INT "$ATTND_TRACE_INTERRUPT" "$build/loadtest/attnload" \
      replay --server "$server" --admin "$admin" --no_progress "${replay[@]}" || status=$?
    if ((status != 130)); then fail "attnload ended with exit code $status on SIGINT, not 130"; fi
  fi
done
sleep 1  # until the server has counted what was cancelled
metrics_page >"$out/after.txt"
stop_server
python3 loadtest/scripts/report.py --title "Traffic of a trace" --out "$out/report.html" "${reports[@]}"
echo "$script_name: report in $out/report.html"
python3 loadtest/scripts/replay_accounts.py --before "$out/before.txt" --after "$out/after.txt" "${reports[@]}"
