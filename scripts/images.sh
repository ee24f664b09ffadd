#!/usr/bin/env bash
# images.sh [PART...]: builds the container images of gateway, agent, injector and grapevine (by default all) with whatever builder
# is here: docker, podman or buildah. With --rootfs DIR it needs none: it carries out the steps of the Containerfiles in DIR and
# starts the results there, each alone in a folder that has nothing but what its image has beyond the base.
#
#   --registry R   name images R/PART:TAG (default: grapevine)
#   --tag T        default: the version of the tree
#   --push         push them too
#   --rootfs DIR   no images: folders DIR/PART, started and measured; needs root (chroot), Go and, for the agent, libzmq
#   --print        say the commands only
# GO, BASE: other images to build with and to stand on, best with digests. PLATFORM: as linux/arm64; default: this machine's.
set -euo pipefail
cd "$(dirname "$0")/.."
say() { echo "images: $*" >&2; }
usage() { sed -n '2,12s/^# \{0,1\}//p' "$0"; }

registry=grapevine tag= push= rootfs= print= parts=()
while [ $# -gt 0 ]; do
  case $1 in
  --registry) registry=${2:?}; shift ;;
  --tag) tag=${2:?}; shift ;;
  --rootfs) rootfs=${2:?}; shift ;;
  --push) push=1 ;;
  --print) print=1 ;;
  -h | --help) usage; exit 0 ;;
  -*) say "no option $1"; usage >&2; exit 2 ;;
  *)
    [ -f "deploy/images/$1.Containerfile" ] || { say "no image $1: give gateway, injector, agent or grapevine"; exit 2; }
    parts+=("$1")
    ;;
  esac
  shift
