#!/usr/bin/env bash
# fuzz.sh TIME: runs every fuzz target of the module for TIME, one after another.
set -euo pipefail
time=${1:-30s}
count=0
while IFS=: read -r file target; do
  pkg=./$(dirname "$file")
  echo "fuzz: $pkg $target ($time)"
  go test -run '^$' -fuzz "^${target}\$" -fuzztime "$time" "$pkg"
  count=$((count + 1))
done < <(git ls-files '*_test.go' | xargs grep -oE '^func Fuzz[A-Za-z0-9_]+' /dev/null | sed 's/func //')
[ "$count" -gt 0 ] || { echo "fuzz: no target found" >&2; exit 1; }
echo "fuzz: $count targets passed"
