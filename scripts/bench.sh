#!/usr/bin/env bash
# bench.sh COUNT: runs the benchmarks COUNT times and prints benchstat's summary.
# BENCH selects benchmarks by regular expression, BENCHTIME is go test's -benchtime.
set -euo pipefail
count=${1:-10}
out=$(mktemp)
trap 'rm -f "$out"' EXIT
packages=$(git ls-files '*_test.go' | xargs grep -lE '^func Benchmark' | xargs -n1 dirname | sort -u | sed 's|^|./|')
# shellcheck disable=SC2086
go test -run '^$' -bench "${BENCH:-.}" -benchtime "${BENCHTIME:-200ms}" -benchmem -count "$count" $packages | tee "$out"
echo
go tool benchstat "$out"
