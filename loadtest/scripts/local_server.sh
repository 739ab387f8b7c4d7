# shellcheck shell=bash disable=SC2034  # what is set here is read by the scripts
# Sourced by the scripts of this folder: their common options, and a server to load. Not a program.
#
#   parse_options NAME "$@"   sets quick, out, build; server and admin where one is named
#   start_server [FLAG]...    a server of this tree on free ports, unless one is named; sets server and admin
#   stop_server               SIGTERM; fails unless it exits with 0
#   attnload ARGUMENT...      the load generator; its table goes to standard output
#   metrics_page              the page of the admin port, whole
#   metric TEXT               the value of a series on the admin port, labels as in its line; nothing where it is not
# The sourcing script runs under set -euo pipefail in the root of the tree.

quick=false
out='' build='' server='' admin='' server_pid=''

readonly COMMON_HELP='
  --quick         seconds instead of minutes, on the CPU of a small machine: for CI; its figures are noisy
  --server ADDR   load this server (host:port) instead of one of this tree on this machine
  --admin ADDR    its admin port, where it is not the gRPC port + 1
  --out DIR       where report.html, report.json and logs go (default: build/load/<name of the script>)
  --build DIR     programs to use (default: build/release, built if it is not there)'

fail() {
  echo "${script_name}: $1" >&2
  if [[ -s ${2:-} ]]; then tail -n 20 "$2" >&2; fi
  exit 1
}

parse_options() {
  script_name=$1
  shift
  while (($#)); do
    case "$1" in
      --quick) quick=true; shift ;;
      --server) server=${2:?--server needs host:port}; shift 2 ;;
      --admin) admin=${2:?--admin needs host:port}; shift 2 ;;
      --out) out=${2:?--out needs a folder}; shift 2 ;;
      --build) build=${2:?--build needs a folder}; shift 2 ;;
      -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"; echo "Options:$COMMON_HELP"; exit 0 ;;
      *) echo "$script_name: unknown argument '$1' (see --help)" >&2; exit 2 ;;
    esac
  done
  out=${out:-build/load/$script_name}
  mkdir -p "$out"
  if [[ -n $server && -z $admin ]]; then admin=${server%:*}:$((${server##*:} + 1)); fi
  if [[ -z $build ]]; then
    build=build/release
    if [[ ! -x $build/server/attnd || ! -x $build/loadtest/attnload ]]; then
      scripts/setup.sh
      { cmake --preset release && cmake --build --preset release --target attnd attnload; } >"$out/build.log" 2>&1 || fail "the build failed" "$out/build.log"
    fi
  fi
}

start_server() {
  if [[ -n $server ]]; then return; fi
  : >"$out/server.log"  # there, and without an old address, before the loop below reads it
  "$build/server/attnd" --listen=127.0.0.1:0 --admin_listen=127.0.0.1:0 --log_format=json "$@" >"$out/server.log" 2>&1 &
  server_pid=$!
  trap 'if [[ -n $server_pid ]]; then kill -KILL "$server_pid" 2>/dev/null || true; fi' EXIT
  local i
  for ((i = 0; i < 600; i++)); do
    server=$(sed -n '/"serving"/s/.*"listen": *"\([^"]*\)".*/\1/p' "$out/server.log")
    admin=$(sed -n '/"serving"/s/.*"admin": *"\([^"]*\)".*/\1/p' "$out/server.log")
    if [[ -n $server ]]; then return; fi
    kill -0 "$server_pid" 2>/dev/null || fail "the server did not start" "$out/server.log"
    sleep 0.1
  done
  fail "the server was not ready within a minute" "$out/server.log"
}

stop_server() {
  if [[ -z $server_pid ]]; then return; fi
  local status=0
  kill -TERM "$server_pid"
  wait "$server_pid" || status=$?
  server_pid=''
  if ((status != 0)); then fail "the server ended with exit code $status on SIGTERM" "$out/server.log"; fi
}

attnload() {
  local command=$1
  shift
  "$build/loadtest/attnload" "$command" --server "$server" --admin "$admin" --no_progress "$@"
}

metrics_page() {
  python3 -c 'import sys, urllib.request
with urllib.request.urlopen(sys.argv[1], timeout=10) as page: sys.stdout.write(page.read().decode())' "http://$admin/metrics"
}

metric() {
  python3 - "http://$admin/metrics" "$1" <<'PYTHON'
import sys
import urllib.request

with urllib.request.urlopen(sys.argv[1], timeout=10) as reply:
    for line in reply.read().decode().splitlines():
        series, _, value = line.rpartition(" ")
        if series == sys.argv[2]:
            print(value)
PYTHON
}
