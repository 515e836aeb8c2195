#!/usr/bin/env bash
# Builds the fuzzers in build-fuzz/ (clang, AddressSanitizer, UndefinedBehaviorSanitizer; no LibTorch) and runs each.
#   tests/fuzz/run.sh [fuzzers...]     all: safetensors token_file config weight_index
# RUNS: executions of each (1000000). SEED: of the mutations (1).
set -euo pipefail
cd "$(dirname "$0")/../.."

readonly runs=${RUNS:-1000000} seed=${SEED:-1} build=build-fuzz
fuzzers=("$@")
((${#fuzzers[@]})) || fuzzers=(safetensors token_file config weight_index)

quietly() {  # the output only where it fails
  local output
  output=$("$@" 2>&1) || { echo "$output" >&2; exit 1; }
}
CXX=${CXX:-clang++} quietly cmake -G Ninja -B "$build" -DTRIREME_FUZZ=ON -DCMAKE_BUILD_TYPE=RelWithDebInfo
quietly ninja -C "$build" "${fuzzers[@]/%/_fuzz}"
python3 tests/fuzz/seeds.py "$build/seeds"

failed=0
for name in "${fuzzers[@]}"; do
  # A corpus of its own each time, so that the same seed does the same.
  rm -rf "$build/corpus/$name" && mkdir -p "$build/corpus/$name" "$build/faults"
  log=$build/$name.log
  if "$build/bin/${name}_fuzz" -runs="$runs" -seed="$seed" -max_len=1024 -timeout=10 -rss_limit_mb=2048 \
      -dict=tests/fuzz/json.dict -artifact_prefix="$build/faults/$name-" \
      "$build/corpus/$name" "$build/seeds/$name" >"$log" 2>&1; then
    echo "fuzz: $name: $(grep -o '^Done .*' "$log"), no fault," \
         "$(find "$build/corpus/$name" -type f | wc -l) inputs of interest"
  else
    echo "fuzz: $name: FAULT; the input is in $build/faults/, the log is $log:" >&2
    tail -n 40 "$log" >&2
    failed=1
  fi
done
exit "$failed"
