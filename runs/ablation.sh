#!/usr/bin/env bash
# What each part of BiC-RL does (paper Table 6): a 2 x 2 experiment on a small model, from nothing to its table.
#
#   runs/ablation.sh OUT [FLAGS]            in chunks of CHUNK seconds (560), one after the other, until it is done
#   ONCE=1 runs/ablation.sh OUT [FLAGS]     one chunk; exit code 75: the same command goes on
#   runs/ablation.sh OUT --smoke            all of it in minutes on two CPU cores, with figures that mean nothing
#
# The plan, its arms and its endpoints stand in benchmarks/ablation.py, fixed before anything is run. It wants a GPU, and
# CPU cores, on which kernels are verified: 16 or more. RESULTS (OUT/results) gets tables and every answer's outcome.
set -euo pipefail
export PYTHONSAFEPATH=1 # nothing is imported from the working directory

out=${1:?usage: runs/ablation.sh OUT [--parallel N] [--smoke]}
shift
here=$(cd "$(dirname "$0")/../benchmarks" && pwd)
export PYTHONPATH=$here${PYTHONPATH:+:$PYTHONPATH}

while true; do
    status=0
    "${PYTHON:-python}" "$here/ablation.py" run "$out" --to "${RESULTS:-$out/results}" --seconds "${CHUNK:-560}" "$@" || status=$?
    if ((status != 75)) || [[ -n ${ONCE:-} ]]; then exit "$status"; fi
done
