#!/usr/bin/env bash
# Kernel benchmarks on this machine's card, beside PyTorch's back ends where torch is installed, as JSON lines.
#   scripts/gpu_bench.sh [--bench BINARY] [--out FILE] [--filter REGEX] [--python PYTHON]
# BINARY: attnbench of a `cuda` build (default: this tree's). FILE: default docs/benchmarks/data/<card>_kernels.jsonl.
# About five minutes with peers on an H200. scripts/bench_tables.py writes the tables of docs/benchmarks from the data.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bench=$root/build/cuda/kernels/bench/attnbench
out=
filter=
python=python3
while [[ $# -gt 0 ]]; do
  case $1 in
    -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    --bench) bench=$2 ;;
    --out) out=$2 ;;
    --filter) filter=$2 ;;
    --python) python=$2 ;;
    *) echo "gpu_bench.sh: unknown argument '$1'" >&2; exit 2 ;;
  esac
  shift 2
done
[[ -x $bench ]] || { echo "gpu_bench.sh: $bench is not there: build the preset cuda first" >&2; exit 2; }
if [[ -z $out ]]; then
  card=$(nvidia-smi --query-gpu=name --format=csv,noheader -i 0 | sed -E 's/^(NVIDIA|Tesla) //' | tr 'A-Z -' 'a-z__')
  out=$root/docs/benchmarks/data/${card}_kernels.jsonl
fi
peers=()
if "$python" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
  peers=(--peers --python "$python" --peer_script "$root/kernels/bench/peers/torch_cuda_sdpa.py")
else
  echo "no torch with CUDA in $python: without peers"
fi
nvidia-smi --query-gpu=name,driver_version,clocks.sm,power.draw,power.limit --format=csv,noheader || true
exec "$bench" --device=cuda --seconds 0.25 --rounds 6 --filter "$filter" --json "$out" "${peers[@]}"
