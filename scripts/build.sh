#!/usr/bin/env bash
# Configures where needed and builds everything in build/ (or $BUILD_DIR). Arguments go to cmake.
#   JOBS=N       compilers at a time (all cores)
#   TARGETS=...  no more than these, bin/trireme for example
set -euo pipefail
cd "$(dirname "$0")/.."

build=${BUILD_DIR:-build}
[[ -f $build/build.ninja ]] || cmake -G Ninja -B "$build" "$@"
read -ra targets <<<"${TARGETS:-}"
ninja -C "$build" -j "${JOBS:-$(nproc)}" "${targets[@]}"
