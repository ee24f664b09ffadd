#!/usr/bin/env bash
# Installs a real vLLM for the CPU into a cache outside the tree (once) and prints its folder.
# GRAPEVINE_CACHE: the cache, by default ~/.cache/grapevine.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${GRAPEVINE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/grapevine}/vllm-0.32.0
test/realengine/vllmcpu/install.sh "$venv" >&2
echo "$venv"
