#!/usr/bin/env bash
# Checks what lies in deploy/ and the Dockerfile with the tools that will read it: compose, kustomize and Kubernetes' schemas,
# systemd-analyze, hadolint; and against the programs: every flag is known, the example configuration starts, the hooks work.
#
#   scripts/deploy_test.sh [--build DIR]
#     --build DIR  programs to use, built already (default: build/release, which is built)
# scripts/setup.sh --operate installs what it needs. A few seconds.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly OUT=build/deploy-test

build=
while (($#)); do
  case "$1" in
    --build) build=${2:?--build needs a folder}; shift 2 ;;
    -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) echo "deploy_test: unknown argument '$1' (see --help)" >&2; exit 2 ;;
  esac
done

scripts/setup.sh --operate
mkdir -p "$OUT"
if [[ -z $build ]]; then
  build=build/release
  if ! { cmake --preset release && cmake --build --preset release --target attnd attnload attnctl; } >"$OUT/build.log" 2>&1; then
    tail -n 30 "$OUT/build.log" >&2
    exit 1
  fi
fi
PYTHONDONTWRITEBYTECODE=1 build/operate-venv/bin/python tests/deploy/deploy_files_test.py --build "$build"
