#!/usr/bin/env bash
# Block diffusion against autoregressive models on an eighth, a quarter, a half and all of a data set (paper Table 7, Fig. 5).
#
#   runs/data_efficiency.sh OUT PAIRS PROBLEMS [FLAGS]
#
# PAIRS: what SFT learns (corpus/train of `dice data synth`, or cuke/data/train.parquet of runs/cuke.sh). PROBLEMS: a folder
# or table of problems. SIZE: tiny, nano or mini, from scratch; 1.7b, 4b or 8b, from SDAR-Chat and Qwen3 by the paper's
# recipe. More flags, as benchmarks/data_efficiency.py --help lists them, follow. Chunks of CHUNK seconds (560) go on
# until all is done; RESULTS (OUT/results) gets table and figure.
set -euo pipefail
export PYTHONSAFEPATH=1 # nothing is imported from the working directory

out=${1:?usage: runs/data_efficiency.sh OUT PAIRS PROBLEMS [FLAGS]}
pairs=${2:?usage: runs/data_efficiency.sh OUT PAIRS PROBLEMS [FLAGS]}
problems=${3:?usage: runs/data_efficiency.sh OUT PAIRS PROBLEMS [FLAGS]}
shift 3
here=$(cd "$(dirname "$0")/../benchmarks" && pwd)
export PYTHONPATH=$here${PYTHONPATH:+:$PYTHONPATH}

while true; do
    status=0
    "${PYTHON:-python}" "$here/data_efficiency.py" run "$out" --data "$pairs" --problems "$problems" --size "${SIZE:-nano}" \
        --to "${RESULTS:-$out/results}" --seconds "${CHUNK:-560}" "$@" || status=$?
    if ((status != 75)); then exit "$status"; fi
done
