#!/usr/bin/env bash
# Tests against a real Kubernetes control plane, in a network and mount namespace of their own. A skip is not a pass: the counts are printed.
# Needs root (network namespaces, chroot), iproute2 and util-linux, and what scripts/kube-parts.sh needs. Arguments go to the test binary,
# such as -test.run TestKube/Rights. GRAPEVINE_LOGS: a folder that keeps all logs.
set -euo pipefail
cd "$(dirname "$0")/.."
none() { echo "test-kube: $*" >&2; echo "test-kube: 0 run / all skipped"; exit 3; }
[ "$(id -u)" = 0 ] || none "root is needed: pods get network namespaces and root folders of their own"
for tool in ip unshare setpriv chroot; do command -v "$tool" >/dev/null || none "$tool is missing: install iproute2, util-linux and coreutils"; done
parts=$(scripts/kube-parts.sh) || none "the control plane could not be built (see above)"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Pods run as other users: they must be able to read the binaries wherever the tree is.
chmod 755 "$work"
mkdir "$work/bin"
for binary in gateway injector grapevine agent; do
  [ -x "bin/$binary" ] || none "bin/$binary is missing: run make build"
  install -m 755 "bin/$binary" "$work/bin/"
done
go test -c -o "$work/kube.test" ./test/kube

status=0
export GRAPEVINE_KUBE_BIN=$parts GRAPEVINE_BIN_DIR=$work/bin TMPDIR=$work
unshare --mount --net --propagation private sh -c 'mount -t tmpfs run /run && cd test/kube && exec "$@"' sh \
  "$work/kube.test" -test.v -test.timeout 40m "$@" 2>&1 | tee "$work/out" || status=$?
ran=$(grep -cE '^ +--- (PASS|FAIL)' "$work/out" || true)
skipped=$(grep -cE '^ *--- SKIP' "$work/out" || true)
echo "test-kube: $ran run / $skipped skipped"
grep -A1 -E '^ *--- SKIP' "$work/out" || true
exit $status
