#!/usr/bin/env bash
# fuzz.sh TIME [FOLDER ...]: runs the fuzz targets of these folders (all without) for TIME each, one after another.
set -euo pipefail
time=${1:-30s}
[ $# -gt 0 ] && shift
count=0
while IFS=: read -r file target; do
  folder=$(dirname "$file")
  if [ $# -gt 0 ] && [[ " $* " != *" $folder "* ]]; then continue; fi
  echo "fuzz: ./$folder $target ($time)"
  go test -run '^$' -fuzz "^${target}\$" -fuzztime "$time" "./$folder"
  count=$((count + 1))
done < <(git ls-files '*_test.go' | xargs grep -oE '^func Fuzz[A-Za-z0-9_]+' /dev/null | sed 's/func //')
[ "$count" -gt 0 ] || { echo "fuzz: no target found" >&2; exit 1; }
echo "fuzz: $count targets passed"
