#!/usr/bin/env bash
# The paper: SFT of SDAR on CuKe on eight GPUs, then BiC-RL (sections 4.1, 4.2).
#
#   runs/dice-8b.sh DATA OUT
#
# DATA is what runs/cuke.sh wrote: cuke/ and rl/. Every stage resumes: run the same command again after an interruption
# or a kill, also with another number of GPUs. The models are in OUT/sft/model and OUT/rl/model.
# SIZE: 8b, 4b or 1.7b. MODEL: the SDAR checkpoint to start from, if not the published one. GPUS: 8.
# TORCHRUN: how to start the processes of SFT, for several machines that share OUT, say
#   "torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29500".
# BiC-RL takes the GPUs of one machine. Eight of 80 GB hold SIZE=8b; on fewer, lower max_active (RL_FLAGS).
# More flags: SFT_FLAGS (say --exec-data FOLDER), RL_FLAGS (say --max-active 16).
# The paper's 8B took 22 GPU-hours of A100 for SFT, 120 for the first stage of RL and 960 for the second.
set -euo pipefail
export PYTHONSAFEPATH=1 # nothing is imported from the working directory

data=${1:?usage: runs/dice-8b.sh DATA OUT}
out=${2:?usage: runs/dice-8b.sh DATA OUT}
size=${SIZE:-8b}
size=${size//./_}
here=("${PYTHON:-python}" -m torch.distributed.run --standalone --nproc-per-node "${GPUS:-8}")
launch=("${here[@]}")
if [[ -n ${TORCHRUN:-} ]]; then launch=($TORCHRUN); fi

"${launch[@]}" --local-ranks-filter 0 -m dice train sft --recipe "dice_${size}_sft" \
    --data "$data/cuke/data/train.parquet" --out "$out/sft" ${MODEL:+--model "$MODEL"} ${SFT_FLAGS:-}
"${here[@]}" --local-ranks-filter 0 -m dice train rl --recipe "dice_${size}_rl" --model "$out/sft/model" \
    --infill-data "$data/rl/kernel_infilling.parquet" --generate-data "$data/rl/kernel_generation.parquet" \
    --out "$out/rl" ${RL_FLAGS:-}
