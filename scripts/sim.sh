#!/usr/bin/env bash
# sim.sh [full]: plays traces against simulated fleets under our policy and other routers', prints tables and writes a line of JSON a run.
#
# Without "full": eight pods, three gateways, 50, 80 and 95 % load, three draws of the arrivals; ends after 20 minutes at most and
# begins anew each time. With "full": fleets of 8, 3, 16 and 64 pods, both engines, both kinds of arrivals, all policies, five draws; what
# is stopped goes on where it was when started again, so that it may run overnight.
#
# TRACES=FOLDER   request traces anywhere below it: Mooncake's (*conversation_trace*, *synthetic_trace*, *mooncake*), WEKA's
#                 (*cc-traces*), Azure's (*.csv) and files of our own form (*.jsonl), plain, gzip or zstd. Without it: made-up loads.
# RESULTS=FILE    by default sim.jsonl, or sim-full.jsonl
# SEEDS, LOADS, PODS, GATEWAYS, ENGINES, ARRIVALS, POLICIES   replace those above, e.g. PODS="8 16" LOADS=0.8
# Arguments behind "full", or alone, go to each `grapevine sim`, e.g. --loss 0.01
set -euo pipefail
cd "$(dirname "$0")/.."
[ -x bin/grapevine ] || { echo "sim: build first: make build" >&2; exit 1; }
full=
if [ "${1:-}" = full ]; then full=1; shift; fi
say() { echo "sim: $*" >&2; }

if [ -n "$full" ]; then
  results=${RESULTS:-sim-full.jsonl}
  pods=${PODS:-8 3 16 64}
  set -- --seeds "${SEEDS:-5}" --load "${LOADS:-0.5,0.8,0.95}" --gateways "${GATEWAYS:-3}" --engine "${ENGINES:-chunked,single}" \
    --arrivals "${ARRIVALS:-open,causal}" \
    --policy "${POLICIES:-round-robin,least-outstanding,session-hash,llmd-legacy,llmd-default,dynamo,sglang,min-ttft,shared-cache,grapevine-exact,grapevine}" "$@"
  deadline=
  say "the whole matrix: with the public traces about half a day on two cores; each line tells what is left of its part"
  [ -s "$results" ] && say "going on with $results; delete it to begin anew"
else
  results=${RESULTS:-sim.jsonl}
  pods=${PODS:-8}
  set -- --seeds "${SEEDS:-3}" --load "${LOADS:-0.5,0.8,0.95}" --gateways "${GATEWAYS:-3}" --engine "${ENGINES:-chunked}" \
    --arrivals "${ARRIVALS:-open,causal}" \
    --policy "${POLICIES:-round-robin,least-outstanding,llmd-legacy,llmd-default,dynamo,sglang,grapevine}" "$@"
  deadline=$((SECONDS + 1200))
  rm -f "$results"
fi

# play N ARGS...: one part of the matrix, on N pods.
play() {
  local n=$1 rc=0
  shift
  local cmd=(bin/grapevine sim --results "$results" --pods "$n" "$@")
  if [ -n "$deadline" ]; then
    if [ "$SECONDS" -ge "$deadline" ]; then
      say "20 minutes are over: left out: $*"
      return
    fi
    cmd=(timeout --foreground --signal INT $((deadline - SECONDS)) "${cmd[@]}")
  fi
  "${cmd[@]}" || rc=$?
  case $rc in
    0) ;;
    124) say "20 minutes are over" ;;
    130) exit 130 ;; # Ctrl-C
    *) exit "$rc" ;;
  esac
}

# inputs: the arguments that each trace file needs, one file a line.
inputs() {
  local file name flags
  find "$TRACES" -type f \( -name '*.jsonl' -o -name '*.jsonl.gz' -o -name '*.jsonl.zst' -o -name '*.csv' -o -name '*.csv.gz' -o -name '*.csv.zst' \) | sort |
    while read -r file; do
      name=${file##*/}
      name=${name%%.*}
      case $file in
        *cc-traces*) flags="--format cc --max-prompt 65536" ;; # sessions up to what fits eight pods' caches
        *conversation_trace* | *synthetic_trace* | *mooncake*) flags="--format mooncake" ;;
        *.csv*)
          [ -n "$full" ] || continue # lengths only: nothing to reuse
          flags="--format azure"
          ;;
        *) flags="--format grapevine" ;;
      esac
      # shellcheck disable=SC2086
      if wrong=$(bin/grapevine sim --quiet --trace "$name=$file" $flags --requests 1 --policy round-robin 2>&1 >/dev/null); then
        echo "$flags --trace $name=$file"
      else
        say "left out: $wrong"
      fi
    done
}

if [ -n "${TRACES:-}" ]; then
  [ -d "$TRACES" ] || { say "TRACES=$TRACES is no folder"; exit 2; }
  found=$(inputs)
  [ -n "$found" ] || { say "no trace in $TRACES that could be read"; exit 1; }
  for n in $pods; do
    while read -r -a flags; do play "$n" "${flags[@]}" "$@"; done <<<"$found"
  done
else
  say "made-up loads; for your own traffic give TRACES=FOLDER (grapevine sim --help says which forms; docs/comparison.md where public traces are)"
  for n in $pods; do play "$n" --generate shared-prefix,multi-turn,agents,W1,W2,W3 "$@"; done
fi
say "results in $results; as tables in Markdown: bin/grapevine sim --table $results"
