#!/usr/bin/env bash
# Makes sure that a machine with an NVIDIA driver can build the CUDA kernels: where no nvcc is found, brings the compiler from
# NVIDIA's wheels on PyPI into build/cuda-toolkit, where cmake/cuda.cmake looks for it. Does nothing on a machine without a driver.
#
#   scripts/cuda_toolkit.sh [--always]
#     --always  also without a driver, to compile for another machine
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly ROOT=build/cuda-toolkit

# One CUDA release; wheels carry no `latest`, so that two machines build the same code.
readonly WHEELS=(
  nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-runtime==13.0.96
  nvidia-cuda-cccl==13.0.85 nvidia-cublas==13.1.0.3
)

always=0
while (($#)); do
  case "$1" in
    --always) always=1; shift ;;
    -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) echo "cuda_toolkit: unknown argument '$1' (see --help)" >&2; exit 2 ;;
  esac
done

driver=$(sed -n 's/^NVRM version:.* \([0-9]\+\.[0-9.]\+\) .*/\1/p' /proc/driver/nvidia/version 2>/dev/null || true)
if [[ -z $driver ]] && ((!always)); then
  echo "setup: no NVIDIA driver: building for the CPU"
  exit 0
fi
for nvcc in "$(command -v nvcc || true)" /usr/local/cuda/bin/nvcc "$PWD/$ROOT/bin/nvcc"; do
  if [[ -x $nvcc ]]; then
    echo "setup: NVIDIA driver ${driver:-none}, CUDA compiler $nvcc"
    exit 0
  fi
done

echo "setup: NVIDIA driver ${driver:-none}, no nvcc: bringing CUDA's compiler from PyPI into $ROOT"
rm -rf "$ROOT"
mkdir -p "$ROOT/wheels"
python3 -m venv "$ROOT/python"
"$ROOT/python/bin/pip" download --quiet --no-deps --only-binary=:all: --dest "$ROOT/wheels" "${WHEELS[@]}"
for wheel in "$ROOT"/wheels/*.whl; do
  "$ROOT/python/bin/python" -m zipfile -e "$wheel" "$ROOT/unpacked"
done
# The wheels hold one tree, nvidia/cu13; nvcc and CMake expect lib64 and targets/ as an installed toolkit has them.
mv "$ROOT"/unpacked/nvidia/cu13/* "$ROOT/"
chmod +x "$ROOT"/bin/* "$ROOT"/nvvm/bin/*
ln -s lib "$ROOT/lib64"
ln -s libcudart.so.13 "$ROOT/lib/libcudart.so"  # the name that CMake looks for
mkdir -p "$ROOT/targets/x86_64-linux"
ln -s ../../include "$ROOT/targets/x86_64-linux/include"
ln -s ../../lib "$ROOT/targets/x86_64-linux/lib"
rm -rf "$ROOT/wheels" "$ROOT/unpacked" "$ROOT/python"
"$ROOT/bin/nvcc" --version | tail -n 1
