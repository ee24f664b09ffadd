#!/usr/bin/env bash
# What the gateway adds to a request, in time to first byte and CPU, beside round-robin in the same
# gateway and nginx as a bare proxy. Takes about three minutes; give it a quiet machine.
# Arguments go to test/overhead, e.g. --json, -sizes 128, -model DIR, -engines emulated; see -help.
set -euo pipefail
cd "$(dirname "$0")/.."
[ -x bin/grapevine ] || { echo "overhead: build first: make build" >&2; exit 1; }
tool=$(mktemp)
trap 'rm -f "$tool"' EXIT
go build -o "$tool" ./test/overhead
"$tool" -exe bin/grapevine "$@"
