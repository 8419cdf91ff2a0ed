#!/usr/bin/env bash
# What only a GPU can show, in stages that resume: GPU tests, nano's training, and the figures of this folder.
#
#   KERNELBENCH=CHECKOUT benchmarks/gpu.sh WORK STAGE...
#
# first        one kernel written, compiled, run and timed: is everything there?
# memory       the GPU tests of shared memory and of timing
# exploits     every cheat, honest and wrong control of tests/exploits (exploits_gpu.py)
# tests        all tests marked `gpu`, with a table of what ran (what `make test-gpu` does)
# corpus       PAIRS (150000) training pairs and 420 held-out ones
# sft          nano trained on from START (nano) for TRAIN (600) seconds, as recipe nano_sft; LR (1.5e-3)
# plain        the shipped nano and the trained one on plain.jsonl
# heldout      the trained one on the held-out pairs, both as nano_heldout.py has it
# kernelbench  MODEL over KernelBench under three protocols, with the report
# scores       KernelBench's own scripts on the same answers (kernelbench_scores.py), of the SCORES (120) smallest problems
# verifier     agreement with KernelBench's evaluator, rates beside stock, 600 drawn pairs
# contexts     how many processes a minute can make a CUDA context, a verdict's least cost (context_rate.py)
# forms        several kernels for the same problem side by side (kernel_forms.py)
# products     large products by rule, plainly and on tensor cores, beside PyTorch's (products_gpu.py)
# streams      kernels by rule that memory bounds, beside PyTorch's (streams_gpu.py)
# train        `dice bench train` at 1.7B and mini
# rl           one step of infilling and two of generation, 64 problems x 16 responses, from RL_DATA (`dice data rl`)
#
# LIMIT: seconds after which no stage begins, and one under way is told to stop, to be gone on with by the same
# command. MODEL: nano, or by default the trained one. Needs nvcc, and 16 cores to be worth the GPU's time.
set -uo pipefail

