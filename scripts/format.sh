#!/usr/bin/env bash
# Formats every C++ file of the tree in place; with --check it only tells which differ, and fails if any does.
#   scripts/format.sh [--check]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mode=(-i)
case ${1:-} in
  "") ;;
  --check) mode=(--dry-run --Werror) ;;
  -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 0 ;;
  *) echo "format.sh: unknown argument '$1' (see --help)" >&2; exit 2 ;;
esac
find kernels server client loadtest tests -type f \( -name '*.cc' -o -name '*.h' \) \
  -not -path 'tests/repository/violations/*' -print0 | xargs -0 -n 16 -P "$(nproc)" clang-format-14 "${mode[@]}"
