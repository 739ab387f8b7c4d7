#!/usr/bin/env bash
# Fused against naive through the whole service on this machine's GPU: starts a server, runs `attnload compare`, stops the server.
#
#   scripts/gpu_serve_bench.sh [--device cuda:0] [--workspace SIZE] [--scenarios FILE] [--blocks N] [--json FILE]
#     --device NAME     as attnd's flag (default: cuda:0)
#     --workspace SIZE  as attnd's --workspace_bytes: naive's scores of the longest prompt must fit (default: 8GiB; the card
#                       needs twice that beside the cache)
#     --scenarios FILE  default: scenarios/gpu.yaml (beside it gpu_grid.yaml: by prompt length and number of sequences)
#     --blocks N        blocks of one second a side (default: 6)
#     --json FILE       the report (default: gpu_service.json)
#
# Programs come from the bundle that holds this script (scripts/bundle.sh), in a source tree from build/cuda. The naive side needs
# cuBLAS: put the folder of libcublas.so.13 into LD_LIBRARY_PATH.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if [[ -x $here/../../bin/attnd ]]; then
  attnd=$here/../../bin/attnd attnload=$here/../../bin/attnload scenarios=$here/scenarios/gpu.yaml
else
  root=$(dirname "$here")
  attnd=$root/build/cuda/server/attnd attnload=$root/build/cuda/loadtest/attnload scenarios=$root/loadtest/scenarios/gpu.yaml
fi
device=cuda:0 workspace=8GiB blocks=6 json=gpu_service.json
while (($#)); do
  case "$1" in
    --device) device=${2:?--device needs a name}; shift 2 ;;
    --workspace) workspace=${2:?--workspace needs a size}; shift 2 ;;
    --scenarios) scenarios=${2:?--scenarios needs a file}; shift 2 ;;
    --blocks) blocks=${2:?--blocks needs a number}; shift 2 ;;
    --json) json=${2:?--json needs a file}; shift 2 ;;
    -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) echo "gpu_serve_bench: unknown argument '$1' (see --help)" >&2; exit 2 ;;
  esac
done

log=$(mktemp)
server=
stop() {
  if [[ -n $server ]]; then kill -TERM "$server" 2>/dev/null || true; fi
  rm -f "$log"
}
trap stop EXIT
"$attnd" --listen=127.0.0.1:0 --admin_listen=127.0.0.1:0 --device="$device" --workspace_bytes="$workspace" 2>"$log" &
server=$!
address=
# The driver may first have to compile the kernels.
for ((i = 0; i < 1800; i++)); do
  address=$(sed -n 's/.* serving listen=\([^ ]*\) .*/\1/p' "$log")
  if [[ -n $address ]] || ! kill -0 "$server" 2>/dev/null; then break; fi
  sleep 0.1
done
if [[ -z $address ]]; then
  echo "gpu_serve_bench: the server did not start:" >&2
  tail -n 5 "$log" >&2
  exit 1
fi
sed -n 's/^[^ ]* info \(gpu .*\)/\1/p' "$log"
"$attnload" compare --server "$address" --no_progress --blocks "$blocks" --block_seconds 1 --scenarios "$scenarios" --json "$json"
kill -TERM "$server"
status=0
wait "$server" || status=$?
server=
if ((status != 0)); then
  echo "gpu_serve_bench: the server ended with exit code $status" >&2
  exit 1
fi
