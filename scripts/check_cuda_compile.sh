#!/usr/bin/env bash
# Do all sources compile against a CUDA build of torch? Needs its headers and those of a CUDA toolkit, but no GPU.
#   scripts/check_cuda_compile.sh /path/to/venv/bin/python [sources...]
#   CUDA_HOME=DIR  the toolkit (/usr/local/cuda)
#   JOBS=N         compilers at a time (all cores)
set -euo pipefail
(($#)) || { echo "usage: scripts/check_cuda_compile.sh PYTHON [sources...]" >&2; exit 2; }
python=$(realpath -s "$1")
shift
cd "$(dirname "$0")/.."

# Found without importing it, which would take seconds.
packages=$("$python" -c 'import importlib.util as u, pathlib; print(pathlib.Path(u.find_spec("torch").origin).parents[1])')
version=$("$python" -c 'from importlib.metadata import version; print(version("torch"))')
[[ -f $packages/torch/lib/libtorch_cuda.so ]] || { echo "torch $version of $python is not a CUDA build" >&2; exit 2; }
toolkit=${CUDA_HOME:-/usr/local/cuda}
[[ -f $toolkit/include/crt/host_config.h ]] || { echo "no CUDA toolkit in $toolkit: set CUDA_HOME" >&2; exit 2; }

# The toolkit comes before the wheels: their CUDA headers lack the compiler's own (crt/).
flags=(-std=c++20 -fsyntax-only -I. -DTRIREME_VERSION='"0"' -DUSE_C10D_GLOO -DUSE_C10D_NCCL
       -isystem "$packages/torch/include" -isystem "$packages/torch/include/torch/csrc/api/include"
       -isystem "$toolkit/include")
for include in "$packages"/nvidia/*/include; do flags+=(-isystem "$include"); done

check() {
  if output=$(${CXX:-g++} "${@:2}" "$1" 2>&1); then
    echo "ok      $1"
  else
    printf 'FAILED  %s\n%s\n' "$1" "$output"
    return 1
  fi
}
export -f check

sources=("$@")
((${#sources[@]})) || mapfile -t sources < <(find trireme cli -name '*.cpp' ! -name 'no_nccl.cpp' | sort)
status=0
printf '%s\n' "${sources[@]}" | xargs -P "${JOBS:-$(nproc)}" -I{} bash -c 'check "$@"' check {} "${flags[@]}" ||
  status=1
echo "${#sources[@]} sources against torch $version: $( ((status)) && echo "some do not compile" || echo "all compile")"
exit $status
