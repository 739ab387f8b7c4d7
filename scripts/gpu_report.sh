#!/usr/bin/env bash
# What this machine's card does, in one JSON file: ceilings, the case table on every CUDA row, the rows written for a T4, each with
# the clocks, watts and temperature of its own seconds. To be held against the prediction in docs/kernels/sm75.md; docs/t4.md says how.
#
#   scripts/gpu_report.sh [--out FILE] [--gpu N] [--filter REGEX] [--shards N] [--limit SECONDS] [--bench BINARY] [--test BINARY]
#     --out FILE       the report (default: gpu_report.json)
#     --gpu N          the card, as nvidia-smi counts (default: 0)
#     --filter REGEX   rows, as attnbench's flag (default: ^sm75/)
#     --shards N       processes of the case table (default: one a core, at most 8)
#     --limit SECONDS  most that the case table, and the rows, may take each (default: 270)
#     --bench BINARY, --test BINARY  attnbench and cuda_rows_test (default: of the bundle that holds this script, made by
#                      scripts/bundle.sh --preset cuda --gpu-tests; in a source tree those of build/cuda)
# Below ten minutes. Needs bash, awk and the driver's nvidia-smi; without nvidia-smi the report has no clocks. Exit code 1, with the
# report, where a case or a row is wrong or was not reached.
set -euo pipefail
export LC_ALL=C
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if [[ -x $here/../../bin/attnbench ]]; then
  bench=$here/../../bin/attnbench test_binary=$here/tests/cuda_rows_test prediction=$here/sm75.md
else
  root=$(dirname "$here")
  bench=$root/build/cuda/kernels/bench/attnbench test_binary=$root/build/cuda/tests/kernels/cuda_rows_test
  prediction=$root/docs/kernels/sm75.md
fi
out=gpu_report.json gpu=0 filter='^sm75/' limit=270
shards=$(nproc)
if ((shards > 8)); then shards=8; fi

fail() {
  echo "gpu_report: $1" >&2
  exit "${2:-1}"
}

whole() { [[ $2 =~ ^[0-9]{1,6}$ && $2 -ge $3 ]] || fail "$1: got '$2', it must be a whole number of at least $3" 2; }

while (($#)); do
  case "$1" in
    --out) out=${2:?--out needs a file}; shift 2 ;;
    --gpu) gpu=${2:?--gpu needs a number}; shift 2 ;;
    --filter) filter=${2:?--filter needs a regular expression}; shift 2 ;;
    --shards) shards=${2:?--shards needs a number}; shift 2 ;;
    --limit) limit=${2:?--limit needs seconds}; shift 2 ;;
    --bench) bench=${2:?--bench needs a program}; shift 2 ;;
    --test) test_binary=${2:?--test needs a program}; shift 2 ;;
    -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) fail "unknown argument '$1' (see --help)" 2 ;;
  esac
done
whole --gpu "$gpu" 0
whole --shards "$shards" 1
whole --limit "$limit" 1
[[ -x $bench ]] || fail "$bench is not there: build the preset cuda, or name it with --bench" 2
[[ -x $test_binary ]] || fail "$test_binary is not there: bundle with --gpu-tests, or name it with --test" 2
: >>"$out" || fail "--out: cannot write $out" 2

# The card that nvidia-smi counts is the one that CUDA sees.
export CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=$gpu
work=$(mktemp -d)
sampler=
stop_sampler() {
  if [[ -n $sampler ]]; then kill "$sampler" 2>/dev/null || true; fi
  sampler=
}
cleanup() {
  stop_sampler
  rm -rf "$work"
}
trap cleanup EXIT
start=$SECONDS
: >"$work/samples"

