#!/usr/bin/env bash
# Runs the built tests of build/ (or $BUILD_DIR) and ends with "N passed, N failed". Arguments go to ctest.
set -uo pipefail
cd "$(dirname "$0")/.."

build=${BUILD_DIR:-build}
# One thread a rank: the machine's cores are shared by tests that run at once and by the ranks within a test.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
mkdir -p "$build"
log=$build/test.log
ctest --test-dir "$build" --parallel "${JOBS:-$(nproc)}" --output-on-failure --no-tests=error "$@" 2>&1 | tee "$log"
status=${PIPESTATUS[0]}

# "97% tests passed, 3 tests failed out of 100"
summary=$(grep -E 'tests passed, [0-9]+ tests? failed out of [0-9]+' "$log" | tail -1)
failed=$(sed -E 's/.*passed, ([0-9]+) tests? failed.*/\1/' <<<"$summary")
total=$(sed -E 's/.*out of ([0-9]+).*/\1/' <<<"$summary")
echo "$((${total:-0} - ${failed:-0})) passed, ${failed:-0} failed"
exit "$status"
