#!/usr/bin/env bash
# Where a step's time goes, on RANKS local ranks (2) with one thread each: see step_profile.cpp.
#   bench/step_profile.sh [SEQUENCE [fp32|bf16 [layer|keep_attention [TILES]]]]
set -euo pipefail
cd "$(dirname "$0")/.."
ranks=${RANKS:-2}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} WORLD_SIZE=$ranks LOCAL_WORLD_SIZE=$ranks MASTER_ADDR=127.0.0.1
export MASTER_PORT=${MASTER_PORT:-29641}
pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true' EXIT
for ((rank = ranks - 1; rank >= 0; --rank)); do
  RANK=$rank LOCAL_RANK=$rank "${BUILD:-build}/bin/step_profile" "${1:-2048}" "${2:-fp32}" "${3:-keep_attention}" "${4:-0}" &
  pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid"; done
