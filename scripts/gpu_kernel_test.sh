#!/usr/bin/env bash
# The case table on every CUDA row of this machine's card, then a short subset of it under compute-sanitizer.
#   scripts/gpu_kernel_test.sh [--test BINARY] [--shards N] [--sanitizer memcheck,racecheck,synccheck|none]
# BINARY: cuda_rows_test of a `cuda` build (default: this tree's). scripts/gpu_test.sh runs it too, in one process and without the tools.
# Exit code 1 where anything failed.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
test_binary=$root/build/cuda/tests/kernels/cuda_rows_test
shards=$(nproc)
sanitizers=memcheck,racecheck,synccheck
while [[ $# -gt 0 ]]; do
  case $1 in
    -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    --test) test_binary=$2 ;;
    --shards) shards=$2 ;;
    --sanitizer) sanitizers=$2 ;;
    *) echo "gpu_kernel_test.sh: unknown argument '$1'" >&2; exit 2 ;;
  esac
  shift 2
done
[[ -x $test_binary ]] || { echo "gpu_kernel_test.sh: $test_binary is not there: build the preset cuda first" >&2; exit 2; }
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
failed=0

# The driver compiles the PTX rows at their first use and keeps the code; once is enough for all shards.
"$test_binary" --gtest_filter='*EveryRowRunsTheCodeOfItsFolder' >"$logs/first" 2>&1 || failed=1
grep -E '^\[  (PASSED|FAILED|SKIPPED) +\]|[Ff]ailure' "$logs/first"

pids=()
for ((i = 0; i < shards; ++i)); do
  GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$i "$test_binary" --gtest_brief=1 >"$logs/shard$i" 2>&1 &
  pids+=($!)
done
for i in "${!pids[@]}"; do
  if ! wait "${pids[$i]}"; then
    failed=1
    echo "shard $i failed:"
    grep -vE '^\[==========\]|^$' "$logs/shard$i" | head -n 40
  fi
done
cat "$logs"/shard* | grep -E '^\[  (PASSED|SKIPPED) +\]' |
  awk '/PASSED/ {passed += $4} /SKIPPED/ {++skipped} END {print passed + 0, "tests passed,", skipped + 0, "lines of skipped ones"}'

# Every kernel family, small shapes: the tools are 10 to 100 times slower.
subset='*ANonFiniteTile*:*CapAndWindow*:*UnusedSlots*:*AppendWrites*:*MergedStates*:*RotatedQueries*:*SinkAlone*:*ACapturedLaunch*'
if [[ $sanitizers != none ]]; then
  if ! command -v compute-sanitizer >/dev/null; then
    echo "compute-sanitizer is not installed: skipped"
  else
    IFS=, read -ra tools <<<"$sanitizers"
    for tool in "${tools[@]}"; do
      if compute-sanitizer --tool "$tool" --error-exitcode 9 "$test_binary" --gtest_brief=1 --gtest_filter="$subset" >"$logs/$tool" 2>&1; then
        echo "$tool: clean"
      else
        failed=1
        echo "$tool: found something"
        grep -E '=========|Failure' "$logs/$tool" | head -n 30
      fi
    done
  fi
fi
exit $failed
