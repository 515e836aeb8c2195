#!/usr/bin/env bash
# What ALST's parts save of memory on this machine's CPUs, and how near `trireme plan` comes to it. Arguments go to
# bench/memory/measure.py (see --help); its figures go to bench/memory/results, and what is there is not measured again:
#   bench/memory.sh slopes     peak bytes against the length of the sequence, setting by setting; half an hour
#   bench/memory.sh planner    planned against measured peaks over many settings; a quarter of an hour
#   bench/memory.sh longest    the longest sequence within 1 GiB a rank, measured and planned; half an hour
#   bench/memory.sh plot       docs/alst.png from the figures of slopes (installs matplotlib into .venv)
set -euo pipefail
cd "$(dirname "$0")/.."
if [[ ${1:-} == plot ]] && ! .venv/bin/python -c 'import matplotlib' 2>/dev/null; then
  .venv/bin/python -m pip install --quiet --disable-pip-version-check matplotlib
fi
exec .venv/bin/python -m bench.memory.measure "$@"
