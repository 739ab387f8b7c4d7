#!/usr/bin/env bash
# One folder, and a tar.gz of it, that runs on any x86-64 Linux with glibc 2.36 or newer: programs and the libraries they need.
#
#   scripts/bundle.sh [--preset NAME] [--out DIR] [--gpu-tests]
#     --preset NAME  the build to pack, which must be there (default: release)
#     --out DIR      where the folder and the archive go (default: build/bundle)
#     --gpu-tests    with the test programs that scripts/gpu_test.sh runs on a machine with a GPU
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

preset=release
out=build/bundle
components=(attnd naive)
while (($#)); do
  case "$1" in
    --preset) preset=${2:?--preset needs a name}; shift 2 ;;
    --out) out=${2:?--out needs a folder}; shift 2 ;;
    --gpu-tests) components+=(gpu_tests); shift ;;
    -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) echo "bundle: unknown argument '$1' (see --help)" >&2; exit 2 ;;
  esac
done

readonly build=build/$preset
version=$(sed -n 's/^CMAKE_PROJECT_VERSION:STATIC=//p' "$build/CMakeCache.txt")
readonly name=attnd-$version-linux-x86_64
rm -rf "${out:?}/$name"
for component in "${components[@]}"; do
  cmake --install "$build" --prefix "$out/$name" --component "$component" --strip >/dev/null
done
tar -C "$out" --owner=0 --group=0 -czf "$out/$name.tar.gz" "$name"
du -sh "$out/$name" "$out/$name.tar.gz"
