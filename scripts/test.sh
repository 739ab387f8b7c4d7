#!/usr/bin/env bash
# Builds and tests. Every part writes its log to build/test-logs/; the last line is the sum over all parts.
#
#   scripts/test.sh [--tier fast|ci|full] [--preset NAME]...
#     --tier fast    release build and its tests, slow ones left out (the default)
#     --tier ci      fast, then format, lint, dashboards on a real Prometheus, the page /statusz in a browser, every CUDA row compiled for its
#                    architectures (without nvcc: skipped), a short comparison with naive, thread safety, clang-tidy,
#                    AddressSanitizer with UBSan, and ThreadSanitizer on the tests labelled concurrency or parse
#     --tier full    ci, then the slow tests, long load runs, a longer fuzz run, a bare Debian system and the images
#     --preset NAME  only this preset's build and tests; may be repeated
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly LOGS=build/test-logs
jobs=$(nproc)

tier=fast
presets=()
while (($#)); do
  case "$1" in
    --tier) tier=${2:?--tier needs fast, ci or full}; shift 2 ;;
    --preset) presets+=("${2:?--preset needs a name from CMakePresets.json}"); shift 2 ;;
    -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) echo "test: unknown argument '$1' (see --help)" >&2; exit 2 ;;
  esac
done
[[ $tier =~ ^(fast|ci|full)$ ]] || { echo "test: --tier is '$tier', it must be fast, ci or full" >&2; exit 2; }

passed=0 failed=0 skipped=0
mkdir -p "$LOGS"

# report NAME PASSED FAILED SKIPPED START: one line for a part, added to the sums.
report() {
  passed=$((passed + $2)) failed=$((failed + $3)) skipped=$((skipped + $4))
  local seconds=$((SECONDS - $5))
  printf '%-16s %5d passed  %3d failed  %3d skipped  %3d.%d min\n' "$1" "$2" "$3" "$4" $((seconds / 60)) $((seconds % 60 / 6))
}

# check NAME COMMAND...: a part that passes or fails as a whole, or (exit code 77) says why it could not be tested here.
check() {
  local name=$1 start=$SECONDS status=0 log
  log=$LOGS/${name// /-}.log
  shift
  "$@" >"$log" 2>&1 </dev/null || status=$?
  if ((status == 0)); then
    report "$name" 1 0 0 "$start"
  elif ((status == 77)); then
    report "$name" 0 0 1 "$start"
    echo "--- $name skipped: $(tail -n 1 "$log")"
  else
    report "$name" 0 1 0 "$start"
    echo "--- $name failed: $* (whole log: $log)"
    grep -vE '^\[[0-9]+/[0-9]+\] (Building|Linking|Generating|Running)' "$log" | tail -n 60
    return 1
  fi
}

build_preset() {
  cmake --preset "$1" && cmake --build --preset "$1"
}

# The number in attribute $2 of a JUnit file's root element.
junit_count() {
  sed -n "s/.*\\b$2=\"\\([0-9]*\\)\".*/\\1/p" "$1" | head -n 1
}

# run_ctest NAME PRESET [ctest arguments]: the tests of a built preset, counted one by one.
run_ctest() {
  local name=$1 preset=$2 start=$SECONDS status=0 total bad skip
  local log=$LOGS/${name// /-}.log junit=$PWD/$LOGS/${name// /-}.xml
  shift 2
  rm -f "$junit"
  ctest --preset "$preset" -j "$jobs" --output-junit "$junit" "$@" >"$log" 2>&1 </dev/null || status=$?
  if [[ ! -s $junit ]] || ! grep -q '<testcase' "$junit"; then
    report "$name" 0 1 0 "$start"
    echo "--- $name: ctest ended with $status and ran no test"
    tail -n 20 "$log"
    return
  fi
  sed -n '/<testcase/q;p' "$junit" | tr '\n' ' ' >"$junit.head"
  total=$(junit_count "$junit.head" tests) bad=$(junit_count "$junit.head" failures)
  skip=$(($(junit_count "$junit.head" skipped) + $(junit_count "$junit.head" disabled)))
  if ((bad == 0 && status != 0)); then bad=1; fi
  report "$name" $((total - bad - skip)) "$bad" "$skip" "$start"
  if ((bad > 0)); then
    echo "--- $name failed (whole log: $log)"
    sed -n '/tests passed, .* tests failed/,$p' "$log"
    grep -E 'Failure$|ERROR: |WARNING: ThreadSanitizer|runtime error:|Assertion|^FAIL:' "$log" | sort | uniq -c | sort -rn | head -n 30 || true
  fi
}

preset_part() {
  if check "$1 build" build_preset "$1"; then run_ctest "$1 tests" "$@"; fi
}

# The CUDA rows for all architectures, the tests that need no card, and those that do (skipped where there is none).
cuda_part() {
  local start=$SECONDS
  if ! command -v nvcc >/dev/null && [[ ! -x /usr/local/cuda/bin/nvcc && ! -x build/cuda-toolkit/bin/nvcc ]]; then
    report "cuda build" 0 0 1 "$start"
    echo "--- cuda build skipped: no nvcc (scripts/cuda_toolkit.sh brings one)"
    return
  fi
  local programs=(cuda_rows_test cuda_decode_plan_test cuda_kernel_table_test cuda_launch_params_test cuda_plan_test cuda_prefill_plan_test)
  build_cuda() { cmake --preset cuda && cmake --build --preset cuda --target "${programs[@]}"; }
  if check "cuda build" build_cuda; then
    run_ctest "cuda tests" cuda -R '^Cuda(\.|DecodePlan|KernelTable|LaunchParams|Plan|PrefillPlan)|^NaivePlan|cuda_budget_test$'
  fi
}

if [[ $tier == fast ]]; then
  scripts/setup.sh
else
  scripts/setup.sh --lint
fi

if ((${#presets[@]})); then
  for preset in "${presets[@]}"; do preset_part "$preset"; done
else
  preset_part release
  if [[ $tier != fast ]]; then
    check format scripts/format.sh --check || true
    check shellcheck shellcheck -x scripts/*.sh loadtest/scripts/*.sh .ci/run || true
    check codespell codespell || true
    check dashboards scripts/dashboards_test.sh || true
    check statusz scripts/statusz_test.sh || true
    check deploy scripts/deploy_test.sh || true
    cuda_part
    check throughput loadtest/scripts/throughput_vs_naive.sh --quick || true
    # Then what takes long.
    check "thread safety" python3 scripts/thread_safety.py --build build/release || true
    check clang-tidy python3 scripts/run_clang_tidy.py --build build/release '^(kernels|server|client|loadtest)/' || true
    preset_part asan
    preset_part tsan
  fi
  if [[ $tier == full ]]; then
    scripts/setup.sh --fuzz --bare
    run_ctest "asan cancel race" asan-race
    run_ctest "tsan cancel race" tsan-race
    run_ctest "slow tests" release-slow
    for script in latency_knee stream_rate everyday trace_replay overload soak; do check "$script" "loadtest/scripts/$script.sh" --quick || true; done
    check "fuzz" scripts/fuzz.sh --seconds 120 || true
    check "bare system" scripts/bare_system_test.sh || true
    check images scripts/image_test.sh || true
  fi
fi

echo "$passed passed, $failed failed, $skipped skipped"
((failed == 0 && passed > 0))
