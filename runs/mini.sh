#!/usr/bin/env bash
# mini (100M parameters), from nothing: corpus -> tokenizer -> SFT on one machine with one to eight GPUs -> checkpoint.
#
#   runs/mini.sh OUT [SECONDS]
#
# Every stage resumes: run the same command again after an interruption, a kill, or a chunk of at most SECONDS of
# training, also with another number of GPUs, until it says "finished". The model is then in OUT/run/model.
# GPUS: how many to use, by default all. PARTS: seeds of the corpus, one part each; they may be made on several
# machines. More flags: SYNTH_FLAGS (say --decontaminate FOLDER), SFT_FLAGS.
# Needs some 40 core-hours for the corpus, an hour and a half of one H100 for the training.
set -euo pipefail

out=${1:?usage: runs/mini.sh OUT [SECONDS]}
seconds=${2:-}
python=${PYTHON:-python}
dice=("$python" -m dice)
gpus=${GPUS:-$("$python" -c 'import torch; print(max(1, torch.cuda.device_count()))')}

for seed in ${PARTS:-200 201 202 203 204 205 206 207 208 209}; do
    "${dice[@]}" data synth --out "$out/corpus/$seed" --pairs "${PAIRS:-10000}" --heldout 1 --control 0 --prose-free --seed "$seed" ${SYNTH_FLAGS:-}
done
"${dice[@]}" data synth --out "$out/heldout" --pairs 20 --heldout 300 --seed 199 ${SYNTH_FLAGS:-}

data=("$out"/corpus/*/train)
if [[ ! -f $out/tokenizer/tokenizer.json ]]; then # written last by the command
    "${dice[@]}" data tokenizer --data "${data[@]}" --out "$out/tokenizer" --vocab-size 8192
fi
mkdir -p "$out/train"
for folder in "${data[@]}"; do
    for file in "$folder"/*.parquet; do ln -sf "$(realpath "$file")" "$out/train/$(basename "$(dirname "$folder")")-$(basename "$file")"; done
done

train=("${dice[@]}")
if ((gpus > 1)); then
    train=("$python" -m torch.distributed.run --standalone --nproc-per-node "$gpus" --local-ranks-filter 0 -m dice)
fi
"${train[@]}" train sft --recipe mini_sft \
    --data "$out/train" --eval-data "$out/heldout/heldout.parquet" --exec-data "$out/heldout/heldout.parquet" \
    --tokenizer "$out/tokenizer" --out "$out/run" ${seconds:+--stop-after-seconds "$seconds"} ${SFT_FLAGS:-}
