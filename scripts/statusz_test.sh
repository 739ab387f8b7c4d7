#!/usr/bin/env bash
# The page /statusz in a real browser: a server under load, looked at in Chromium in light and dark, wide and narrow. It must draw itself
# without a message on the console, ask nobody but its server, put every point of the roofline where /metrics says, and tell when the
# server is gone.
#
#   scripts/statusz_test.sh [--build DIR] [--out DIR]
#     --build DIR  programs to use, built already (default: build/release, which is built)
#     --out DIR    where screenshots and logs go (default: build/statusz-test)
# scripts/setup.sh --browser installs Chromium and what drives it; where they cannot be had, exit code 77 says that nothing was tested.
# Half a minute.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly SKIPPED=77

build='' out=build/statusz-test
while (($#)); do
  case "$1" in
    --build) build=${2:?--build needs a folder}; shift 2 ;;
    --out) out=${2:?--out needs a folder}; shift 2 ;;
    -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) echo "statusz_test: unknown argument '$1' (see --help)" >&2; exit 2 ;;
  esac
done

rm -rf "$out"
mkdir -p "$out"
if ! scripts/setup.sh --browser >"$out/setup.log" 2>&1; then
  echo "statusz_test: SKIPPED: no browser: $(tail -n 1 "$out/setup.log")"
  exit "$SKIPPED"
fi
if [[ -z $build ]]; then
  build=build/release
  if ! { cmake --preset release && cmake --build --preset release --target attnd attnload; } >"$out/build.log" 2>&1; then
    tail -n 30 "$out/build.log" >&2
    exit 1
  fi
fi
PYTHONDONTWRITEBYTECODE=1 build/browser-venv/bin/python tests/deploy/statusz_page_test.py --build "$build" --out "$out"
