#!/usr/bin/env bash
# The whole chain on a CPU, in minutes: corpus -> tokenizer -> SFT -> RL sets -> BiC-RL -> evaluation.
#
#   runs/tiny.sh OUT
#
# Every stage resumes: run the same command again after an interruption or a kill. It needs a C++ compiler and no GPU.
# A model of this size learns no CUDA: it learns a few kernels by heart, imperfectly, and BiC-RL makes it surer of them.
# Being sure of what it knows by heart, it is sampled at a high temperature, so that there is a difference to learn from.
# Exec during training and the evaluation at the end ask for the very problems that are trained on: what is to be seen is
# that every part works, not what was learnt beyond them.
# PAIRS: size of the corpus. SYNTH_FLAGS, SFT_FLAGS, RL_FLAGS, EVAL_FLAGS: more of each command's flags.
set -euo pipefail
export PYTHONSAFEPATH=1 # nothing is imported from the working directory

out=${1:?usage: runs/tiny.sh OUT}
dice=("${PYTHON:-python}" -m dice)
pairs=${PAIRS:-4}

"${dice[@]}" data synth --out "$out/corpus" --pairs "$pairs" --heldout 1 --control 0 --backend emulated ${SYNTH_FLAGS:-}
if [[ ! -f $out/tokenizer/tokenizer.json ]]; then # written last by the command
    "${dice[@]}" data tokenizer --data "$out/corpus/train" --out "$out/tokenizer" --vocab-size 1024
fi
"${dice[@]}" train sft --recipe tiny_sft --data "$out/corpus/train" --tokenizer "$out/tokenizer" --out "$out/sft" \
    --shape.max-position-embeddings 4096 --row-tokens 1024 --max-steps 300 --log-every 25 ${SFT_FLAGS:-}

if [[ ! -f $out/samples.parquet ]]; then
    "${dice[@]}" data import "$out/corpus/train" -o "$out/samples.parquet" --licence Apache-2.0
fi
"${dice[@]}" data measure "$out/samples.parquet" -o "$out/measured" --backend emulated --trials 1
"${dice[@]}" data rl "$out/measured" -o "$out/rl-data" --infill "$pairs" --generate "$pairs" --backend emulated

"${dice[@]}" train rl --recipe tiny_rl --model "$out/sft/model" --out "$out/rl" \
    --infill-data "$out/rl-data/kernel_infilling.parquet" --generate-data "$out/rl-data/kernel_generation.parquet" \
    --eval-data "$out/rl-data/kernel_generation.parquet" --max-new-tokens 1024 --temperature 1.25 --policy.lr 1e-3 ${RL_FLAGS:-}
"${dice[@]}" train watch "$out/rl" --png "$out/rl/reward.png"

"${dice[@]}" eval --model "$out/rl/model" --problems "$out/rl-data/kernel_generation.parquet" --out "$out/eval" \
    --prompt compact --backend emulated ${EVAL_FLAGS:-}
