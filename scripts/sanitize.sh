#!/usr/bin/env bash
# The tests under AddressSanitizer and UndefinedBehaviorSanitizer, in build-sanitize/. Arguments go to ctest.
set -euo pipefail
cd "$(dirname "$0")/.."

export BUILD_DIR=build-sanitize
# -fsanitize=vptr looks at type information that torch's wheel does not export, and would call its objects broken.
scripts/build.sh -DTRIREME_SANITIZE=address,undefined -DCMAKE_CXX_FLAGS=-fno-sanitize=vptr -DCMAKE_BUILD_TYPE=RelWithDebInfo \
    -DTRIREME_BENCH=OFF

# torch's wheel is not instrumented: what it allocates at start and keeps for the life of the process would be
# reported as leaks of ours (suppressions below), and memory that it fills is only checked where we touch it.
suppressions=$PWD/scripts/lsan.supp
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:detect_stack_use_after_return=1:strict_string_checks=1:malloc_context_size=15}
export LSAN_OPTIONS=${LSAN_OPTIONS:-suppressions=$suppressions:print_suppressions=0}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1:halt_on_error=1}
scripts/test.sh "$@"
