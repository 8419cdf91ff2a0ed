#!/usr/bin/env bash
# CuKe and the RL sets, rebuilt: published sets -> samples -> verdicts -> curation (paper section 3, 4.2).
#
#   runs/cuke.sh OUT BENCHMARK_FOLDER... [-- SHARD]
#
# Every stage resumes: run the same command again after an interruption or a kill. Measuring is nearly all of the cost
# (8,920 + 4,892 pairs); SHARD, say 2/8, measures one part of it and stops: give each machine one, gather the folders
# OUT/measured into one place, then run without SHARD. Needs an NVIDIA GPU, nvcc, and for the first stage the network.
# STRUCTURAL: a file of measured structural samples. MEASURE_FLAGS, CUKE_FLAGS, RL_FLAGS: more of each command's flags.
set -euo pipefail
export PYTHONSAFEPATH=1 # nothing is imported from the working directory

out=${1:?usage: runs/cuke.sh OUT BENCHMARK_FOLDER... [-- SHARD]}
shift
benchmarks=()
while [[ $# -gt 0 && $1 != -- ]]; do benchmarks+=("$1"); shift; done
shard=${2:-1/1}
dice=("${PYTHON:-python}" -m dice data)

mkdir -p "$out/measured"
for source in cudallm-sft concur cudallm-rl; do
    if [[ ! -f $out/$source.parquet ]]; then # written whole
        "${dice[@]}" import "$source" -o "$out/$source.parquet"
    fi
done
gathered=$(find "$out/measured" -name '*of*-*.parquet' ! -name '1of1-*' -print -quit)
if [[ $shard != 1/1 || -z $gathered ]]; then
    "${dice[@]}" measure "$out/cudallm-sft.parquet" "$out/concur.parquet" -o "$out/measured" --shard "$shard" ${MEASURE_FLAGS:-}
fi
if [[ $shard != 1/1 ]]; then exit; fi

"${dice[@]}" cuke "$out/measured" -o "$out/cuke" --base concur --benchmarks "${benchmarks[@]}" \
    ${STRUCTURAL:+--structural "$STRUCTURAL"} ${CUKE_FLAGS:-}
"${dice[@]}" rl "$out/measured" "$out/cudallm-rl.parquet" -o "$out/rl" --benchmarks "${benchmarks[@]}" ${RL_FLAGS:-}