# text VALUE: as a JSON string. nvidia-smi's unknown values become null.
text() {
  local value=${1//[\\\"]/}
  if [[ -z $value || $value == *N/A* || $value == *"Not Supported"* ]]; then printf null; else printf '"%s"' "$value"; fi
}

card=null
if command -v nvidia-smi >/dev/null; then
  fields=name,uuid,driver_version,memory.total,power.limit,power.max_limit,clocks.max.sm,clocks.max.memory,ecc.mode.current,persistence_mode
  if facts=$(nvidia-smi -i "$gpu" --query-gpu="$fields" --format=csv,noheader 2>&1); then
    card=
    IFS=, read -ra values <<<"$facts"
    index=0
    for name in ${fields//,/ }; do
      value=${values[index]:-}
      card+="${card:+, }\"${name//./_}\": $(text "${value# }")"
      index=$((index + 1))
    done
    card="{$card}"
    # One line a sample: time, SM clock, memory clock, watts, degrees, reasons to throttle.
    stdbuf -oL nvidia-smi -i "$gpu" -lms 100 --format=csv,noheader,nounits \
      --query-gpu=clocks.sm,clocks.mem,power.draw,temperature.gpu,clocks_throttle_reasons.active \
      2>/dev/null > >(while IFS= read -r line; do echo "$EPOCHREALTIME, $line"; done >>"$work/samples") &
    sampler=$!
    disown "$sampler"
  else
    echo "gpu_report: nvidia-smi says: ${facts%%$'\n'*}" >&2
  fi
else
  echo "gpu_report: no nvidia-smi: the report will have no clocks" >&2
fi

# with_clocks BEGAN ENDED: reads JSON objects, one a line, and adds what the card did in those seconds; without arguments in the
# seconds that the object names itself. Rows of the T4's kernels get their share of the tensor pipe at that clock, and the predicted one.
with_clocks() {
  awk -v samples="$work/samples" -v prediction="$prediction" -v began="${1:-}" -v ended="${2:-}" -v capability="${capability:-0}" \
    -v multiprocessors="${multiprocessors:-0}" -v read_gbps="${read_gbps:-0}" -f "$work/join.awk"
}
cat >"$work/join.awk" <<'AWK'
function number(line, name, rest) {
  if (!match(line, "\"" name "\": *[-+.0-9e]+")) return -1
  rest = substr(line, RSTART, RLENGTH)
  sub(/^[^:]*: */, "", rest)
  return rest + 0
}
function value(line, name, rest) {
  if (!match(line, "\"" name "\": *\"[^\"]*\"")) return ""
  rest = substr(line, RSTART, RLENGTH)
  sub(/^[^:]*: *"/, "", rest)
  sub(/"$/, "", rest)
  return rest
}
BEGIN {
  while ((getline line < samples) > 0) {
    if (split(line, field, /, */) < 6) continue
    ++count
    for (i = 1; i <= 6; ++i) sample[count, i] = field[i]
  }
  # | `prefill_fp16_d64` | 54 % | 56 % | 70 % | ... : the fourth column is the share predicted for a T4.
  while ((getline line < prediction) > 0) {
    if (line ~ /^\| `prefill_/ && split(line, field, /\|/) == 8 && field[5] ~ /^ [0-9]+ % $/) {
      gsub(/[` ]/, "", field[2])
      predicted["sm75/" field[2]] = (field[5] + 0) / 100
    }
    if (match(line, /Predicted: [0-9]+ % of what a plain read/)) {
      decode = (substr(line, RSTART + 11, 3) + 0) / 100
    }
  }
}
{
  from = began == "" ? number($0, "began_unix_s") : began + 0
  to = ended == "" ? number($0, "ended_unix_s") : ended + 0
  seen = 0; sm = 0; memory = 0; watts = 0; hottest = 0; slowest = 0; reasons = ""
  for (i = 1; i <= count; ++i) {
    if (sample[i, 1] < from || sample[i, 1] > to) continue
    ++seen
    sm += sample[i, 2]; memory += sample[i, 3]; watts += sample[i, 4]
    if (seen == 1 || sample[i, 2] + 0 < slowest) slowest = sample[i, 2] + 0
    if (sample[i, 5] + 0 > hottest) hottest = sample[i, 5] + 0
    if (index(reasons, sample[i, 6]) == 0) reasons = reasons (reasons == "" ? "" : ", ") "\"" sample[i, 6] "\""
  }
  clocks = "null"
  if (seen > 0) {
    clocks = sprintf("{\"samples\": %d, \"sm_mhz\": %.0f, \"sm_mhz_min\": %.0f, \"memory_mhz\": %.0f, \"watts\": %.1f, \"celsius\": %.0f, \"throttle\": [%s]}",
                     seen, sm / seen, slowest, memory / seen, watts / seen, hottest, reasons)
  }
  added = "\"clocks\": " clocks
  kernel = value($0, "kernel")
  if (kernel in predicted) {
    added = added ", \"t4_predicted_share\": " predicted[kernel]
    # Turing: 512 multiply-adds a clock on each multiprocessor.
    if (capability == 75 && seen > 0) {
      added = added sprintf(", \"tensor_share_at_clock\": %.3f", number($0, "tflops") * 1e6 / (multiprocessors * 1024 * sm / seen))
    }
  } else if (kernel ~ /^sm75\/decode/ && decode > 0) {
    added = added ", \"t4_predicted_share\": " decode
    if (read_gbps > 0) added = added sprintf(", \"read_share\": %.3f", number($0, "gbps") / read_gbps)
  }
  line = $0
  sub(/} *$/, "", line)
  print line (line ~ /{ *$/ ? "" : ", ") added "}"
}
AWK

echo "gpu_report: ceilings"
began=$EPOCHREALTIME
status=0
timeout 60 "$bench" --device=cuda --ceilings --ceiling_seconds 3 >"$work/ceilings.log" 2>&1 || status=$?
head=$(grep -m 1 '^{' "$work/ceilings.log" || true)
if ((status != 0)) || [[ -z $head ]]; then
  [[ -s $out ]] || rm -f "$out"
  fail "attnbench found no usable card: $(tail -n 1 "$work/ceilings.log")"
fi
ceilings=$(with_clocks "$began" "$EPOCHREALTIME" <<<"$head")
# json_number NAME: out of the head line.
json_number() { sed -n "s/.*\"$1\": *\([-+.0-9e]*\).*/\1/p" <<<"$head"; }
capability=$(json_number compute_capability) multiprocessors=$(json_number multiprocessors) read_gbps=$(json_number read_gbps)

echo "gpu_report: case table, $shards processes, at most $limit s"
began=$EPOCHREALTIME table_start=$SECONDS
pids=()
for ((i = 0; i < shards; ++i)); do
  GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$i timeout "$limit" "$test_binary" >"$work/shard$i" 2>&1 </dev/null &
  pids+=($!)
done
unfinished=0 broken=0
for pid in "${pids[@]}"; do
  status=0
  wait "$pid" || status=$?
  # 1: failed tests, which are counted; 124: not done in time; else it died.
  if ((status == 124)); then ((++unfinished)); elif ((status > 1)); then ((++broken)); fi
done
count_of() { cat "$work"/shard* | grep -cE "$1" || true; }
passed=$(count_of '^\[       OK \] ') failed=$(count_of '^\[  FAILED  \] [^ ]+.* \([0-9]+ ms\)$')
skipped=$(count_of '^\[  SKIPPED \] ([^ ]+.* \([0-9]+ ms\)$|all tests)')
failures=
while IFS= read -r name; do failures+="${failures:+, }$(text "$name")"; done < <(
  sed -nE 's/^\[  FAILED  \] ([^ ,]+).* \([0-9]+ ms\)$/\1/p' "$work"/shard* | sort -u | head -n 50)
table=$(with_clocks "$began" "$EPOCHREALTIME" <<<"{\"passed\": $passed, \"failed\": $failed, \"skipped\": $skipped, \"unfinished_processes\": $unfinished, \"broken_processes\": $broken, \"seconds\": $((SECONDS - table_start)), \"failures\": [$failures]}")
echo "gpu_report: $passed passed, $failed failed, $skipped skipped; processes: $unfinished not done in time, $broken died"

echo "gpu_report: rows $filter, at most $limit s"
rows_status=0
timeout "$limit" "$bench" --device=cuda --filter "$filter" --seconds 0.5 --rounds 5 --json "$work/rows" >"$work/rows.log" 2>&1 || rows_status=$?
[[ -e $work/rows ]] || : >"$work/rows"
stop_sampler
# The first line is the run, the last one may be cut short.
tail -n +2 "$work/rows" | grep '}$' | with_clocks >"$work/rows.json" || true
num_rows=$(wc -l <"$work/rows.json") wrong=$(grep -c ' WRONG: ' "$work/rows.log" || true)
complete=true
if ((rows_status != 0)); then complete=false; fi

{
  echo '{'
  echo "  \"date\": \"$(date -u +%Y-%m-%dT%H:%M:%SZ)\","
  echo "  \"seconds\": $((SECONDS - start)),"
  echo "  \"card\": $card,"
  echo "  \"ceilings\": $ceilings,"
  echo "  \"case_table\": $table,"
  echo "  \"rows_complete\": $complete,"
  echo "  \"rows_wrong\": $wrong,"
  echo '  "rows": ['
  sed '$!s/$/,/; s/^/    /' "$work/rows.json"
  echo '  ]'
  echo '}'
} >"$out"
echo "gpu_report: $num_rows rows; $out, $((SECONDS - start)) s"
good=true
complain() {
  echo "gpu_report: $1" >&2
  good=false
}
if ((failed + broken > 0)); then complain "the case table failed: $(grep -hE '^\[  FAILED  \]|signal' "$work"/shard* | sort -u | head -n 5 | tr '\n' ';')"; fi
if ((unfinished > 0)); then complain "the case table was not done in $limit s"; fi
if ((passed == 0)); then complain "no case of the table ran"; fi
if ((rows_status == 124)); then complain "the rows were not done in $limit s"; fi
if ((rows_status != 0 && rows_status != 124)); then complain "attnbench ended with $rows_status: $(grep -m 3 ' WRONG: ' "$work/rows.log" || tail -n 1 "$work/rows.log")"; fi
if ((num_rows == 0)); then complain "no row was measured"; fi
$good
