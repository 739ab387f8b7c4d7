#!/usr/bin/env bash
# Runs the GPU tests on this machine: the kernels' own, then whole servers on the first GPU.
#
#   scripts/gpu_test.sh [--tests DIR] [--filter TEXT] [--logs DIR] [--limit SECONDS]
#     --tests DIR    folder with the test programs (default: tests/ beside this script, as in a bundle made by
#                    scripts/bundle.sh --gpu-tests; in a source tree the GPU tests of build/cuda run under ctest)
#     --filter TEXT  only programs whose name holds TEXT
#     --logs DIR     one log a program (default: gpu-test-logs)
#     --limit N      seconds that a program may take (default: 600)
#
# A machine without a usable GPU: everything is skipped, with the reason. The last line is the sum.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

tests=$here/tests
filter="" logs=gpu-test-logs limit=600
while (($#)); do
  case "$1" in
    --tests) tests=${2:?--tests needs a folder}; shift 2 ;;
    --filter) filter=${2:?--filter needs a text}; shift 2 ;;
    --logs) logs=${2:?--logs needs a folder}; shift 2 ;;
    --limit) limit=${2:?--limit needs seconds}; shift 2 ;;
    -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) echo "gpu_test: unknown argument '$1' (see --help)" >&2; exit 2 ;;
  esac
done

if [[ $tests == "$here/tests" && -e $here/setup.sh ]]; then
  exec ctest --test-dir "$here/../build/cuda" -L '^gpu$' -R "$filter" --output-on-failure --timeout "$limit"
fi
mapfile -t programs < <(find "$tests" -type f -name "*${filter}*_test" -perm -u+x | sort)
if ((${#programs[@]} == 0)); then
  echo "gpu_test: no test programs in $tests" >&2
  exit 1
fi
mkdir -p "$logs"
export ATTND_TEST_DEVICE=cuda:0

# count_of LOG PATTERN: how many lines of the log match.
count_of() { grep -cE "$2" "$1" || true; }

passed=0 failed=0 skipped=0
for program in "${programs[@]}"; do
  name=$(basename "$program") status=0 start=$SECONDS
  log=$logs/$name.log
  timeout "$limit" "$program" >"$log" 2>&1 </dev/null || status=$?
  good=$(count_of "$log" '^\[       OK \]') bad=$(count_of "$log" '^\[  FAILED  \] [^ ]+ \(')
  skips=$(count_of "$log" '^\[  SKIPPED \] ([^ ]+ \(|all tests)')
  # A program that dies has not told how many of its tests would have failed.
  if ((status != 0 && bad == 0)); then bad=1; fi
  passed=$((passed + good)) failed=$((failed + bad)) skipped=$((skipped + skips))
  printf '%-34s %4d passed  %3d failed  %3d skipped  %4d s\n' "$name" "$good" "$bad" "$skips" $((SECONDS - start))
  if ((bad > 0)); then grep -E '^\[  FAILED  \]|Failure$|terminate called|signal' "$log" | sort -u | head -n 12 || true; fi
  if ((skips > 0)); then grep -E '^\[  SKIPPED \] all tests' "$log" | sort -u || true; fi
done
echo "$passed passed, $failed failed, $skipped skipped (logs: $logs)"
((failed == 0 && passed + skipped > 0))
