#!/usr/bin/env bash
# nano, trained further on modules as people write them: a wide corpus, held-out problems in the same styles, and SFT.
#
#   runs/nano_wide.sh OUT [SECONDS]
#
# Every stage resumes: run the same command again after an interruption, a kill, or a chunk of at most SECONDS of
# training, until it says "finished". The model is then in OUT/run/model.
# MODEL: where to start, by default the shipped one. HIDDEN: styles that training must not see, say "einsum by_name";
# OUT/heldout/heldout.parquet then has them wherever they have a place. TRAIN_SECONDS of training, by default 600; PAIRS,
# HELDOUT: sizes. GPUS: how many to use, by default all. More flags: SYNTH_FLAGS (say --decontaminate FOLDER), SFT_FLAGS.
# The corpus takes 16 minutes of one core, and as much less as there are cores. What came of it:
#   python benchmarks/nano_heldout.py write --model OUT/run/model --data OUT/heldout --out OUT/results
set -euo pipefail
export PYTHONSAFEPATH=1 # nothing is imported from the working directory

out=${1:?usage: runs/nano_wide.sh OUT [SECONDS]}
seconds=${2:-}
python=${PYTHON:-python}
dice=("$python" -m dice)
gpus=${GPUS:-$("$python" -c 'import torch; print(max(1, torch.cuda.device_count()))')}
train=("${dice[@]}")
if ((gpus > 1)); then
    train=("$python" -m torch.distributed.run --standalone --nproc-per-node "$gpus" --local-ranks-filter 0 -m dice)
fi
wide=(--styles wide --no-verify --control 0)
for style in ${HIDDEN:-}; do
    wide+=(--without-style "$style")
done

"${dice[@]}" data synth --out "$out/heldout" --pairs 1 --heldout "${HELDOUT:-420}" --seed 204 "${wide[@]}" ${SYNTH_FLAGS:-}
"${dice[@]}" data synth --out "$out/corpus" --pairs "${PAIRS:-150000}" --heldout 1 --prose-free --seed 303 "${wide[@]}" ${SYNTH_FLAGS:-}
"${train[@]}" train sft --recipe nano_sft --model "${MODEL:-nano}" --data "$out/corpus/train" \
    --eval-data "$out/heldout/heldout.parquet" --out "$out/run" --lr 1.5e-3 --max-steps 100000 \
    --max-seconds "${TRAIN_SECONDS:-600}" ${seconds:+--stop-after-seconds "$seconds"} ${SFT_FLAGS:-}
