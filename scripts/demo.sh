#!/usr/bin/env bash
# From nothing to a figure: installs what is missing, builds, starts a server on free ports, and measures fused attention
# against naive, through the whole service: on the tensors of a real model, on long prompts, and on batched decode steps.
# The last line of output is the path of the JSON report.
#
#   scripts/demo.sh [--quick]
#     --quick   shorter measurement, for tests of this script; its figures are noisy
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly OUT=build/demo
readonly CAPTURE=tests/data/minilm_l6.safetensors

blocks=5 block_seconds=0.5
case "${1:-}" in
  "") ;;
  --quick) blocks=1 block_seconds=0.2 ;;
  -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 0 ;;
  *) echo "demo: unknown argument '$1' (see --help)" >&2; exit 2 ;;
esac

fail() {
  echo "demo: $1" >&2
  if [[ -s ${2:-} ]]; then tail -n 30 "$2" >&2; fi
  exit 1
}

server=
stop_server() {
  if [[ -n $server ]]; then kill -KILL "$server" 2>/dev/null || true; fi
}
trap stop_server EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

scripts/setup.sh
mkdir -p "$OUT"

echo "demo: building (log: $OUT/build.log)"
cmake --preset release >"$OUT/build.log" 2>&1 || fail "the build could not be configured" "$OUT/build.log"
if [[ -t 1 ]]; then
  # Ninja's own progress line, redrawn in place; what else it prints goes to the log.
  NINJA_STATUS='demo: building %f of %t, %e s ' cmake --build --preset release --target attnd attnload 2>&1 |
    tee -a "$OUT/build.log" | while IFS= read -r line; do
      if [[ $line == demo:* ]]; then printf '\r\033[K%s' "${line%% s *} s"; fi
    done || fail "the build failed" "$OUT/build.log"
  printf '\r\033[K'
else
  cmake --build --preset release --target attnd attnload >>"$OUT/build.log" 2>&1 || fail "the build failed" "$OUT/build.log"
fi

# The naive side on a GPU is cuBLAS: where scripts/setup.sh brought the compiler, it lies beside it.
if [[ -d build/cuda-toolkit/lib ]]; then
  export LD_LIBRARY_PATH=$PWD/build/cuda-toolkit/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi
# Port 0: the system picks free ones and the log tells which.
: >"$OUT/server.log"  # there before the loop below reads it
build/release/server/attnd --listen=127.0.0.1:0 --admin_listen=127.0.0.1:0 --log_format=json >"$OUT/server.log" 2>&1 &
server=$!
address=
for ((i = 0; i < 600; i++)); do
  address=$(sed -n '/"serving"/s/.*"listen": *"\([^"]*\)".*/\1/p' "$OUT/server.log")
  if [[ -n $address ]]; then break; fi
  if ! kill -0 "$server" 2>/dev/null; then
    server=
    fail "the server did not start" "$OUT/server.log"
  fi
  sleep 0.1
done
if [[ -z $address ]]; then fail "the server was not ready within a minute" "$OUT/server.log"; fi
echo "demo: server ready at $address (log: $OUT/server.log)"

scenarios=()
for layer in 0 5; do
  scenarios+=(--scenario "name=minilm_layer_$layer,kind=attend,capture=$CAPTURE,prefix=layers.$layer.,causal=false,workers=8")
done
for tokens in 2048 4096; do
  scenarios+=(--scenario "name=causal_${tokens}_fp32,kind=attend,tokens=$tokens,heads=8,head_dim=64,type=fp32"
    --scenario "name=causal_${tokens}_bf16,kind=attend,tokens=$tokens,heads=8,head_dim=128,type=bf16")
done
scenarios+=(--scenario "name=decode_4096_bf16,kind=decode,heads=32,kv_heads=8,head_dim=128,type=bf16,prompt=4096,workers=16")
scenarios+=(--scenario "name=decode_1024_fp32,kind=decode,heads=8,head_dim=64,type=fp32,prompt=1024,workers=16")

progress=()
if [[ ! -t 2 ]]; then progress=(--no_progress); fi
echo "demo: measuring $((${#scenarios[@]} / 2)) scenarios, each side in turn"
rm -f "$OUT/report.json"
build/release/loadtest/attnload compare --server "$address" --blocks "$blocks" --block_seconds "$block_seconds" \
  --json "$OUT/report.json" "${progress[@]}" "${scenarios[@]}" | sed '$d' || fail "the comparison failed" "$OUT/server.log"
if [[ ! -s $OUT/report.json ]]; then fail "the comparison wrote no report"; fi

kill -TERM "$server"
status=0
wait "$server" || status=$?
server=
if ((status != 0)); then fail "the server ended with exit code $status on SIGTERM" "$OUT/server.log"; fi
echo "demo: the server has stopped cleanly"
echo "$PWD/$OUT/report.json"
