#!/usr/bin/env bash
# Proof that a new machine needs nothing but this tree: makes a bare Debian 12 root file system (debootstrap,
# variant minbase), copies the committed tree in without .git, and runs commands there as root.
#
#   scripts/bare_system_test.sh [--keep] [COMMAND]...
#     COMMAND  run by bash in the tree, in order; default: "bash scripts/demo.sh" and "bash scripts/test.sh"
#     --keep   leave the root file system in build/bare-system for a look
#   ATTND_DEBIAN_MIRROR names the mirror (default http://deb.debian.org/debian). Needs root and about 4 GB of disk.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [[ ${1:-} == -h || ${1:-} == --help ]]; then sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 0; fi
readonly ROOT=$PWD/build/bare-system
readonly LOG=$PWD/build/bare-system.log
readonly MIRROR=${ATTND_DEBIAN_MIRROR:-http://deb.debian.org/debian}

# The mounts live in a mount namespace of their own and end with it, whatever happens.
if [[ ${ATTND_BARE_NAMESPACE:-} != 1 ]]; then
  if ((EUID != 0)); then echo "bare_system_test: needs root" >&2; exit 1; fi
  exec env ATTND_BARE_NAMESPACE=1 unshare --mount --propagation private bash "$PWD/scripts/bare_system_test.sh" "$@"
fi

keep=false
if [[ ${1:-} == --keep ]]; then keep=true; shift; fi
commands=("$@")
if ((${#commands[@]} == 0)); then commands=("bash scripts/demo.sh" "bash scripts/test.sh"); fi

cleanup() {
  umount -R "$ROOT/dev" "$ROOT/proc" 2>/dev/null || true
  if ! $keep && ! mountpoint -q "$ROOT/dev" && ! mountpoint -q "$ROOT/proc"; then rm -rf "$ROOT"; fi
}
trap cleanup EXIT

mkdir -p build
rm -rf "$ROOT"
echo "bare system: debootstrap (log: $LOG)"
if ! debootstrap --variant=minbase bookworm "$ROOT" "$MIRROR" >"$LOG" 2>&1; then
  tail -n 20 "$LOG" >&2
  exit 1
fi
# How this machine reaches its package registry: names, proxy, certificates.
for file in /etc/resolv.conf /etc/hosts; do
  if [[ -e $file ]]; then cp -L "$file" "$ROOT$file"; fi
done
grep -rhE '^\s*Acquire::[A-Za-z:-]+\s+"[^"]*";' /etc/apt/apt.conf.d /etc/apt/apt.conf 2>/dev/null >"$ROOT/etc/apt/apt.conf.d/90host" || true
mount -t proc proc "$ROOT/proc"
mount --rbind /dev "$ROOT/dev"

mkdir -p "$ROOT/opt/attnd"
if git rev-parse --git-dir >/dev/null 2>&1; then
  git archive HEAD | tar -x -C "$ROOT/opt/attnd"
else
  tar --exclude=./build -cf - . | tar -x -C "$ROOT/opt/attnd"
fi

for command in "${commands[@]}"; do
  echo "bare system: $command"
  start=$SECONDS
  status=0
  env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb \
    ${http_proxy:+http_proxy="$http_proxy"} ${https_proxy:+https_proxy="$https_proxy"} \
    chroot "$ROOT" bash -c "cd /opt/attnd && $command" </dev/null || status=$?
  echo "bare system: exit $status after $((SECONDS - start)) s"
  if ((status != 0)); then exit 1; fi
done
