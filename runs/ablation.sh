#!/usr/bin/env bash
# What each part of BiC-RL adds (paper Table 6): from one SFT checkpoint, RL in four ways, with equal budgets and seeds.
#
#   runs/ablation.sh OUT                    all of it, one part after the other
#   runs/ablation.sh OUT data               the corpora and the sets of RL; needs no GPU
#   runs/ablation.sh OUT sft                the checkpoint that all arms start from; half an hour on 2 CPU cores
#   runs/ablation.sh OUT arm NAME SEED      one arm: baseline (whole kernels only, shuffled), scheduling, infilling, full
#   runs/ablation.sh OUT rl NAME SEED       an arm's training alone, then:
#   runs/ablation.sh OUT eval NAME-SEED     its evaluation, where others may not disturb the times (or: eval sft)
#   runs/ablation.sh OUT report             OUT/report: tables and figures of all arms that are done
#
# Every part resumes: run the same command again after an interruption or a kill. Arms may run side by side, also on
# other machines that share OUT. The SFT is of START (nano) on a set that nobody checked: half of its answers deceive
# (benchmarks/raw_corpus.py), as the paper finds of what models write. That is what RL is there to mend.
# SEEDS ("0 1"), STEPS (30 in all), SFT_PAIRS (15000), RL_PAIRS (4000), SFT_STEPS (60). More flags: SFT_FLAGS,
# MEASURE_FLAGS, RL_FLAGS, EVAL_FLAGS, DECONTAMINATE (folders of benchmark problems). BACKEND, where kernels are
# verified in training, and EVAL_BACKEND, where those of the report are: emulated, or cuda, which also times them.
set -euo pipefail
export PYTHONSAFEPATH=1 # nothing is imported from the working directory

out=${1:?usage: runs/ablation.sh OUT [data | sft | arm NAME SEED | rl NAME SEED | eval RUN | report]}
part=${2:-all}
python=${PYTHON:-python}
dice=("$python" -m dice)
backend=${BACKEND:-emulated}
steps=${STEPS:-30}
names=(baseline scheduling infilling full)

data() {
    local apart=(${DECONTAMINATE:+--decontaminate $DECONTAMINATE})
    "${dice[@]}" data synth --out "$out/corpus" --pairs "${SFT_PAIRS:-15000}" --heldout 1 --control 0 --prose-free \
        --no-verify --seed 300 "${apart[@]}"
    if [[ ! -f $out/raw_report.json ]]; then # written last
        "$python" "$(dirname "$0")/../benchmarks/raw_corpus.py" "$out/corpus/train" "$out/raw"
    fi
    # The control set has the compositions of a training set, all at sizes that can be emulated.
    "${dice[@]}" data synth --out "$out/rl-corpus" --pairs "${RL_PAIRS:-4000}" --heldout "${HELDOUT:-420}" --control "${RL_PAIRS:-4000}" \
        --no-verify --seed 301 "${apart[@]}"
    for set in control heldout; do
        if [[ ! -f $out/$set.parquet ]]; then # written whole
            "${dice[@]}" data import "$out/rl-corpus/$set.parquet" -o "$out/$set.parquet" --licence Apache-2.0
        fi
    done
    "${dice[@]}" data measure "$out/control.parquet" -o "$out/measured" --backend "$backend" --no-timing --trials 1 ${MEASURE_FLAGS:-}
    "${dice[@]}" data rl "$out/measured" -o "$out/rl-data" --infill 992 --generate 4000 --backend "$backend"
    if [[ ! -f $out/problems.parquet ]]; then
        "${dice[@]}" data difficulty "$out/heldout.parquet" -o "$out/problems.parquet"
    fi
}

evaluate() { # NAME-SEED, or sft
    local model=$out/rl/$1/model
    [[ $1 == sft ]] && model=$out/sft/model
    "${dice[@]}" eval --model "$model" --problems "$out/problems.parquet" --prompt compact --confidence-threshold 0.99 \
        --max-new-tokens 1536 --backend "${EVAL_BACKEND:-$backend}" --cache --out "$out/eval/$1" ${EVAL_FLAGS:-}
}

sft() {
    "${dice[@]}" train sft --recipe nano_sft --model "${START:-nano}" --data "$out/raw" --out "$out/sft" --ema None \
        --lr 5e-4 --warmup 0.1 --batch-rows 8 --micro-rows 1 --max-steps "${SFT_STEPS:-60}" ${SFT_FLAGS:-}
    evaluate sft
}

rl() { # NAME SEED
    local infill=0 order=scheduled
    case $1 in
        baseline) order=shuffled ;;
        scheduling) ;;
        infilling) infill=$((steps / 3)) order=shuffled ;;
        full) infill=$((steps / 3)) ;;
        *) echo "There is no arm $1: ${names[*]}." >&2; exit 2 ;;
    esac
    "${dice[@]}" train rl --recipe nano_rl --model "$out/sft/model" --out "$out/rl/$1-$2" --seed "$2" --backend "$backend" \
        --infill-data "$out/rl-data/kernel_infilling.parquet" --generate-data "$out/rl-data/kernel_generation.parquet" \
        --infill-steps "$infill" --generate-steps "$((steps - infill))" --order "$order" ${RL_FLAGS:-}
}

arm() { # NAME SEED
    rl "$1" "$2"
    evaluate "$1-$2"
}

report() {
    "${dice[@]}" report "$out"/eval/* -o "$out/report"
    "$python" "$(dirname "$0")/../benchmarks/ablation.py" "$out" --to "$out/report"
}

case $part in
    data | sft | report) "$part" ;;
    arm | rl) "$part" "${3:?which arm: ${names[*]}?}" "${4:?which seed?}" ;;
    eval) evaluate "${3:?which run: NAME-SEED, or sft?}" ;;
    all)
        data
        sft
        for name in "${names[@]}"; do
            for seed in ${SEEDS:-0 1}; do arm "$name" "$seed"; done
        done
        report
        ;;
    *) echo "There is no part $part: data, sft, arm, rl, eval or report." >&2; exit 2 ;;
esac
