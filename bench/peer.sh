#!/usr/bin/env bash
# Side by side with DeepSpeed + Transformers on this machine's CPUs: seconds a step, losses and memory, both sides
# interleaved in one run. Takes half an hour with the defaults; arguments go to bench/peer/compare.py (see --help).
#   PEER_VENV=DIR  the peer's own Python environment (.venv-peer, made when missing: DeepSpeed brings many packages)
set -euo pipefail
cd "$(dirname "$0")/.."

venv=${PEER_VENV:-.venv-peer}
if [[ ! -x $venv/bin/python ]] || ! "$venv/bin/python" -c 'import importlib.util as u, sys; sys.exit(not u.find_spec("deepspeed"))'; then
  echo "peer: making $venv"
  python=$(.venv/bin/python -c 'import sys; print(sys._base_executable)')
  "$python" -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 deepspeed==0.19.8 \
      transformers==5.24.0 accelerate safetensors psutil ninja
fi
export PATH=$(cd "$venv/bin" && pwd):$PATH  # torchrun, and ninja for the operators that DeepSpeed compiles
exec python bench/peer/compare.py "$@"
