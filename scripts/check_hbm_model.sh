#!/usr/bin/env bash
# The cost model's bytes of every CUDA row against the card's own DRAM counters, over a grid of shapes.
#   scripts/check_hbm_model.sh [--bench BINARY] [--out FILE] [--filter REGEX]
# BINARY: attnbench of a `cuda` build (default: this tree's). FILE: JSON lines (default
# docs/benchmarks/data/<card>_traffic.jsonl). REGEX: of row names. Needs Nsight Compute (ncu) and the right to read counters.
# Exit code 1 where a row whose working set exceeds the L2 neither agrees within 5 % nor lies inside the stated bounds
# (scripts/hbm_model.py).
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bench=$root/build/cuda/kernels/bench/attnbench
out="" filter=""
while (($#)); do
  case $1 in
    --bench) bench=${2:?--bench needs a program}; shift 2 ;;
    --out) out=${2:?--out needs a file}; shift 2 ;;
    --filter) filter=${2:?--filter needs an expression}; shift 2 ;;
    -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) echo "check_hbm_model: unknown argument '$1' (see --help)" >&2; exit 2 ;;
  esac
done
[[ -x $bench ]] || { echo "check_hbm_model: $bench is not there: build the preset cuda first" >&2; exit 2; }
command -v ncu >/dev/null || { echo "check_hbm_model: ncu (Nsight Compute) is not installed" >&2; exit 2; }
if [[ -z $out ]]; then
  card=$(nvidia-smi --query-gpu=name --format=csv,noheader -i 0 | sed -E 's/^(NVIDIA|Tesla) //' | tr 'A-Z -' 'a-z__')
  out=$root/docs/benchmarks/data/${card}_traffic.jsonl
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Caches as the program leaves them, clocks as the card has them; both counters fit into one pass, so nothing is replayed.
ncu --clock-control none --cache-control none --metrics dram__bytes_read.sum,dram__bytes_write.sum --print-units base --csv \
  --log-file "$work/counters.csv" \
  "$bench" --device=cuda --traffic --filter "$filter" --json "$work/model.jsonl"
python3 "$root/scripts/hbm_model.py" "$work/model.jsonl" "$work/counters.csv" "$out"
