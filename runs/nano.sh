#!/usr/bin/env bash
# The shipped nano model, from nothing: corpus -> tokenizer -> SFT -> checkpoint folder.
#
#   runs/nano.sh OUT [SECONDS]
#
# Every stage resumes: run the same command again after an interruption, a kill, or a chunk of at most SECONDS of
# training, until it says "finished". The model is then in OUT/run/model.
# GPUS: how many to use, by default all. More flags: SYNTH_FLAGS (say --decontaminate FOLDER), SFT_FLAGS.
# Takes some six minutes of two cores for the corpus, whose pairs are drawn and not verified (a random sample is: see
# benchmarks/README.md), and 14 minutes of one H100 for the training.
set -euo pipefail

out=${1:?usage: runs/nano.sh OUT [SECONDS]}
seconds=${2:-}
python=${PYTHON:-python}
dice=("$python" -m dice)
gpus=${GPUS:-$("$python" -c 'import torch; print(max(1, torch.cuda.device_count()))')}

"${dice[@]}" data synth --out "$out/corpus" --pairs "${PAIRS:-100000}" --heldout 1 --control 0 --prose-free --no-verify --seed 200 ${SYNTH_FLAGS:-}
"${dice[@]}" data synth --out "$out/heldout" --pairs 1 --heldout "${HELDOUT:-420}" --control 0 --seed 204 ${SYNTH_FLAGS:-}

if [[ ! -f $out/tokenizer/tokenizer.json ]]; then # written last by the command
    "${dice[@]}" data tokenizer --data "$out/corpus/train" --out "$out/tokenizer" --vocab-size 2048
fi
train=("${dice[@]}")
if ((gpus > 1)); then
    train=("$python" -m torch.distributed.run --standalone --nproc-per-node "$gpus" --local-ranks-filter 0 -m dice)
fi
"${train[@]}" train sft --recipe nano_sft \
    --data "$out/corpus/train" --eval-data "$out/heldout/heldout.parquet" \
    --tokenizer "$out/tokenizer" --out "$out/run" --max-seconds 800 --max-steps 100000 \
    ${seconds:+--stop-after-seconds "$seconds"} ${SFT_FLAGS:-}
