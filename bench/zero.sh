#!/usr/bin/env bash
# What ZeRO's stages, schedule and offload cost and save on this machine's CPUs. Arguments go to bench/zero/measure.py:
#   bench/zero.sh memory       peak bytes of each stage on 1, 2 and 4 ranks against the formula; a quarter of an hour
#   bench/zero.sh nvme         a model whose states are four times the memory that its process may have
#   bench/zero.sh throughput   seconds a step: stage 3 against 0, gathering ahead on and off, offload against none
set -euo pipefail
cd "$(dirname "$0")/.."
exec .venv/bin/python -m bench.zero.measure "$@"
