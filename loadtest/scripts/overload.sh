#!/usr/bin/env bash
# What a server does when it is asked for several times what it can do.
#
#   loadtest/scripts/overload.sh [options]
# What it shows: the capacity by a closed loop, then four times that rate in an open loop, against a short queue. A good server refuses at once what
# it has no room for (RESOURCE_EXHAUSTED, with a delay to retry after), keeps answering close to its capacity, stays ready, and is back to an empty
# queue as soon as the load ends. Exit code 1 where it answers less than three tenths of its capacity under overload (on one machine the
# load generator takes its part), fails with another code, is not ready afterwards, or keeps requests in its queue.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=loadtest/scripts/local_server.sh
source loadtest/scripts/local_server.sh
parse_options overload "$@"

# Steps over a long cache: the server's part is large and the load generator's small, so that both fit on one machine.
scenario=name=decode,kind=decode,heads=32,kv_heads=8,head_dim=128,type=bf16,prompt=4096,workers=8
seconds=20
if $quick; then
  scenario=name=decode,kind=decode,heads=32,kv_heads=8,head_dim=128,type=bf16,prompt=2048,workers=4
  seconds=2
fi

start_server --max_queue_requests=8
attnload run --scenario "$scenario" --duration "$seconds" --no_floor --json "$out/capacity.json" >"$out/capacity.txt"
rate=$(python3 -c 'import json, sys; print(4 * json.load(open(sys.argv[1]))["run"]["result"]["ok_requests_per_second"])' "$out/capacity.json")
attnload run --scenario "$scenario" --rate "$rate" --duration "$seconds" --no_floor --max_failure_ratio 1 --max_in_flight 64 \
  --json "$out/overload.json" || fail "the run under overload ended badly"

depth=$(metric attnd_queue_depth) ready=$(metric attnd_ready)
stop_server
python3 loadtest/scripts/report.py --title "Overload" --out "$out/report.html" "$out/capacity.json" "$out/overload.json"
echo "$script_name: report in $out/report.html"
if [[ $depth != 0 ]]; then fail "$depth requests are left in the queue after the load"; fi
if [[ $ready != 1 ]]; then fail "the server is not ready after the load"; fi
python3 - "$out/capacity.json" "$out/overload.json" <<'PYTHON'
import json
import sys

capacity, overload = (json.load(open(name, encoding="utf-8"))["run"]["result"] for name in sys.argv[1:])
other = {name: count for name, count in overload["failures"].items() if not name.startswith("RESOURCE_EXHAUSTED")}
share = overload["ok_requests_per_second"] / capacity["ok_requests_per_second"]
print(f"overload: {overload['ok_requests_per_second']:.0f} of {capacity['ok_requests_per_second']:.0f} requests/s answered ({share:.0%}), "
      f"{overload['failed']} refused")
if other:
    sys.exit(f"overload: failures other than RESOURCE_EXHAUSTED: {other}")
if not overload["failed"]:
    sys.exit("overload: nothing was refused: this was no overload")
if share < 0.3:
    sys.exit("overload: the server answers less than three tenths of its capacity")
PYTHON
