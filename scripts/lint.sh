#!/usr/bin/env bash
# clang-format over all C++ sources, clang-tidy over trireme/ and cli/. Any finding fails.
#   scripts/lint.sh [sources for clang-tidy...]
set -euo pipefail
cd "$(dirname "$0")/.."

mapfile -t formatted < <(find trireme cli tests bench -name '*.h' -o -name '*.cpp' | sort)
clang-format --dry-run -Werror "${formatted[@]}"
echo "lint: ${#formatted[@]} files are formatted"

# A build folder of its own: clang cannot read the headers that gcc precompiled. It is configured, never built.
[[ -f build-lint/build.ninja ]] || cmake -G Ninja -B build-lint -DCCACHE=OFF -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON \
    -DTRIREME_TESTS=OFF -DTRIREME_BENCH=OFF -Wno-dev >/dev/null 2>&1
cmake build-lint -Wno-dev >/dev/null 2>&1 || { cmake build-lint; exit 1; }  # sources may have been added

# Prints findings alone, without the counts of what was suppressed in other projects' headers.
tidy() {
  local findings status=0
  findings=$(clang-tidy-16 --quiet --warnings-as-errors='*' -p build-lint "$1" 2>/dev/null) || status=$?
  [[ -z $findings ]] || echo "$findings"
  return "$status"
}
export -f tidy

sources=("$@")
# What this build compiles: not the sources for devices that this machine's torch was built without.
((${#sources[@]})) || mapfile -t sources < <(sed -n "s|^ *\"file\": \"$PWD/\(.*\)\",*$|\1|p" build-lint/compile_commands.json |
                                               grep -E '^(trireme|cli)/' | sort)
printf '%s\n' "${sources[@]}" | xargs -P "${JOBS:-$(nproc)}" -I{} bash -c 'tidy "$1"' tidy {}
echo "lint: clang-tidy finds nothing in ${#sources[@]} sources"
