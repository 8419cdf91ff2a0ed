#!/usr/bin/env bash
# What each part of BiC-RL adds (paper Table 6): from one SFT checkpoint, RL in four ways, with equal budgets and seeds.
#
#   runs/ablation.sh OUT [ARM...]
#
# ARM: baseline (whole kernels only, shuffled), scheduling, infilling, full; all of them if none is given. Every stage
# resumes: run the same command again after an interruption or a kill, or with other arms, also on other machines that
# share OUT/sft and OUT/rl-data. At the end OUT/report holds tables and figures of all arms that are done.
# The SFT is short on purpose, and RL sees problems of which SFT saw no kernel: there is something left to learn.
# SEEDS ("0 1"), STEPS (30 in all), SFT_PAIRS (6000), RL_PAIRS (4000). More flags: SFT_FLAGS, MEASURE_FLAGS, RL_FLAGS,
# EVAL_FLAGS, DECONTAMINATE (folders of benchmark problems). BACKEND: emulated, or cuda.
set -euo pipefail

out=${1:?usage: runs/ablation.sh OUT [ARM...]}
shift
arms=("$@")
if [[ ${#arms[@]} -eq 0 ]]; then arms=(baseline scheduling infilling full); fi
dice=("${PYTHON:-python}" -m dice)
backend=${BACKEND:-emulated}
steps=${STEPS:-30}
apart=(${DECONTAMINATE:+--decontaminate $DECONTAMINATE})

"${dice[@]}" data synth --out "$out/corpus" --pairs "${SFT_PAIRS:-6000}" --heldout 1 --control 0 --prose-free --infill-share 0.5 \
    --no-verify --seed 300 "${apart[@]}"
if [[ ! -f $out/tokenizer/tokenizer.json ]]; then # written last by the command
    "${dice[@]}" data tokenizer --data "$out/corpus/train" --out "$out/tokenizer" --vocab-size 2048
fi
"${dice[@]}" train sft --recipe nano_sft --data "$out/corpus/train" --tokenizer "$out/tokenizer" --out "$out/sft" \
    --max-seconds 60 --max-steps 100000 ${SFT_FLAGS:-}

"${dice[@]}" data synth --out "$out/rl-corpus" --pairs "${RL_PAIRS:-4000}" --heldout "${HELDOUT:-420}" --control 0 \
    --no-verify --seed 301 "${apart[@]}"
for part in train heldout; do
    if [[ ! -f $out/$part.parquet ]]; then # written whole
        path=$out/rl-corpus/$part
        "${dice[@]}" data import "$([[ -d $path ]] && echo "$path" || echo "$path.parquet")" -o "$out/$part.parquet" --licence Apache-2.0
    fi
done
"${dice[@]}" data measure "$out/train.parquet" -o "$out/measured" --backend "$backend" --no-timing --trials 1 ${MEASURE_FLAGS:-}
"${dice[@]}" data rl "$out/measured" -o "$out/rl-data" --infill 992 --generate 4000 --backend "$backend"
if [[ ! -f $out/problems.parquet ]]; then
    "${dice[@]}" data difficulty "$out/heldout.parquet" -o "$out/problems.parquet"
fi

evaluate() { # MODEL RUN
    "${dice[@]}" eval --model "$1" --problems "$out/problems.parquet" --prompt compact --confidence-threshold 0.99 \
        --max-new-tokens 1536 --backend "$backend" --no-timing --out "$2" ${EVAL_FLAGS:-}
}

runs=("$out/eval/sft")
evaluate "$out/sft/model" "$out/eval/sft"
for arm in "${arms[@]}"; do
    infill=0 order=scheduled
    case $arm in
        baseline) order=shuffled ;;
        scheduling) ;;
        infilling) infill=$((steps / 3)) order=shuffled ;;
        full) infill=$((steps / 3)) ;;
        *) echo "There is no arm $arm: baseline, scheduling, infilling or full." >&2; exit 2 ;;
    esac
    for seed in ${SEEDS:-0 1}; do
        "${dice[@]}" train rl --recipe nano_rl --model "$out/sft/model" --out "$out/rl/$arm-$seed" --seed "$seed" --backend "$backend" \
            --infill-data "$out/rl-data/kernel_infilling.parquet" --generate-data "$out/rl-data/kernel_generation.parquet" \
            --infill-steps "$infill" --generate-steps "$((steps - infill))" --order "$order" ${RL_FLAGS:-}
        evaluate "$out/rl/$arm-$seed/model" "$out/eval/$arm-$seed"
        runs+=("$out/eval/$arm-$seed")
    done
done
"${dice[@]}" report "${runs[@]}" -o "$out/report"
