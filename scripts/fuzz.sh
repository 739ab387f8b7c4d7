#!/usr/bin/env bash
# Builds the fuzz target with clang (build/fuzz) and runs it for a while. What a run learns is kept in build/fuzz/corpus.
#
#   scripts/fuzz.sh [--seconds N]    how long (default 60)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

seconds=60
while (($#)); do
  case "$1" in
    --seconds) seconds=${2:?--seconds needs a number}; shift 2 ;;
    -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) echo "fuzz: unknown argument '$1' (see --help)" >&2; exit 2 ;;
  esac
done

cmake -S . -B build/fuzz -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ \
  -DATTND_FUZZ=ON -DATTND_WERROR=OFF
readonly TARGET=attention_wire_fuzz
cmake --build build/fuzz --target "$TARGET"
mkdir -p "build/fuzz/corpus/$TARGET"
"build/fuzz/tests/fuzz/$TARGET" -max_total_time="$seconds" -max_len=4096 -print_final_stats=1 -artifact_prefix=build/fuzz/ \
  "build/fuzz/corpus/$TARGET"
