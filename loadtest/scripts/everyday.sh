#!/usr/bin/env bash
# What clients do all day, one scenario after the other: loadtest/scenarios/everyday.yaml.
#
#   loadtest/scripts/everyday.sh [options]
#     ATTND_RATE sets the rate of scenarios that have one (default: their own, which are for a GPU; --quick: 20)
# What it shows: latency, tokens a second and the server's batches for a chat with many readers, long contexts, bursts, speculative decoding with
# rollback, and an engine that batches by itself; for each its goodput within ATTND_SLO_MS (default 50). Exit code 1 where a request of any scenario
# fails, or a scenario leaves a sequence behind.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=loadtest/scripts/local_server.sh
source loadtest/scripts/local_server.sh
parse_options everyday "$@"

readonly FILE=loadtest/scenarios/everyday.yaml
seconds=30 warmup=4 rate=${ATTND_RATE:-}
# Whole bursts: one second of four.
if $quick; then seconds=4 warmup=0 rate=${ATTND_RATE:-20}; fi

# Names with a rate of their own, and those without.
mapfile -t scenarios < <(awk '$1 == "-" && $2 == "name:" { if (name) print name, rate; name = $3; rate = "closed" }
  $1 == "rate:" { rate = "open" } END { print name, rate }' "$FILE")
((${#scenarios[@]} > 1)) || fail "no scenarios in $FILE"

start_server --cache_bytes=0  # the server's default
rm -f "$out"/scenario_*.json
for scenario in "${scenarios[@]}"; do
  name=${scenario% *}
  arguments=(--scenarios "$FILE" --name "$name" --duration "$seconds" --warmup "$warmup" --no_floor --slo_ms "${ATTND_SLO_MS:-50}")
  if [[ $scenario == *open && -n $rate ]]; then arguments+=(--rate "$rate"); fi
  attnload run "${arguments[@]}" --json "$out/scenario_$name.json" || fail "the scenario $name ended badly"
  left=$(metric 'attnd_sequences{state="idle"}')
  [[ $left == 0 ]] || fail "the scenario $name left $left sequences behind"
done
stop_server
python3 loadtest/scripts/report.py --title "Everyday work" --out "$out/report.html" "$out"/scenario_*.json
echo "$script_name: ${#scenarios[@]} scenarios, report in $out/report.html"