done
[ ${#parts[@]} -gt 0 ] || parts=(gateway injector agent grapevine)
VERSION=${VERSION:-$(git describe --tags --always --dirty 2>/dev/null || echo unknown)}
revision=$(git rev-parse HEAD 2>/dev/null || echo unknown)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
export VERSION SOURCE_DATE_EPOCH
tag=${tag:-$VERSION}

# do_it WORDS...: runs a command, or prints it.
do_it() { if [ -n "$print" ]; then echo "$*"; else "$@"; fi; }

if [ -z "$rootfs" ]; then
  if docker info >/dev/null 2>&1; then
    builder=(docker build)
    docker buildx version >/dev/null 2>&1 && builder=(docker buildx build --load)
    pusher=docker
  elif command -v podman >/dev/null; then
    builder=(podman build) pusher=podman
  elif command -v buildah >/dev/null; then
    builder=(buildah build) pusher=buildah
  else
    say "no builder here (docker with its daemon, podman or buildah); --rootfs DIR does the same steps without one"
    exit 3
  fi
  options=(--build-arg "VERSION=$VERSION" --build-arg "REVISION=$revision" --build-arg "SOURCE_DATE_EPOCH=$SOURCE_DATE_EPOCH")
  [ -n "${GO:-}" ] && options+=(--build-arg "GO=$GO")
  [ -n "${BASE:-}" ] && options+=(--build-arg "BASE=$BASE")
  [ -n "${PLATFORM:-}" ] && options+=(--platform "$PLATFORM")
  for part in "${parts[@]}"; do
    do_it "${builder[@]}" --file "deploy/images/$part.Containerfile" "${options[@]}" --tag "$registry/$part:$tag" .
    [ -z "$push" ] || do_it "$pusher" push "$registry/$part:$tag"
  done
  [ -z "$push" ] || say "the chart pulls them with --set image.registry=$registry --set image.tag=$tag"
  exit
fi

# Without a builder.
run=0 skipped=0 failed=0
mkdir -p "$rootfs"
rootfs=$(cd "$rootfs" && pwd)

# copied PART: what the last stage of PART's Containerfile copies, from and to, checked to be the whole of rootfs.sh's folder.
copied() { awk '/^FROM /{ n++ } n == 2 && $1 == "COPY" { print $2, $3, $4 }' "deploy/images/$1.Containerfile"; }
# entry PART: the program that the image starts; user PART: as whom.
entry() { sed -n 's/^ENTRYPOINT \["\(.*\)"\]$/\1/p' "deploy/images/$1.Containerfile"; }
user() { sed -n 's/^USER //p' "deploy/images/$1.Containerfile"; }

# inside PART ARGS...: becomes the image's program, alone in its folder, as the image starts it.
inside() {
  local part=$1
  shift
  # Nothing of this shell's environment, GRAPEVINE_* above all.
  exec env -i "$(command -v chroot)" --userspec="$(user "$part")" "$rootfs/$part" "$(entry "$part")" "$@"
}

result() { # OK WHAT
  run=$((run + 1))
  if [ "$1" -eq 0 ]; then echo "  ok: $2"; else echo "  FAILED: $2"; failed=$((failed + 1)); fi
}

# answers URL STATUS: whether URL answers with STATUS within ten seconds or so.
answers() {
  local code
  for _ in $(seq 50); do
    code=$(curl -s -o /dev/null -w '%{http_code}' --max-time 2 "$1" || true)
    [ "$code" = "$2" ] && return 0
    sleep 0.2
  done
  say "$1 answers $code, not $2"
  return 1
}

# starts PART URL STATUS ARGS...: whether PART, started with ARGS, answers and ends cleanly on SIGTERM.
starts() {
  local part=$1 url=$2 status=$3 pid rc=0
  shift 3
  inside "$part" "$@" 2>"$rootfs/$part.log" &
  pid=$!
  answers "$url" "$status" || rc=1
  kill "$pid" 2>/dev/null || rc=1
  wait "$pid" || rc=1
  [ $rc -eq 0 ] || cat "$rootfs/$part.log" >&2
  return $rc
}

for part in "${parts[@]}"; do
  if [ ! -f "cmd/$part/main.go" ]; then
    echo "$part: skipped: no such command in this tree"
    skipped=$((skipped + 1))
    continue
  fi
  [ "$(copied "$part")" = "--from=build /out/ /" ] || { say "$part.Containerfile copies more than rootfs.sh makes"; exit 1; }
  rm -rf "${rootfs:?}/$part"
  deploy/images/rootfs.sh "$part" "$rootfs/$part"
  echo "$part: $(du -sk --apparent-size "$rootfs/$part" | cut -f1) KB, $(find "$rootfs/$part" -name '*.so*' | wc -l) shared libraries"
  if [ "$(id -u)" -ne 0 ]; then
    echo "  skipped: starting it needs root (chroot)"
    skipped=$((skipped + 1))
    continue
  fi
  version=$(inside "$part" --version) && [[ $version == *"$VERSION"* ]] && rc=0 || rc=1
  result $rc "$version"
  case $part in
  gateway)
    starts gateway http://127.0.0.1:19090/healthz 200 --listen 127.0.0.1:18080 --admin-listen 127.0.0.1:19090 --gossip-bind 127.0.0.1:17946 && rc=0 || rc=1
    result $rc "serves and ends on SIGTERM"
    starts gateway http://127.0.0.1:18080/health 503 --listen 127.0.0.1:18080 --admin-listen 127.0.0.1:19090 --gossip-bind 127.0.0.1:17946 && rc=0 || rc=1
    result $rc "is not ready while its pool is empty"
    ;;
  agent)
    starts agent http://127.0.0.1:19464/healthz 200 --engine http://127.0.0.1:9 --gossip-bind 127.0.0.1:17946 --metrics-listen 127.0.0.1:19464 && rc=0 || rc=1
    result $rc "serves beside an engine that is not there, and ends on SIGTERM"
    ;;
  esac
done
echo "images: $run run / $skipped skipped, $failed failed"
[ "$failed" -eq 0 ]
