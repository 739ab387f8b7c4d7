#!/usr/bin/env bash
# Formats every C++ file of the tree in place; with --check it only tells which differ, and fails if any does.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mode=(-i)
if [[ ${1:-} == --check ]]; then mode=(--dry-run --Werror); fi
find kernels server client loadtest tests -type f \( -name '*.cc' -o -name '*.h' \) \
  -not -path 'tests/repository/violations/*' -print0 | xargs -0 -n 16 -P "$(nproc)" clang-format-14 "${mode[@]}"
