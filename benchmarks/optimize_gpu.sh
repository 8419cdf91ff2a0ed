#!/usr/bin/env bash
# Everything of dice optimize that needs a GPU, in the order of what is missing most; run it again to go on.
#   benchmarks/optimize_gpu.sh OUT KERNELBENCH_FOLDER [SECONDS]
# KERNELBENCH_FOLDER holds level1, level2 and level3. SECONDS: of each part, what runs then is called off (default: go on).
# JOBS problems are under way at once (default: a half of the cores).
set -euo pipefail
out=$1 problems=$2 seconds=${3:-0}
python=${PYTHON:-.venv/bin/python}
jobs=${JOBS:-$(( ($(nproc) + 1) / 2 ))}
mkdir -p "$out"
export DICE_CACHE=${DICE_CACHE:-$out/cache}
"$python" benchmarks/optimize_gpu.py "$out/faster" --stop-after-s "$seconds" --jobs "$jobs" --problems \
    benchmarks/networks "$problems/level3" "$problems/level2" "$problems/level1" | tee -a "$out/faster.log"
"$python" benchmarks/optimize_gpu.py "$out/right" --stop-after-s "$seconds" --jobs "$jobs" --keep right --problems \
    benchmarks/networks "$problems/level3" | tee -a "$out/right.log"
