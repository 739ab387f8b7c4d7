#!/usr/bin/env bash
# Proof that no panel, rule or alert is dead: unit tests of the rules, then a real Prometheus on a real attnd under load,
# asked every query of every dashboard and rule; at the end the server is stopped and the alert for that must be on its way.
#
#   scripts/dashboards_test.sh [--build DIR] [--draw DIR]
#     --build DIR  programs to use, built already (default: build/release, which is built)
#     --draw DIR   leave a drawing of each dashboard there, made from the answers to its queries (deploy/grafana/draw_dashboards.py)
# Needs Debian's or Ubuntu's package prometheus; scripts/setup.sh --operate installs it. About a minute; logs lie in build/dashboards-test/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly OUT=$PWD/build/dashboards-test
build='' draw=''

while (($#)); do
  case "$1" in
    --build) build=${2:?--build needs a folder}; shift 2 ;;
    --draw) draw=${2:?--draw needs a folder}; shift 2 ;;
    -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) echo "dashboards_test: unknown argument '$1' (see --help)" >&2; exit 2 ;;
  esac
done

fail() {
  echo "dashboards_test: $1" >&2
  if [[ -s ${2:-} ]]; then tail -n 30 "$2" >&2; fi
  exit 1
}

# What runs beside this script, killed at its end.
started=()
keep_track() {
  started+=("$1")
  disown "$1"  # bash says nothing about its end
}
stop_started() {
  local pid
  for pid in "${started[@]}"; do kill -KILL "$pid" 2>/dev/null || true; done
}
trap stop_started EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

scripts/setup.sh --operate
rm -rf "$OUT"
mkdir -p "$OUT"
if [[ -z $build ]]; then
  build=build/release
  { cmake --preset release && cmake --build --preset release --target attnd attnload attnctl attnd_fake_nvml; } >"$OUT/build.log" 2>&1 ||
    fail "the build failed" "$OUT/build.log"
fi

promtool check config deploy/prometheus/prometheus.yml >"$OUT/promtool.log" 2>&1 || fail "prometheus.yml is wrong" "$OUT/promtool.log"
promtool check rules deploy/prometheus/rules/*.yaml >>"$OUT/promtool.log" 2>&1 || fail "a rule is wrong" "$OUT/promtool.log"
promtool test rules deploy/prometheus/tests/*.yaml >>"$OUT/promtool.log" 2>&1 || fail "a rule's unit test failed" "$OUT/promtool.log"
echo "dashboards_test: rules and their unit tests are right"

# The deployed configuration with another target and a shorter period, so that windows fill in seconds.
cp -r deploy/prometheus "$OUT/prometheus"
sed -i -E 's/^( *(scrape|evaluation)_interval:) .*/\1 1s/; s/^( *scrape_timeout:) .*/\1 1s/' "$OUT/prometheus/prometheus.yml"

# A GPU's sensors come from the library that stands in for the driver's in tests.
fake_nvml=$build/tests/server/libattnd_fake_nvml.so
[[ -e $fake_nvml ]] || fail "$fake_nvml is not there: build the target attnd_fake_nvml first"

: >"$OUT/attnd.log"  # there before the loop below reads it
"$build/server/attnd" --listen=127.0.0.1:0 --admin_listen=127.0.0.1:0 --log_format=json --cache_bytes=512MiB \
  --nvml_library="$fake_nvml" >"$OUT/attnd.log" 2>&1 &
server=$!
keep_track "$server"
address=
for ((i = 0; i < 300; i++)); do
  address=$(sed -n '/"serving"/s/.*"listen": *"\([^"]*\)".*/\1/p' "$OUT/attnd.log")
  if [[ -n $address ]] || ! kill -0 "$server" 2>/dev/null; then break; fi
  sleep 0.1
done
if [[ -z $address ]]; then fail "attnd did not start" "$OUT/attnd.log"; fi
admin=$(sed -n '/"serving"/s/.*"admin": *"\([^"]*\)".*/\1/p' "$OUT/attnd.log")
echo "- targets: ['$admin']" >"$OUT/prometheus/targets.yaml"

port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
prometheus --config.file="$OUT/prometheus/prometheus.yml" --storage.tsdb.path="$OUT/data" --web.listen-address="127.0.0.1:$port" \
  >"$OUT/prometheus.log" 2>&1 &
keep_track "$!"

# Every kind of traffic that a panel shows: fused and naive, attend and decode, unary and streams, forks and refusals.
load() {
  local attnload="$build/loadtest/attnload" attnctl=("$build/client/attnctl" --server "$address")
  local shape=heads=8,kv_heads=2,head_dim=64,type=bf16,prompt=256 end=$((SECONDS + 90)) sequence
  "${attnctl[@]}" sequences create --heads 8 --head_dim 64  # lives on between the runs
  while ((SECONDS < end)); do
    "$attnload" compare --server "$address" --scenario "kind=decode,$shape,workers=4" --scenario tokens=128 \
      --blocks 1 --block_seconds 0.3 --no_progress
    "$attnload" run --server "$address" --scenario "kind=decode,$shape,mode=stream,workers=4" \
      --rate 200 --duration 2 --no_floor --no_progress
    sequence=$("${attnctl[@]}" sequences create --heads 8 --head_dim 64)
    "${attnctl[@]}" sequences fork "$sequence"
    "${attnctl[@]}" sequences delete "$sequence"
    "${attnctl[@]}" sequences get 00 || true
  done
}
load >"$OUT/load.log" 2>&1 &
loader=$!
keep_track "$loader"

status=0
python3 tests/deploy/live_queries.py --prometheus "http://127.0.0.1:$port" --dashboards deploy/grafana/dashboards \
  --patience 60 || status=$?

if [[ -n $draw ]]; then
  sleep 20  # so that the drawing shows more than the time that the queries took
  python3 deploy/grafana/draw_dashboards.py --prometheus "http://127.0.0.1:$port" --seconds 40 --out "$draw" \
    --note "Load of scripts/dashboards_test.sh on a CPU; the sensors of the device are the made-up ones of the tests." || status=$?
fi

kill -KILL "$loader" "$server"
alert=
for ((i = 0; i < 100; i++)); do
  alert=$(promtool query instant "http://127.0.0.1:$port" 'ALERTS{alertname="AttndDown"}' 2>/dev/null || true)
  if [[ -n $alert ]]; then break; fi
  sleep 0.2
done
if [[ -z $alert ]]; then fail "no AttndDown alert within 20 s of the server's end" "$OUT/prometheus.log"; fi
echo "dashboards_test: the alert for a server that is gone is on its way"
((status == 0))
