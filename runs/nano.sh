#!/usr/bin/env bash
# The shipped nano model, from nothing: three corpora, a tokenizer, and SFT on one corpus after the other.
#
#   runs/nano.sh OUT [SECONDS]
#
# Every stage resumes: run the same command again after an interruption, a kill, or a chunk of at most SECONDS of each
# training, until the last one says "finished". The model is then in OUT/run/model.
# GPUS: how many to use, by default all. PAIRS of each corpus. More flags: SYNTH_FLAGS (say --decontaminate FOLDER),
# SFT_FLAGS. The corpora take 20 minutes of two cores; their pairs are drawn and not verified (a random sample is: see
# benchmarks/README.md). The training takes half an hour of one H100.
set -euo pipefail
export PYTHONSAFEPATH=1 # nothing is imported from the working directory

out=${1:?usage: runs/nano.sh OUT [SECONDS]}
seconds=${2:-}
python=${PYTHON:-python}
dice=("$python" -m dice)
gpus=${GPUS:-$("$python" -c 'import torch; print(max(1, torch.cuda.device_count()))')}
train=("${dice[@]}")
if ((gpus > 1)); then
    train=("$python" -m torch.distributed.run --standalone --nproc-per-node "$gpus" --local-ranks-filter 0 -m dice)
fi
mkdir -p "$out"

"${dice[@]}" data synth --out "$out/heldout" --pairs 1 --heldout "${HELDOUT:-420}" --control 0 --seed 204 ${SYNTH_FLAGS:-}

corpus() { # NAME PAIRS SEED
    "${dice[@]}" data synth --out "$out/$1" --pairs "${PAIRS:-$2}" --heldout 1 --control 0 --prose-free --no-verify --seed "$3" ${SYNTH_FLAGS:-}
}

sft() { # RUN CORPUS FLAGS...: what is not finished, the same command goes on with
    "${train[@]}" train sft --recipe nano_sft --data "$out/$2/train" --eval-data "$out/heldout/heldout.parquet" \
        --out "$out/$1" "${@:3}" --max-steps 100000 ${seconds:+--stop-after-seconds "$seconds"} ${SFT_FLAGS:-} | tee "$out/$1.log"
    grep -q finished "$out/$1.log" || exit 0
}

corpus corpus 100000 200
if [[ ! -f $out/tokenizer/tokenizer.json ]]; then # written last by the command
    "${dice[@]}" data tokenizer --data "$out/corpus/train" --out "$out/tokenizer" --vocab-size 2048
fi
sft run-1 corpus --tokenizer "$out/tokenizer" --max-seconds 800
corpus corpus-2 150000 301
sft run-2 corpus-2 --model "$out/run-1/model" --lr 1.5e-3 --max-seconds 600
corpus corpus-3 150000 302
sft run corpus-3 --model "$out/run-2/model" --lr 1.5e-3 --max-seconds 420
