#!/usr/bin/env bash
# Text to tokens, tokens to a trained model, and the model into Transformers. `make demo` builds first, then runs this.
set -euo pipefail
cd "$(dirname "$0")/../.."

output=runs/demo
mkdir -p "$output"

echo "== 1. Tokens: the Python standard library's sources, one document a file"
stdlib=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["stdlib"])')
mapfile -t files < <(find "$stdlib" \( -name site-packages -o -name test -o -name tests -o -name idle_test -o -name encodings \) -prune \
                       -o -name '*.py' -size +0 -print | LC_ALL=C sort)
build/bin/trireme prepare "${files[@]}" --output "$output/corpus.safetensors"

echo "== 2. Training: 2 ranks, sequence parallel 2, ZeRO-3, packed documents, 8192 tokens a sequence"
build/bin/trireme train examples/demo/run.json --ranks 2

echo "== 3. The model in Transformers"
HF_HUB_OFFLINE=1 .venv/bin/python examples/demo/check.py "$output"
