#!/usr/bin/env bash
# Configures where needed and builds everything in build/ (or $BUILD_DIR).
#   JOBS=N  compilers at a time (all cores)
set -euo pipefail
cd "$(dirname "$0")/.."

build=${BUILD_DIR:-build}
[[ -f $build/build.ninja ]] || cmake -G Ninja -B "$build" "$@"
ninja -C "$build" -j "${JOBS:-$(nproc)}"
