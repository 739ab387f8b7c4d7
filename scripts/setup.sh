#!/usr/bin/env bash
# Installs what the build needs, by apt, on Debian 12 and Ubuntu 24.04. Does nothing, quickly, when all is there. On a machine with an
# NVIDIA driver and no CUDA compiler it also brings one into the build tree (scripts/cuda_toolkit.sh).
#
#   scripts/setup.sh [--lint] [--fuzz] [--capture] [--bare] [--operate] [--browser]
#     (none)     compiler, CMake, libraries: enough to build and run everything
#     --lint     clang, clang-format and clang-tidy 14, shellcheck, codespell
#     --fuzz     clang 14 with libFuzzer, for scripts/fuzz.sh
#     --capture  Python virtual environments, for scripts/capture_qkv.py
#     --bare     debootstrap, for scripts/bare_system_test.sh
#     --operate  Prometheus, buildah, debootstrap, and validators of deploy/ from PyPI in build/operate-venv, for
#                scripts/dashboards_test.sh, deploy_test.sh and image_test.sh. Where systemd runs, the package prometheus
#                starts a service of its own on port 9090.
#     --browser  Chromium, and what drives it from PyPI in build/browser-venv, for scripts/statusz_test.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly LOG=build/setup.log

operate=false browser=false
packages=(
  ca-certificates g++ cmake ninja-build pkgconf ccache
  libgrpc++-dev protobuf-compiler protobuf-compiler-grpc libprotobuf-dev libabsl-dev
  libhwy-dev libtbb-dev libopenblas-dev libdnnl-dev
  prometheus-cpp-dev libspdlog-dev libfmt-dev libyaml-cpp-dev libcpp-httplib-dev libcli11-dev nlohmann-json3-dev
  libgtest-dev libgmock-dev python3
)
if [[ -e /proc/driver/nvidia/version ]]; then packages+=(python3-venv); fi  # for scripts/cuda_toolkit.sh
for argument in "$@"; do
  case "$argument" in
    --lint) packages+=(clang-14 clang-format-14 clang-tidy-14 shellcheck codespell) ;;
    --fuzz) packages+=(clang-14 libclang-rt-14-dev) ;;
    --capture) packages+=(python3-venv) ;;
    --bare) packages+=(debootstrap) ;;
    --operate) operate=true packages+=(prometheus buildah debootstrap python3-venv) ;;
    --browser) browser=true packages+=(chromium python3-venv) ;;
    -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) echo "setup: unknown argument '$argument' (see --help)" >&2; exit 2 ;;
  esac
done

# The packages among the arguments that are not installed, one a line.
missing_packages() {
  local installed
  installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "$@" 2>/dev/null | sed -n 's/^installed //p' || true)
  comm -13 <(sort -u <<<"$installed") <(printf '%s\n' "$@" | sort -u)
}

if ! command -v dpkg-query >/dev/null; then
  echo "setup: this system has no dpkg; install the equivalents of: ${packages[*]}" >&2
  exit 1
fi

# virtual_environment NAME: build/NAME-venv with the packages of scripts/NAME_requirements.txt, made anew when that list has changed.
virtual_environment() {
  local list=scripts/$1_requirements.txt venv=build/$1-venv
  if cmp -s "$list" "$venv/installed.txt"; then return; fi
  echo "setup: installing $list into $venv"
  run_logged rm -rf "$venv"
  run_logged python3 -m venv "$venv"
  run_logged "$venv/bin/pip" install --quiet --disable-pip-version-check -r "$list"
  cp "$list" "$venv/installed.txt"
}

virtual_environments() {
  if $operate; then virtual_environment operate; fi
  if $browser; then virtual_environment browser; fi
}

run_logged() {
  echo "+ $*" >>"$LOG"
  if ! "$@" >>"$LOG" 2>&1 </dev/null; then
    tail -n 20 "$LOG" >&2
    echo "setup: failed: $* (whole log: $LOG)" >&2
    exit 1
  fi
}

mkdir -p build
mapfile -t missing < <(missing_packages "${packages[@]}")
if ((${#missing[@]} == 0)); then
  virtual_environments
  echo "setup: all ${#packages[@]} packages are installed"
  exec scripts/cuda_toolkit.sh
fi

as_root=()
if ((EUID != 0)); then
  if ! command -v sudo >/dev/null; then
    echo "setup: not root and no sudo; as root, install: ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
readonly APT=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
  apt-get -q -y -o DPkg::Lock::Timeout=600 -o Acquire::Retries=5)

echo "setup: updating the package lists (log: $LOG)"
run_logged "${APT[@]}" update
echo "setup: installing ${#missing[@]} packages: ${missing[*]}"
run_logged "${APT[@]}" install --no-install-recommends "${missing[@]}"
virtual_environments
scripts/cuda_toolkit.sh
echo "setup: done"
