#!/usr/bin/env bash
# mini (100M parameters), from nothing: corpus -> tokenizer -> SFT on one machine with one to eight GPUs -> checkpoint.
#
#   runs/mini.sh OUT [SECONDS]
#
# Every stage resumes: run the same command again after an interruption, a kill, or a chunk of at most SECONDS of
# training, also with another number of GPUs, until it says "finished". The model is then in OUT/run/model.
# GPUS: how many to use, by default all. More flags: SYNTH_FLAGS (say --decontaminate FOLDER), SFT_FLAGS.
# The training takes 23 minutes of one H200 and ends at 78% of the held-out problems (see benchmarks/README.md).
set -euo pipefail
export PYTHONSAFEPATH=1 # nothing is imported from the working directory

out=${1:?usage: runs/mini.sh OUT [SECONDS]}
seconds=${2:-}
python=${PYTHON:-python}
dice=("$python" -m dice)
gpus=${GPUS:-$("$python" -c 'import torch; print(max(1, torch.cuda.device_count()))')}

"${dice[@]}" data synth --out "$out/corpus" --pairs "${PAIRS:-150000}" --heldout 1 --control 0 --prose-free --no-verify --seed 302 ${SYNTH_FLAGS:-}
"${dice[@]}" data synth --out "$out/heldout" --pairs 1 --heldout "${HELDOUT:-420}" --control 0 --seed 204 ${SYNTH_FLAGS:-}

if [[ ! -f $out/tokenizer/tokenizer.json ]]; then # written last by the command
    "${dice[@]}" data tokenizer --data "$out/corpus/train" --out "$out/tokenizer" --vocab-size 8192
fi
train=("${dice[@]}")
if ((gpus > 1)); then
    train=("$python" -m torch.distributed.run --standalone --nproc-per-node "$gpus" --local-ranks-filter 0 -m dice)
fi
"${train[@]}" train sft --recipe mini_sft \
    --data "$out/corpus/train" --eval-data "$out/heldout/heldout.parquet" --exec-data "$out/heldout/heldout.parquet" \
    --tokenizer "$out/tokenizer" --out "$out/run" ${seconds:+--stop-after-seconds "$seconds"} ${SFT_FLAGS:-}
