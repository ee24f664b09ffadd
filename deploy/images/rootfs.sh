#!/usr/bin/env bash
# rootfs.sh PART DIR: builds PART (gateway, injector, agent, grapevine) and puts all that its image holds, beyond its base
# image, below DIR. The Containerfiles copy DIR and nothing else; scripts/images.sh --rootfs starts it without a builder.
# VERSION and SOURCE_DATE_EPOCH come from the environment. Same source, same Go, same libraries: same bytes.
set -euo pipefail
part=$1 out=$2
mkdir -p "$out/usr/local/bin" "$out/usr/share/doc/grapevine"

export GOFLAGS="-trimpath -buildvcs=false -mod=readonly"
ldflags="-s -w -X main.version=${VERSION:-unknown}"
case $part in
gateway | injector)
  CGO_ENABLED=0 go build -ldflags "$ldflags" -o "$out/usr/local/bin/$part" "./cmd/$part"
  ;;
agent | grapevine)
  # ZMQ is C. Names are resolved in Go all the same: C's resolver would want further files.
  CGO_ENABLED=1 CGO_CFLAGS="-O2 -g0 -Wno-deprecated-declarations" \
    go build -tags netgo,osusergo -ldflags "$ldflags -extldflags=-Wl,--build-id=none" -o "$out/usr/local/bin/$part" "./cmd/$part"
  ;;
*)
  echo "rootfs.sh: no part $part: give gateway, injector, agent or grapevine" >&2
  exit 2
  ;;
esac
cp LICENSE "$out/usr/share/doc/grapevine/copyright"

# libs FILE: the shared libraries that FILE needs, by ldd.
libs() { ldd "$1" | awk '$2 == "=>" && $3 ~ /^\// { print $3 } $1 ~ /^\// { print $1 }'; }

if [ "$part" = agent ] || [ "$part" = grapevine ]; then
  libc=$(ldd "$out/usr/local/bin/$part" | awk '$1 == "libc.so.6" { print $3 }')
  {
    libs "$out/usr/local/bin/$part"
    # The driver's libnvidia-ml.so.1 is put beside these by the container runtime and asks for them.
    for name in libdl.so.2 libpthread.so.0 librt.so.1 libm.so.6; do echo "$(dirname "$libc")/$name"; done
  } | sort -u | while read -r lib; do
    # Where /lib is a link to /usr/lib, copying a folder of that name over it fails; the loader's path is in the binary.
    case $lib in */ld-linux*) to=$lib ;; *) to=$(readlink -f "$(dirname "$lib")")/$(basename "$lib") ;; esac
    mkdir -p "$out$(dirname "$to")"
    cp -L "$lib" "$out$to"
    chmod 0755 "$out$to"
    # Each library's licence, under the name of its Debian package.
    package=$({ dpkg-query -S "$(readlink -f "$lib")" 2>/dev/null || dpkg-query -S "$lib" 2>/dev/null || true; } | head -n1 | cut -d: -f1)
    if [ -n "$package" ] && [ -e "/usr/share/doc/$package/copyright" ]; then
      mkdir -p "$out/usr/share/doc/$package"
      cp -L "/usr/share/doc/$package/copyright" "$out/usr/share/doc/$package/copyright"
    fi
  done
fi

find "$out" -exec touch -h -d "@${SOURCE_DATE_EPOCH:-0}" {} +
