#!/usr/bin/env bash
# Installs what the build lacks and says so; silent when nothing is missing.
set -euo pipefail

need=()
command -v gcc >/dev/null 2>&1 || command -v cc >/dev/null 2>&1 || need+=(gcc libc6-dev)
command -v pkg-config >/dev/null 2>&1 || need+=(pkg-config)
if ! pkg-config --exists libzmq 2>/dev/null; then need+=(libzmq3-dev); fi

if ! command -v go >/dev/null 2>&1; then
  echo "deps: Go is missing: install Go $(awk '/^go /{print $2}' go.mod) or newer (https://go.dev/doc/install)" >&2
  exit 1
fi
[ ${#need[@]} -eq 0 ] && exit 0

if ! command -v apt-get >/dev/null 2>&1; then
  echo "deps: missing ${need[*]} (Debian names): install them with your package manager" >&2
  exit 1
fi
run=()
if [ "$(id -u)" -ne 0 ]; then
  if command -v sudo >/dev/null 2>&1; then run=(sudo); else
    echo "deps: missing ${need[*]}: run as root: apt-get install -y ${need[*]}" >&2
    exit 1
  fi
fi
echo "deps: installing ${need[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { "${run[@]}" apt-get update -qq &&
  DEBIAN_FRONTEND=noninteractive "${run[@]}" apt-get install -y -qq --no-install-recommends "${need[@]}"; } >"$log" 2>&1; then
  cat "$log" >&2
  echo "deps: apt-get could not install ${need[*]}: see above" >&2
  exit 1
fi
