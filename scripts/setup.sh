#!/usr/bin/env bash
# Set-up: system packages and the Python environment that holds LibTorch. Does nothing, quickly, once all is there.
#   scripts/setup.sh [further Debian packages...]
set -euo pipefail
cd "$(dirname "$0")/.."

readonly torch_version=2.13.0
readonly transformers_version=5.24.0
packages=(ca-certificates ccache cmake g++ libbenchmark-dev libcli11-dev libgloo-dev libgmock-dev libgtest-dev libhwy-dev
          libjemalloc-dev liburing-dev libxxhash-dev make ninja-build nlohmann-json3-dev pkg-config "$@")

missing_packages() {
  local name
  for name in "$@"; do
    [[ $(dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null) == installed ]] || echo "$name"
  done
}

install_packages() {
  if ! command -v dpkg-query >/dev/null; then
    echo "setup: not a Debian system; these packages, or their like, must be there: ${packages[*]}" >&2
    return
  fi
  local missing
  mapfile -t missing < <(missing_packages "$@")
  ((${#missing[@]})) || return 0
  local install="apt-get install -y --no-install-recommends ${missing[*]}"
  if ((EUID != 0)); then
    echo "setup: system packages are missing. Run this, then try again:" >&2
    echo "    sudo apt-get update && sudo $install" >&2
    exit 1
  fi
  echo "setup: installing ${missing[*]}"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive $install >/dev/null
}

# A Python that can make environments: a version manager's python3.11 may exist and still not start.
find_python() {
  local candidate
  for candidate in python3.11 /usr/bin/python3.11 python3; do
    if "$candidate" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
}

environment_is_ready() {
  [[ -x .venv/bin/python ]] && .venv/bin/python - <<PYTHON 2>/dev/null
from importlib.metadata import version
assert version("torch").split("+")[0] == "$torch_version"
assert version("transformers") == "$transformers_version"
version("numpy"), version("safetensors")
PYTHON
}

make_environment() {
  environment_is_ready && return
  local python
  python=$(find_python)
  if [[ -z $python ]]; then
    install_packages python3 python3-venv
    python=$(find_python)
  fi
  echo "setup: making .venv with $("$python" --version)"
  [[ -x .venv/bin/python ]] || "$python" -m venv .venv
  # torch by itself and first: what comes after must take this one, not bring another.
  .venv/bin/python -m pip install --quiet --disable-pip-version-check "torch==$torch_version"
  .venv/bin/python -m pip install --quiet --disable-pip-version-check "torch==$torch_version" \
      "transformers==$transformers_version" numpy safetensors
}

# A CUDA build of torch can only be linked against with a toolkit at hand.
check_torch_can_be_linked() {
  local cuda
  cuda=$(sed -n "s/^cuda.*= *'\(.*\)'/\1/p" .venv/lib/python3*/site-packages/torch/version.py)
  [[ -z $cuda ]] || command -v nvcc >/dev/null || {
    echo "setup: pip chose a torch built for CUDA $cuda, which needs the CUDA toolkit (nvcc) to build against." >&2
    echo "Install the toolkit, or take PyTorch's CPU wheel: remove .venv, name PyTorch's package index of CPU wheels" >&2
    echo "(pytorch.org, 'Start locally') in PIP_EXTRA_INDEX_URL, and try again." >&2
    exit 1
  }
}

install_packages "${packages[@]}"
make_environment
check_torch_can_be_linked
