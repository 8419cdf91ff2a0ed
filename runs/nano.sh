#!/usr/bin/env bash
# The shipped nano model, from nothing: corpus -> tokenizer -> SFT -> checkpoint folder.
#
#   runs/nano.sh OUT [SECONDS]
#
# Every stage resumes: run the same command again after an interruption, a kill, or a chunk of at most SECONDS of
# training, until it says "finished". The model is then in OUT/run/model. The corpus is made of parts, one a seed,
# which may be made on several machines; the shipped one had 34,075 pairs of more and smaller parts.
# Extra flags: SYNTH_FLAGS (say --decontaminate FOLDER), SFT_FLAGS.
# Takes some 12 core-hours for the corpus and 7 minutes of one H100 for the training.
set -euo pipefail

out=${1:?usage: runs/nano.sh OUT [SECONDS]}
seconds=${2:-}
dice=(${PYTHON:-python} -m dice)

for seed in 100 101 102 103 105 106 107 108 109 110; do
    "${dice[@]}" data synth --out "$out/corpus/$seed" --pairs "${PAIRS:-3500}" --heldout 1 --control 0 --prose-free --seed "$seed" ${SYNTH_FLAGS:-}
done
"${dice[@]}" data synth --out "$out/heldout" --pairs 20 --heldout 300 --seed 104 ${SYNTH_FLAGS:-}

data=("$out"/corpus/*/train)
if [[ ! -f $out/tokenizer/tokenizer.json ]]; then # written last by the command
    "${dice[@]}" data tokenizer --data "${data[@]}" --out "$out/tokenizer" --vocab-size 2048
fi
mkdir -p "$out/train"
for folder in "${data[@]}"; do
    for file in "$folder"/*.parquet; do ln -sf "$(realpath "$file")" "$out/train/$(basename "$(dirname "$folder")")-$(basename "$file")"; done
done

"${dice[@]}" train sft --recipe nano_sft \
    --data "$out/train" --eval-data "$out/heldout/heldout.parquet" \
    --tokenizer "$out/tokenizer" --out "$out/run" --max-seconds 425 --max-steps 100000 \
    ${seconds:+--stop-after-seconds "$seconds"} ${SFT_FLAGS:-}