work=${1:?usage: benchmarks/gpu.sh WORK STAGE...}
shift
limit=${LIMIT:-1000000}
python=${PYTHON:-python3}
dice=("$python" -m dice)
here=$(dirname "$0")
bench=${KERNELBENCH:-KernelBench}
model=${MODEL:-$work/run/model}
run=$work/$([[ $model == */* ]] && echo trained || echo "$model") # what reports call it
export PYTHONPATH="$here/..${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
mkdir -p "$work/log"

left() { echo $((limit > SECONDS ? limit - SECONDS : 1)); } # to `timeout`, 0 is for ever
mark() { touch "$work/log/$1.done"; }
logged() { # NAME COMMAND...: run it, show how it ends; its exit code
    local name=$1 code=0
    shift
    timeout -k 10 "$(left)" "$@" >>"$work/log/$name" 2>&1 || code=$?
    tail -n "${LINES_SHOWN:-12}" "$work/log/$name"
    echo "[$SECONDS s] $name ended with $code"
    return "$code"
}

first() {
    nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
    logged first "${dice[@]}" generate examples/softmax.py -o "$work/softmax_kernel.py" && mark first
}

memory() {
    LINES_SHOWN=30 logged memory "$python" -m pytest -q -m gpu tests/verify/tensors/test_lending.py tests/verify/test_timing_gpu.py
    mark memory
}

tests() { # a test that fails is a result, too
    LINES_SHOWN=80 logged tests "$python" -m pytest -q -m gpu --table
    mark tests
}

exploits() {
    LINES_SHOWN=30 logged exploits "$python" "$here/exploits_gpu.py" --out "$work/exploits.jsonl" --workers "$(nproc)"
    mark exploits
}

corpus() {
    logged corpus "${dice[@]}" data synth --out "$work/corpus" --pairs "${PAIRS:-150000}" --heldout 420 --control 0 \
        --prose-free --no-verify --seed "${SEED:-301}" --decontaminate "$bench/KernelBench" && mark corpus
}

sft() {
    (($(left) > 120)) || { echo "[$SECONDS s] no time is left for sft."; return 1; }
    logged sft "${dice[@]}" train sft --recipe nano_sft --model "${START:-nano}" --data "$work/corpus/train" \
        --eval-data "$work/corpus/heldout.parquet" --out "$work/run" --lr "${LR:-1.5e-3}" \
        --max-seconds "${TRAIN:-600}" --max-steps 100000 --stop-after-seconds "$(($(left) - 90))" || return
    grep -q finished <(tail -1 "$work/log/sft") && mark sft
}

plain() {
    for one in nano "$work/run/model"; do
        logged plain "${dice[@]}" eval --model "$one" --problems "$here/plain.jsonl" --no-timing \
            -o "$work/plain_$(basename "$one")" || return
    done
    mark plain
}

heldout() {
    local out=$work/heldout
    logged heldout "$python" "$here/nano_heldout.py" write --model "$model" --data "$work/corpus/heldout.parquet" \
        --out "$out" --batch-size 128 &&
        logged heldout "$python" "$here/nano_heldout.py" verify --out "$out" --backend cuda --timing-seconds 1 &&
        logged heldout "$python" "$here/nano_heldout.py" report --out "$out" && mark heldout
}

kernelbench() {
    LINES_SHOWN=40 logged kernelbench "${dice[@]}" eval --model "$model" \
        --problems "$bench/KernelBench" --protocol dice kernelbench dice-paper --timing-seconds "${TIMING:-1}" \
        -o "$run" --report "$work/page" && mark kernelbench
}

scores() {
    LINES_SHOWN=40 logged scores "$python" "$here/kernelbench_scores.py" --run "$run" \
        --kernelbench "$bench" --out "$work/scores" --limit "${SCORES:-120}" --budget "$(($(left) - 20))" && mark scores
}

verifier() {
    local out=$work/verifier
    LINES_SHOWN=20 logged agreement "$python" "$here/kernelbench_agreement.py" --kernelbench "$bench" --out "$out" --stock 0
    LINES_SHOWN=20 logged rates "${dice[@]}" bench verify --candidates 192 --workers "$(nproc)" --stock-candidates 0 --stock-alone 1 \
        --budget 150 --out "$out"
    logged sample "$python" "$here/synth_sample.py" --pairs 600 --seed 20261125 --backend cuda --timing-seconds 0 \
        --out "$out/sample.json" && mark verifier
}

contexts() {
    logged contexts "$python" "$here/context_rate.py" --out "$work/contexts.json" && mark contexts
}

forms() {
    LINES_SHOWN=20 logged forms "$python" "$here/kernel_forms.py" --out "$work/forms.json" && mark forms
}

products() {
    logged products "$python" "$here/products_gpu.py" --out "$work/products.json" && mark products
}

streams() {
    LINES_SHOWN=40 logged streams "$python" "$here/streams_gpu.py" --out "$work/streams.json" && mark streams
}

train() {
    for shape in 1.7b mini; do
        logged train "${dice[@]}" bench train --shape "$shape" --out "$work/train_$shape.json" || return
    done
    mark train
}

rl() {
    logged rl "${dice[@]}" train rl --recipe nano_rl --model "$model" --infill-steps 1 --generate-steps 2 \
        --infill-data "$RL_DATA/kernel_infilling.parquet" --generate-data "$RL_DATA/kernel_generation.parquet" \
        --out "$work/rl" && mark rl
}

for stage in "$@"; do
    declare -F "$stage" >/dev/null || { echo "gpu.sh: there is no stage $stage." >&2; exit 2; }
done
for stage in "$@"; do
    [[ -f $work/log/$stage.done ]] && continue
    (($(left) > 20)) || { echo "[$SECONDS s] no time is left for $stage."; break; }
    "$stage" || break
done
