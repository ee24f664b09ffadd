#!/usr/bin/env bash
# fuzz.sh TIME [FOLDER ...]: runs the fuzz targets of these folders (all without) for TIME each, one after another.
set -euo pipefail
time=${1:-30s}
[ $# -gt 0 ] && shift
count=0
out=$(mktemp)
trap 'rm -f "$out"' EXIT

# fuzz FOLDER TARGET: one target. Shrinking inputs that are merely new is capped in calls: its default of a minute each
# would eat the time. Go's fuzzer can report the end of -fuzztime itself as a failure ("context deadline exceeded", no
# input written: its coordinator compares the errors of a context and of its child, which the runtime ends a moment
# later); that alone is a pass.
fuzz() {
  if go test -run '^$' -fuzz "^$2\$" -fuzztime "$time" -fuzzminimizetime 200x "./$1" 2>&1 | tee "$out" | grep -E '^(fuzz: elapsed|ok)'; then return 0; fi
  if grep -qx '    context deadline exceeded' "$out" && ! grep -qE 'Failing input written|panic:|_test\.go:[0-9]+:' "$out"; then
    echo "fuzz: the time was up; no failing input"
    return 0
  fi
  grep -vE '^fuzz: elapsed' "$out"
  return 1
}

while IFS=: read -r file target; do
  folder=$(dirname "$file")
  if [ $# -gt 0 ] && [[ " $* " != *" $folder "* ]]; then continue; fi
  echo "fuzz: ./$folder $target ($time)"
  fuzz "$folder" "$target" </dev/null
  count=$((count + 1))
done < <(git ls-files '*_test.go' | xargs grep -oE '^func Fuzz[A-Za-z0-9_]+' /dev/null | sed 's/func //')
[ "$count" -gt 0 ] || { echo "fuzz: no target found" >&2; exit 1; }
echo "fuzz: $count targets passed"
