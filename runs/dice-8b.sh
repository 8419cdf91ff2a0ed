#!/usr/bin/env bash
# SFT of SDAR on CuKe on eight GPUs, then BiC-RL (paper sections 4.1, 4.2), by the paper's recipes or ours.
#
#   runs/dice-8b.sh DATA OUT
#
# DATA is what runs/cuke.sh wrote: cuke/ and rl/. Every stage resumes: run the same command again after an interruption
# or a kill, also with another number of GPUs. The models are in OUT/sft/model and OUT/rl/model.
# SIZE: 8b, 4b or 1.7b. RECIPES: paper, the paper's settings exactly, or dice, the best that we know; docs/recipes.md
# lists what differs. RELEASED_CODE: a checkout of github.com/deadlykitten4/DICE, whose own infilling prompt is then read;
# without, the paper's recipe asks in our words, in the same form. MODEL: the SDAR checkpoint to start from, if not the published one. GPUS: 8.
# TORCHRUN: how to start the processes of SFT, for several machines that share OUT, say
#   "torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29500".
# CLUSTER: HOST:PORT of a Ray cluster's head, whose hosts then verify the kernels of BiC-RL (docs/scale.md); each process
# takes its part of the hosts, so there must be as many. This machine may belong to it with --num-cpus=0 --num-gpus=0.
# HOSTS: with CLUSTER, train on so many of its hosts, all GPUs of each, in both stages; DATA and OUT are on a disk that all
# of them share, and nothing of this machine but its console is used. Eight GPUs of 80 GB hold SIZE=8b; on fewer, lower max_active (RL_FLAGS).
# More flags: SFT_FLAGS (say --exec-data FOLDER), RL_FLAGS (say --max-active 16).
# The paper's 8B took 22 GPU-hours of A100 for SFT, 120 for the first stage of RL and 960 for the second.
set -euo pipefail
export PYTHONSAFEPATH=1 # nothing is imported from the working directory

data=${1:?usage: runs/dice-8b.sh DATA OUT}
out=${2:?usage: runs/dice-8b.sh DATA OUT}
size=${SIZE:-8b}
size=${size//./_}
recipes=${RECIPES:-paper}
here=("${PYTHON:-python}" -m torch.distributed.run --standalone --nproc-per-node "${GPUS:-8}")
launch=("${here[@]}")
if [[ -n ${TORCHRUN:-} ]]; then launch=($TORCHRUN); fi
here+=(--local-ranks-filter 0 -m dice) launch+=(--local-ranks-filter 0 -m dice)
there=()
if [[ -n ${HOSTS:-} ]]; then
    here=("${PYTHON:-python}" -m dice) launch=("${PYTHON:-python}" -m dice)
    there=(--cluster "${CLUSTER:?HOSTS are those of a CLUSTER}" --hosts "$HOSTS")
fi

"${launch[@]}" train sft --recipe "${recipes}_${size}_sft" \
    --data "$data/cuke/data/train.parquet" --out "$out/sft" ${MODEL:+--model "$MODEL"} \
    "${there[@]}" ${SFT_FLAGS:-}
"${here[@]}" train rl --recipe "${recipes}_${size}_rl" --model "$out/sft/model" \
    --infill-data "$data/rl/kernel_infilling.parquet" --generate-data "$data/rl/kernel_generation.parquet" \
    --out "$out/rl" ${CLUSTER:+--cluster "$CLUSTER"} ${HOSTS:+--hosts "$HOSTS"} ${RELEASED_CODE:+--infill-prompt released --released-code "$RELEASED_CODE"} ${RL_FLAGS:-}
