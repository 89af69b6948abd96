#!/usr/bin/env bash
# need.sh PROGRAM...: sees that each is there; an absolute path is a file that must exist. Debian's packages are installed, with a message, if
# we are root and apt-get exists; otherwise the script says what to install and fails.
set -euo pipefail
for tool in "$@"; do
  command -v "$tool" >/dev/null && continue # true of a path, too, if the file can be run
  case $tool in
    go) echo "Go is missing: install the version named in go.mod, see https://go.dev/doc/install" >&2; exit 1 ;;
    gcc) package="gcc libc6-dev" ;; # the race detector links C
    llvm-strip-19) package=llvm-19 ;;
    nft) package=nftables ;;
    busybox) package=busybox-static ;;
    /usr/lib/cni/*) package=containernetworking-plugins ;;
    chromium) package="chromium fonts-dejavu-core" ;;
    *) package=$tool ;;
  esac
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "$tool is missing: install the package $package" >&2
    exit 1
  fi
  echo "installing $package ($tool is missing)"
  log=$(mktemp)
  exec 9>"${TMPDIR:-/tmp}/hawser-apt.lock" && flock 9 # apt-get does not wait for another one
  # shellcheck disable=SC2086 # it may be several packages
  if ! { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends $package; } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    rm -f "$log"
    echo "could not install $package" >&2
    exit 1
  fi
  exec 9>&-
  rm -f "$log"
done
