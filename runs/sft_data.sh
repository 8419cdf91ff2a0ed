#!/usr/bin/env bash
# What a model learns from other data: SFT on CuKe at each threshold (paper Table 4), or on several sets (Table 5).
#
#   runs/sft_data.sh OUT thresholds PROBLEMS MEASURED... [-- CUKE_FLAGS]    CuKe of MEASURED at 1.5, 2.0 and 2.5 times
#   runs/sft_data.sh OUT sets PROBLEMS NAME=PAIRS...                        e.g. cudaLLM=a.parquet ConCuR=b.parquet CuKe=cuke/data
#
# Every stage resumes: run the same command again after an interruption or a kill. Each set trains the same start by the
# same recipe and seed, and is evaluated on PROBLEMS; OUT/table_4.md or OUT/table_5.md has all of them with 95%
# intervals above the paper's rows, and OUT/report.md each against the first, problem by problem. MEASURED: what
# `dice data measure` wrote, timed. RECIPE (dice_4b_sft, as in Table 4; Table 5 has dice_8b_sft), START: another checkpoint
# to start from. THRESHOLDS ("1.5 2.0 2.5"), PROTOCOL (dice-paper). More of the commands' flags: SFT_FLAGS, EVAL_FLAGS.
set -euo pipefail
export PYTHONSAFEPATH=1 # nothing is imported from the working directory

usage="usage: runs/sft_data.sh OUT thresholds|sets PROBLEMS MEASURED...|NAME=PAIRS..."
out=${1:?$usage}
what=${2:?$usage}
problems=${3:?$usage}
shift 3
[[ $# -gt 0 && $1 != -- ]] || { echo "$usage" >&2; exit 2; }
dice=("${PYTHON:-python}" -m dice)
runs=()

learn() { # NAME PAIRS
    "${dice[@]}" train sft --recipe "${RECIPE:-dice_4b_sft}" ${START:+--model "$START"} --data "$2" --out "$out/sft/$1" ${SFT_FLAGS:-}
    "${dice[@]}" eval --model "$out/sft/$1/model" --problems "$problems" --protocol "${PROTOCOL:-dice-paper}" \
        --out "$out/eval/$1" ${EVAL_FLAGS:-}
    runs+=("$out/eval/$1")
}

case $what in
    thresholds)
        table=4
        measured=()
        while [[ $# -gt 0 && $1 != -- ]]; do measured+=("$1"); shift; done
        for threshold in ${THRESHOLDS:-1.5 2.0 2.5}; do
            if [[ ! -f $out/cuke-$threshold/report.json ]]; then # written last
                "${dice[@]}" data cuke "${measured[@]}" -o "$out/cuke-$threshold" --min-speedup "$threshold" "${@:2}"
            fi
            learn "cuke-$threshold" "$out/cuke-$threshold/data"
        done
        ;;
    sets)
        table=5
        for set in "$@"; do
            [[ $set == *=* ]] || { echo "$set is no NAME=PAIRS." >&2; exit 2; }
            learn "${set%%=*}" "${set#*=}"
        done
        ;;
    *) echo "$usage" >&2; exit 2 ;;
esac
"${dice[@]}" report "${runs[@]}" --table "$table" -o "$out"
"${dice[@]}" report "${runs[@]}" --format markdown -o "$out"
