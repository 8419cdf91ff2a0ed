#!/usr/bin/env bash
# The shipped nano model, from nothing: corpus -> tokenizer -> SFT -> checkpoint folder.
#
#   runs/nano.sh OUT [SECONDS]
#
# Every stage resumes: run the same command again after an interruption, a kill, or a chunk of at most SECONDS of
# training, until it says "finished". The model is then in OUT/run/model. Extra flags for `dice train sft` go into
# SFT_FLAGS, those for `dice data synth` into SYNTH_FLAGS. Takes some 16 minutes of one H100 after the corpus is made.
set -euo pipefail

out=${1:?usage: runs/nano.sh OUT [SECONDS]}
seconds=${2:-}
pairs=${PAIRS:-30000}
dice=(${PYTHON:-python} -m dice)

if [[ ! -f $out/corpus/.complete ]]; then
    "${dice[@]}" data synth --out "$out/corpus" --pairs "$pairs" ${SYNTH_FLAGS:-}
    touch "$out/corpus/.complete"
fi

if [[ ! -f $out/tokenizer/tokenizer.json ]]; then # written last by the command
    "${dice[@]}" data tokenizer --data "$out/corpus/train" --out "$out/tokenizer" --vocab-size 2048
fi

"${dice[@]}" train sft --recipe nano_sft \
    --data "$out/corpus/train" --eval-data "$out/corpus/heldout.parquet" \
    --tokenizer "$out/tokenizer" --out "$out/run" \
    ${seconds:+--stop-after-seconds "$seconds"} ${SFT_FLAGS:-}
