#!/usr/bin/env bash
# Builds the container images without a container engine and without a registry, starts the server as the image says (its user, its
# command, a read-only root file system), drives it over gRPC, scrapes it, and stops it with SIGTERM.
#
#   scripts/image_test.sh [--target NAME]... [--bundle DIR] [--keep]
#     --target NAME  image to build: cpu and loadtest (the default), cpu-naive, server, server-naive. Images with CUDA are built,
#                    looked at and run on the CPU; with a GPU they need NVIDIA's container toolkit, which this script does without
#     --bundle DIR   a folder made by scripts/bundle.sh from the same commit, on a Debian with the same updates, with CUDA where the
#                    image has it (scripts/cuda_toolkit.sh --always): programs and libraries must be equal to the byte
#     --keep         leave the images in build/image-test (several GB) for a look; the base and the compiler's cache stay in any case
# Needs root, scripts/setup.sh --operate and about 10 GB of disk. The base image is made from a Debian 12 mirror
# (ATTND_DEBIAN_MIRROR, default http://deb.debian.org/debian; security updates from the same address with -security) and slimmed like
# the official one. Logs lie in build/image-test/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly OUT=$PWD/build/image-test
readonly BASE=docker.io/library/debian:bookworm-slim
readonly MIRROR=${ATTND_DEBIAN_MIRROR:-http://deb.debian.org/debian}

targets=()
keep=false
bundle=
while (($#)); do
  case "$1" in
    --target) targets+=("${2:?--target needs a name}"); shift 2 ;;
    --bundle) bundle=$(realpath "${2:?--bundle needs a folder}"); shift 2 ;;
    --keep) keep=true; shift ;;
    -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) echo "image_test: unknown argument '$1' (see --help)" >&2; exit 2 ;;
  esac
done
if ((${#targets[@]} == 0)); then targets=(cpu loadtest); fi
if ((EUID != 0)); then echo "image_test: needs root" >&2; exit 1; fi

# What is mounted or started lives in name spaces of this script's own and ends with it.
if [[ ${ATTND_IMAGE_NAMESPACE:-} != 1 ]]; then
  scripts/setup.sh --operate
  arguments=()
  for target in "${targets[@]}"; do arguments+=(--target "$target"); done
  if $keep; then arguments+=(--keep); fi
  if [[ -n $bundle ]]; then arguments+=(--bundle "$bundle"); fi
  exec env ATTND_IMAGE_NAMESPACE=1 unshare --mount --propagation private --pid --fork --mount-proc --kill-child \
    bash "$PWD/scripts/image_test.sh" "${arguments[@]}"
fi

fail() {
  echo "image_test: $1" >&2
  if [[ -s ${2:-} ]]; then tail -n 30 "$2" >&2; fi
  exit 1
}

mkdir -p "$OUT/tmp"
export BUILDAH_ISOLATION=chroot TMPDIR=$OUT/tmp
b() { buildah --root "$OUT/storage" --runroot "$OUT/run" --storage-driver vfs "$@"; }

cleanup() {
  b rm --all >/dev/null 2>&1 || true
  if ! $keep; then
    for target in "${targets[@]}"; do b rmi "localhost/attnd:$target" >/dev/null 2>&1 || true; done
    b rmi --prune >/dev/null 2>&1 || true
  fi
}
trap cleanup EXIT

make_base() {
  local root=$OUT/base-root container
  rm -rf "$root"
  debootstrap --variant=minbase bookworm "$root" "$MIRROR"
  # Updates, as the official image has them.
  for suite in "$MIRROR bookworm-updates" "$MIRROR-security bookworm-security"; do echo "deb $suite main"; done >>"$root/etc/apt/sources.list"
  # How this machine reaches its package registries, for the build stages; the official image does not have it.
  grep -rhE '^\s*Acquire::[A-Za-z:-]+\s+"[^"]*";' /etc/apt/apt.conf.d /etc/apt/apt.conf 2>/dev/null \
    >"$root/etc/apt/apt.conf.d/90host" || true
  mkdir -p "$root/usr/local/share/ca-certificates"
  cp /usr/local/share/ca-certificates/*.crt "$root/usr/local/share/ca-certificates/" 2>/dev/null || true
  cp /etc/pip.conf "$root/etc/" 2>/dev/null || true
  rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/* "$root"/var/log/* "$root"/usr/share/{doc,info,locale,man}/*
  tar -C "$root" --numeric-owner -cf "$OUT/base.tar" .
  rm -rf "$root"
  container=$(b from scratch)
  b add "$container" "$OUT/base.tar" /
  b config --cmd bash "$container"
  b commit --rm "$container" "$BASE"
  rm "$OUT/base.tar"
}
if ! b inspect --type image "$BASE" >/dev/null 2>&1; then
  echo "image_test: making the base image (log: $OUT/base.log)"
  make_base >"$OUT/base.log" 2>&1 || fail "the base image could not be made" "$OUT/base.log"
fi

version=$(sed -n 's/^project(attnd VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
commit=$(git rev-parse HEAD 2>/dev/null || echo unknown)
for target in "${targets[@]}"; do
  echo "image_test: building $target (log: $OUT/$target.log)"
  # HEALTHCHECK is of Docker's format; the cache mount keeps the compiler's results between runs.
  b build --format docker --network host --pull-never --layers --target "$target" --tag "attnd:$target" \
    --build-arg COMMIT="$commit" --build-arg VERSION="$version" . >"$OUT/$target.log" 2>&1 ||
    fail "the image $target could not be built" "$OUT/$target.log"
done

PYTHONDONTWRITEBYTECODE=1 python3 tests/deploy/image_checks.py --storage "$OUT/storage" --run "$OUT/run" --out "$OUT" \
  --version "$version" --commit "$commit" ${bundle:+--bundle="$bundle"} "${targets[@]}"
