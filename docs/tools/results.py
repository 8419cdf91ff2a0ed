"""Writes the figures of README.md and docs/results.md from the JSON files in benchmarks/: no figure is typed twice.

python docs/tools/results.py            # rewrites both
python docs/tools/results.py --check    # changes nothing; exit code 1 where one of them is out of date

What stands between `<!-- results: NAME -->` and `<!-- end -->` is replaced by what the function NAME of this file
returns. Long because there is one for every figure that the pages show, and they share nothing but their table.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", ROOT / "docs" / "results.md")
sys.path.insert(0, str(ROOT))  # the published rows of the paper stand in dice/evaluate/rows.py, which needs no PyTorch

from dice.evaluate.paper_rows import find  # noqa: E402
from dice.evaluate.statistics import wilson  # noqa: E402

LEVELS = (1, 2, 3)
CHECKED_BY = {
    "dice": "`dice`: hardened",
    "dice-paper": "`dice-paper`: as the paper does",
    "kernelbench": "`kernelbench`: as KernelBench does",
}
NO_JUDGEMENT = {"unsupported", "infra_error"}  # these outcomes say nothing about the kernel, and count in no share
PUBLISHED = ("DICE-1.7B", "DICE-4B", "DICE-8B", "cudaLLM", "Claude-Sonnet-4")
SIZES = {"level1": 100, "level2": 100, "level3": 50, "networks": 5}  # problems of each
LEAST_SHARE, WHOLE_SHARE = 0.01, 0.99  # of the module's time, that is a solution, and that counts as all of it
PARTS: dict[str, Callable[[], str]] = {}


def part(function: Callable[[], str]) -> Callable[[], str]:
    """Makes a function's text available to the pages, under the function's name."""
    PARTS[function.__name__] = function
    return function


def read(name: str) -> Any:
    return json.loads((ROOT / "benchmarks" / f"{name}.json").read_text())


def table(head: str, rows: Sequence[Sequence[str]]) -> str:
    rule = "|" + "---|" * len(head.split(" | "))
    return "\n".join([f"| {head} |", rule, *(f"| {' | '.join(row)} |" for row in rows)])


def percent(share: dict[str, float]) -> str:
    """A share with its 95% interval."""
    return f"{100 * share['value']:.1f} [{100 * share['low']:.0f}, {100 * share['high']:.0f}]"


def rows(*names: str) -> str:
    return "Rows: " + ", ".join(f"[{name}](../benchmarks/{name}.json)" for name in names) + "."


# KernelBench


def levels(protocol: str) -> list[tuple[int, int, int, int]]:
    """Of each level: problems judged, correct, faster than eager PyTorch, twice as fast."""
    problems = read("kernelbench/results")["problems"]
    counts = []
    for level in LEVELS:
        judged = [entry[protocol] for name, entry in problems.items() if name.startswith(f"level{level}/")]
        judged = [one for one in judged if one["outcome"] not in NO_JUDGEMENT]
        speedups = [one.get("speedup", 0.0) for one in judged if one["outcome"] == "correct"]
        counts.append((len(judged), len(speedups), sum(s > 1 for s in speedups), sum(s > 2 for s in speedups)))
    return counts


@part
def headline() -> str:
    figures = read("verifier/bench_verify")["figures"]
    problems, right, faster, _ = levels("dice")[0]
    parameters = read("train/autoregressive")["parameters"] / 1e6
    verdicts, builds = figures["verdicts"]["per_minute"], figures["stock"]["per_minute"]
    return (
        f"The shipped model, {parameters:.1f} million parameters, solves **{right} of the {problems} problems of "
        f"KernelBench's level 1** under a stricter\ncheck than the benchmark's, {faster} of them faster than PyTorch; "
        f"the verifier gives **{verdicts:.0f} verdicts a minute** on a GPU on which\nstock `load_inline` finishes "
        f"{builds:.0f} builds."
    )


@part
def kernelbench() -> str:
    found: list[Sequence[str]] = []
    for protocol, text in CHECKED_BY.items():
        cells = []
        for judged, *counts in levels(protocol):
            right, faster, twice = (f"{100 * count / judged:.1f}" for count in counts)
            cells.append(f"{right} ({faster} / {twice})")
        found.append(("nano, shipped" if protocol == "dice" else "the same answers", text, *cells))
    for row in map(find, PUBLISHED):
        numbers = [row.published[level] for level in LEVELS]
        cells = [f"*{right:.1f} ({faster:.1f} / {twice:.1f})*" for right, faster, twice in numbers]
        found.append((f"*{row.name}, published*", "*the paper*", *cells))
    return table("model | checked by | level 1 | level 2 | level 3", found)


@part
def optimized() -> str:
    """Of `dice optimize` over KernelBench: shares of the problems that were judged."""
    run, found = read("optimize/h200"), list[Sequence[str]]()
    for group, problems in sorted(run["groups"].items()):
        right = [row for row in problems.values() if row["outcome"] == "correct" and row.get("share", 0) >= LEAST_SHARE]
        speedups = sorted(row["speedup"] for row in right)
        whole = [row for row in right if row["share"] >= WHOLE_SHARE]
        counts = (len(right), sum(s > 1 for s in speedups), len(whole), sum(row["speedup"] > 1 for row in whole))
        cells = [f"{100 * count / len(problems):.0f}" for count in counts]
        median = f"{statistics.median(speedups):.2f}" if speedups else ""
        found.append((group, f"{len(problems)} of {SIZES[group]}", *cells, median))
    compiled = [row for row in run["groups"]["level3"].values() if "compile_speedup" in row]
    faster = sum(row["speedup"] > row["compile_speedup"] for row in compiled)
    papers = []
    for group, problems in sorted(run["groups"].items()):
        judged = [row["also"]["dice-paper"] for row in problems.values() if "also" in row]
        there = [row["speedup"] for row in judged if row["outcome"] == "correct"]
        if judged:
            papers.append(f"of {len(judged)} of {group} {len(there)} right and {sum(s > 1 for s in there)} faster")
    head = "KernelBench | judged | right, % | and faster | all operators | and faster | median speed-up"
    return (
        f"{table(head, found)}\n\nOf {len(compiled)} of level 3 that were timed beside `torch.compile`, too, {faster} "
        f"are faster than it. Under the paper's protocol, where answers were judged by that, too: {'; '.join(papers)}"
        " (than eager PyTorch).\n\n"
        f"One {run['machine']}: `{run['command']}`. {run['note']}"
    )


@part
def agreement() -> str:
    scores = read("kernelbench/scores")
    same, fast = scores["compared"] - scores["exec_differs"], scores["fast_p_differs"]
    return f"Of {scores['compared']} problems {same} are right or wrong alike, and {fast} differ in how fast they are."


@part
def kernelbench_run() -> str:
    run = read("kernelbench/results")
    versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
    return (
        f"- `{run['command']}`\n- {run['hardware']}; {versions}\n- {run['note']}\n- "
        f"{rows('kernelbench/results', 'kernelbench/scores')}"
    )


# The verifier


@part
def verifier_rates() -> str:
    bench = read("verifier/bench_verify")
    asked, machine, figures = bench["asked"], bench["machine"], bench["figures"]

    def seconds(name: str) -> str:
        median = figures[name]["seconds"].get("median")
        if median is None:
            return ""
        return f"{median:.0f} s" if median > 10 else f"{median:.2f} s"

    def row(what: str, name: str, alone: str = "") -> tuple[str, str, str]:
        rate = figures[name]["per_minute"]
        alone = f" (one alone {seconds(alone)})" if alone else ""
        return what, f"{rate:,.0f}" if rate > 100 else f"{rate:.1f}", seconds(name) + alone

    found = [
        row(f"stock `load_inline`: build only ({figures['stock']['count']} of them)", "stock", "stock_alone"),
        row("DICE: build only", "builds"),
        row("DICE: whole verdict (build, run, compare)", "verdicts", "alone"),
        row("DICE: the same again, builds cached", "warm"),
        row("DICE: the same again, verdicts kept", "remembered"),
    ]
    head = (
        f"{asked['candidates']} distinct kernels, {asked['workers']} at once, empty caches | a minute | median latency"
    )
    where = f"{machine['gpu']}, {machine['cpu_cores']} cores, {machine['compiler']}, torch {machine['torch']}"
    return f"One {where}, one run:\n\n{table(head, found)}"


@part
def verifier_checks() -> str:
    agreed, timing = read("verifier/kernelbench_agreement"), read("verifier/timing_quality")["summary"]
    coverage, soak = read("verifier/slim_coverage")["summary"], read("verifier/soak")
    hostile, exploits = read("verifier/isolation_soak"), read("verifier/exploits_h100")
    memory = max(run["supervisor_rss_mb_max"] for run in soak["runs"])
    times, speedups = timing["median_range_of_times"], timing["median_range_of_speedups"]
    found = {
        "agreement with KernelBench's own evaluator": (
            f"{agreed['agree']} of {agreed['compared']} verdicts, {agreed['unexplained']} unexplained"
        ),
        "kernels in other people's habits that compile without PyTorch's own headers": (
            f"{coverage['compiled']} of {coverage['kernels']}, {coverage['right_of_those']} right"
        ),
        "references timed against themselves": (
            f"{timing['within_3_percent']} of {timing['problems']} within "
            f"{100 * timing['largest_deviation']:.1f}% of 1.00"
        ),
        "one kernel timed 20 times": f"medians span {100 * times:.1f}%, speed-ups {100 * speedups:.1f}%",
        "cheats, honest and wrong controls on a GPU": (
            f"{len(exploits['rows']) - exploits['unexpected']} of {len(exploits['rows'])} as expected"
        ),
        "soak of right, wrong and hostile kernels, killed with -9 in the middle": (
            f"{soak['verdicts_out']:,} of {soak['candidates_in']:,} verdicts, "
            f"{len(soak['run_again_though_finished'])} run twice, {len(soak['unexpected'])} unexpected, "
            f"supervisor at most {memory:.0f} MB"
        ),
        "soak of hostile files, processes killed at random": (
            f"{hostile['verdicts']:,} of {hostile['jobs']:,} verdicts in {hostile['seconds']:.0f} s, "
            f"{len(hostile['odd'])} unexpected, supervisor at most {hostile['peak_rss_mb']:.0f} MB"
        ),
    }
    return table("what | measured", list(found.items()))


@part
def verifier_rows() -> str:
    names = ("bench_verify", "kernelbench_agreement", "slim_coverage", "timing_quality", "exploits_h100", "soak")
    return rows(*(f"verifier/{name}" for name in (*names, "isolation_soak")))


# nano


@part
def heldout() -> str:
    found = []
    for name, what in (
        ("summary", "nano"),
        ("summary_prose_free", "the same without docstrings and comments"),
        ("summary_before", "the checkpoint before it"),
    ):
        summary = read(f"nano/{name}")
        judged, rules = summary["emulated"], summary["emulated"]["by_heldout_rule"]
        shares = (judged["exec"], rules["composition"]["exec"], rules["operator"]["exec"])
        found.append((what, str(summary["problems"]), *(f"{share:.1f}%" for share in shares)))
    return table("model | problems | Exec | held out by composition | by operator", found)


@part
def families() -> str:
    by_family = read("nano/summary")["emulated"]["by_family"]
    best_first = sorted(by_family.items(), key=lambda item: (-item[1]["exec"], item[0]))
    return table("family | problems | Exec", [(name, str(one["n"]), f"{one['exec']:.0f}%") for name, one in best_first])


@part
def plain() -> str:
    found = [
        (name, f"{model['outcomes']['correct']} of {sum(model['outcomes'].values())}", percent(model["exec"]))
        for name, model in read("nano/plain")["models"].items()
    ]
    return table("model | right | Exec, percent [95% interval]", found)


@part
def nano_rows() -> str:
    return rows("nano/summary", "nano/summary_prose_free", "nano/summary_before", "nano/plain")


# Decoding on a GPU


@part
def decoding() -> str:
    stages = read("engine/h200")["stages"]
    runs = {"SDAR-8B": stages["rates"]["fewer_logits"]["rows"], "SDAR-4B": stages["4b"]["rows"]}
    lines = [
        [
            model, str(row["batch"]), str(row["t"]), f"{row['tokens_per_s']:,.0f}", f"{row['forward_ms']:.2f}",
            f"{100 * row['tokens_per_s'] / row['limit_tokens_per_s']:.0f}%",
        ]
        for model, found in runs.items()
        for row in sorted(found, key=lambda row: (row["batch"], row["t"]))
    ]  # fmt: skip
    plain, stock = (
        next(row["tokens_per_s"] for row in stages["8b"]["rows"] if row["who"] == who)
        for who in ("plain", "transformers")
    )
    four, rollouts = stages["4b"], stages["rollouts"]
    versions = f"torch {four['versions']['torch']}, triton {four['versions']['triton']}"
    head = "shapes | texts at once | tokens a forward of each | tokens a second | ms a forward | of the limit"
    return (
        f"{table(head, lines)}\n\nO{four['hardware'][1:]}; {versions}. One text at 8B shapes: `transformers` generates "
        f"{stock:.0f} tokens a second, the plain decoder {plain:.0f} (another card). A step of RL's answers at 8B, "
        f"{rollouts['what']}, takes {rollouts['seconds']:.0f} s.\n\n{rows('engine/h200')}"
    )


# Training


@part
def sft_speed() -> str:
    found = []
    for name, label in (("1.7b", "1.7B shapes"), ("mini", "mini")):
        bench = read(f"train/{name}")
        ours, stock, ratio = (bench["figures"][key] for key in ("ours", "stock", "ratio"))
        found.append(
            (
                f"{label}, {bench['parameters'] / 1e6:,.0f} million parameters",
                f"{ours['tokens_per_s']['median']:,.0f}",
                f"{100 * ours['mfu']:.1f}%",
                f"{stock['tokens_per_s']['median']:,.0f}",
                f"{ratio['median']:.2f} ({ratio['p10']:.2f} to {ratio['p90']:.2f})",
            )
        )
    return table("model | tokens a second | MFU | stock | times stock (p10 to p90)", found)


@part
def sft_8b() -> str:
    run = read("train/train8b_h200")
    found = run["stages"]["sft"]
    peak, predicted = (found[key] / 1e9 for key in ("peak_memory_bytes", "predicted_bytes"))
    step = "{median:.2f} s ({least:.2f} to {most:.2f})".format(**found["step_s"])
    speed = f"{found['clean_tokens_per_s_a_gpu']:,.0f} clean tokens a second and GPU, {100 * found['mfu']:.1f}% MFU"
    memory = f"{peak:.1f} GB at the peak, where `dice plan` says {predicted:.1f}"
    return (
        f"SDAR-8B's shapes, random weights, {run['hardware']}: {found['steps']} steps of {step}, {speed}, "
        f"recomputing {found['recompute']}; {memory}."
    )


@part
def rl_8b() -> str:
    found = read("train/train8b_h200")["stages"]["rl_whole"]
    decoding, waiting, updating, whole = (found[f"{name}_s"] for name in ("decode", "wait", "update", "step"))
    return (
        f"SDAR-8B's shapes, random weights, {found['hardware']}: {found['answers']:,} answers with {found['tokens']:,} "
        f"tokens, two a forward; {decoding:.0f} s of decoding, {waiting:.0f} s of waiting for verdicts, {updating:.0f} "
        f"s of updating at {100 * found['update_mfu']:.1f}% MFU, **{whole:.0f} s in all**. Random weights write no "
        "kernels: those of the corpus are verified in their place, each once its answer is written."
    )


@part
def scaling() -> str:
    found = []
    for row in read("train/scaling_h200")["rows"]:
        shares = [percent(row["exec"][group]) for group in ("heldout", "plain")]
        name, tokens = f"{row['parameters'] / 1e6:.1f} million", f"{row['tokens'] / 1e6:,.0f} million"
        found.append((name, tokens, *shares, f"{row['heldout_loss'][-1]['val_loss']:.3f}"))
    return table("parameters | tokens seen | held-out, % | plain modules, % | held-out loss a token", found)


@part
def scaling_tokens() -> str:
    found = []
    for row in read("train/scaling_tokens_h200")["rows"]:
        shares = [row["exec"].get(group) for group in ("heldout", "plain", "fresh")]
        cells = [
            f"{one['percent']:.1f} [{one['interval'][0]:.0f}, {one['interval'][1]:.0f}]" if one else "not judged"
            for one in shares
        ]
        loss = f"{row['heldout_loss'][-1]['val_loss']:.3f}"
        found.append((f"{row['parameters'] / 1e6:.1f} million", f"{row['seconds']:.0f}", *cells, loss))
    return table(
        "parameters | seconds | held-out, % | plain modules, % | fresh modules, % | held-out loss a token", found
    )


@part
def hidden_style() -> str:
    """Answers to problems that have a style, by who was shown it and who was not."""
    run = read("train/hidden_style_h200")
    hidden, found = set(run["hidden"]), []
    for name, has in (("have one of the two", True), ("have neither", False)):
        ones = [one for one in run["problems"].values() if bool(hidden & set(one["written"])) is has]
        cells = []
        for model in ("all styles", "without two"):
            right = sum(one[model][0] == "correct" for one in ones)
            cells.append(wilson(right, len(ones)).percent())
        found.append((f"{len(ones)} that {name}", *cells))
    return table("held-out problems | trained with all styles, % right | trained without the two", found)


@part
def adaptation() -> str:
    """What pretraining buys, at equal tokens."""
    run, found = read("train/adapt_smollm2_h200"), list[Sequence[str]]()
    names = {"adapted": "SmolLM2, pretrained and adapted", "scratch": "the same network, random weights"}
    for start, name in names.items():
        one = run["runs"][start]
        scores = [one["evaluation"][problems] for problems in ("heldout", "plain", "fresh")]
        cells = [f"{one['percent']:.1f} [{one['interval'][0]:.0f}, {one['interval'][1]:.0f}]" for one in scores]
        last = [row for row in one["sft"]["curve"] if "val_loss" in row][-1]
        found.append((name, *cells, f"{last['val_loss']:.3f}", f"{100 * last['val_accuracy']:.1f}%"))
    tokens = sum(run["tokens"][stage] for stage in ("adapt", "sft")) / 1e6
    head = "start | held-out, % | plain modules, % | fresh modules, % | validation loss | hidden tokens right"
    return table(head, found) + f"\n\n{tokens:.0f} million tokens each, {run['machine']}."


@part
def curves() -> str:
    gpu, cpu = (read("train/fsdp2_curve")[key]["largest_relative_difference"] for key in ("gpu", "cpu"))
    return (
        "One process and two give the same loss curve: relative differences of at most "
        f"{gpu:.1e} on GPUs and {cpu:.1e} on CPUs."
    )


@part
def ablation() -> str:
    arms = {
        "whole kernels, shuffled": ("baseline", 15),
        "the same, with as many updates as the last two": ("baseline", 18),
        "+ data scheduling": ("scheduling", 15),
        "+ kernel infilling": ("infilling", 15),
        "+ both: BiC-RL": ("full", 15),
    }
    result = read("train/ablation/ablation")
    start = result["start"].values()
    shares = (", ".join(f"{100 * one[key]:.1f}" for one in start) for key in ("exec", "deceptive"))
    found = [("none: SFT alone (96 selection problems)", "0", "–", *shares)]
    for name, (arm, steps) in arms.items():
        runs = [run for run in result["runs"] if (run["arm"], run["e2e"]) == (arm, steps)]
        pairs = zip(*((run["exec"]["dice-paper"], run["exec"]["dice"], run["deceptive"]) for run in runs), strict=True)
        said = [", ".join(f"{100 * one:.1f}" for one in pair) for pair in pairs]
        found.append((name, f"{runs[0]['infill']} + {steps}", *said))
    problems = f"Exec of {result['problems']}, `dice-paper`, two starts"
    return table(f"RL | infilling + whole steps | {problems} | Exec, `dice` | deceptive", found)


@part
def ablation_effects() -> str:
    result, found = read("train/ablation/ablation"), []
    for name, one in result["primary"].items():
        deceptive = result["secondary"]["deceptive share"][name]
        found.append((name, points(one), f"{one['adjusted']:.4f}", points(deceptive)))
    return table("effect, points [95%] | Exec, `dice-paper` | p, Holm | deceptive share", found)


@part
def ablation_rewards() -> str:
    names = {"kernelbench-v0": "execution alone", "dice": "execution, honestly"}
    result, found = read("train/ablation/rewards"), []
    for run in result["runs"]:
        honest = run["arm"].endswith("-honest")
        arm = run["arm"].removesuffix("-honest").replace("full-scaffold", "both, infilling by scaffold")
        arm = {"baseline": "whole kernels, shuffled", "full": "both: BiC-RL"}.get(arm, arm)
        shares = (run["exec"]["dice-paper"], run["exec"]["dice"], run["deceptive"])
        steps = f"{run['infill']} + {run['e2e']}"
        reward = names["dice" if honest else "kernelbench-v0"]
        found.append((reward, arm, steps, *(f"{100 * one:.1f}" for one in shares)))
    problems = f"Exec of {result['problems']}, `dice-paper`"
    return table(f"reward | RL | infilling + whole steps | {problems} | Exec, `dice` | deceptive", found)


@part
def honest_reward() -> str:
    runs = read("train/first_ablation")
    before, after = (runs[name]["evaluation"]["total"] for name in ("sft", "baseline-0"))
    told = (
        f"{key} {percent(before[name])}, then {percent(after[name])}"
        for key, name in (("Exec", "exec"), ("deceptive", "deception"))
    )
    return f"{'; '.join(told)} percent of {before['problems']} held-out problems."


def points(one: dict[str, float]) -> str:
    return f"{100 * one['value']:+.1f} [{100 * one['low']:+.1f}, {100 * one['high']:+.1f}]"


@part
def autoregressive() -> str:
    found = []
    result = read("train/autoregressive")
    for label, key in (("block diffusion", "block_diffusion"), ("autoregressive", "autoregressive")):
        one = result[key]
        found.append((label, percent(one["exec"]), f"{one['val_nll']:.4f}", f"{one['seconds']:.0f} s"))
    size = f"{result['parameters']:,} parameters, {result['block_diffusion']['clean_tokens']:,} tokens"
    return table(f"{size} | Exec [95% interval] | held-out loss a token | on an H200", found)


@part
def rl_steps() -> str:
    keys = ("step_s", "decode_s", "verify_s", "update_s")
    steps = read("train/rl_step_h100")["steps"]
    found = [(str(one["step"]), one["stage"], *(f"{one[key]:.1f} s" for key in keys)) for one in steps]
    return table("step | stage | whole | decode | verify, beyond decoding | update", found)


@part
def rl_noise() -> str:
    run = read("train/rl_wide_h200")
    noise, steps = run["noise"], run["steps"]
    batch, (cosine, spread) = max(noise["cosines"].items(), key=lambda item: int(item[0]))
    low, mixed = noise["noise_scale_95"][0], noise["problems"] - noise["flat"]
    return (
        f"Of {noise['problems']} problems x 16 responses {mixed} ({100 * mixed / noise['problems']:.0f}%) have right "
        f"ones and wrong ones: the others teach nothing. The gradients of two batches of {batch} problems have a mean "
        f"cosine of {cosine:.3f} (standard deviation {spread:.3f}); the noise scale is {noise['noise_scale']:,.0f} "
        f"problems a step, with 95% above {low:,.0f} and without an upper end. {len(steps)} steps of "
        f"{steps[0]['groups']} problems x 16 leave the share of right responses where it was: "
        f"{100 * steps[0]['exec']:.1f}% in the first, {100 * steps[-1]['exec']:.1f}% in the last."
    )


@part
def mini() -> str:
    run = read("train/mini_run")["runs"][0]
    heldout, plain = run["heldout"]["emulated"]["exec"], percent(run["plain"]["exec"])
    return f"{heldout:.1f}% of the held-out problems, {plain} percent of the plain modules."


@part
def train_rows() -> str:
    names = (
        "1.7b",
        "mini",
        "fsdp2_curve",
        "ablation/ablation",
        "ablation/rewards",
        "first_ablation",
        "autoregressive",
        "train8b_h200",
        "scaling_h200",
        "rl_step_h100",
        "rl_wide_h200",
        "mini_run",
    )
    return rows(*(f"train/{name}" for name in names))


# Data


@part
def data() -> str:
    structural, pipeline = read("structural/h100"), read("cuke/pipeline_h200")
    emulated, h100 = read("synth/sample_emulated"), read("synth/sample_h100")
    hold, right = structural["problems"] - len(structural["wrong"]), pipeline["outcomes"]["right"]
    took = structural["milliseconds"]
    found = {
        "structural problems at full size, on an H100": (
            f"{hold} of {structural['problems']} hold; {took['least']:.2f} to {took['most']:.0f} ms"
        ),
        "a random sample of the synthetic corpus, on an H100": (
            f"{h100['outcomes']['correct']:,} of {h100['pairs']:,} correct and honest"
        ),
        "a random sample of today's synthetic corpus, emulated": (
            f"{emulated['outcomes']['correct']} of {emulated['pairs']} correct and honest"
        ),
        "the CuKe pipeline on a mixed pool, killed in each step and run again": (
            f"{pipeline['compared_files']} files equal byte for byte to an undisturbed pass; "
            f"{right['correct']:,} of {sum(right.values()):,} untouched pairs correct"
        ),
        "what the pipeline keeps, by the least speed-up": ", ".join(
            f"{count:,} at {threshold}" for threshold, count in pipeline["kept_by_threshold"].items()
        ),
    }
    return table("what | measured", list(found.items()))


@part
def data_rows() -> str:
    return rows("structural/h100", "synth/sample_h100", "synth/sample_emulated", "cuke/pipeline_h200")


def filled(page: Path) -> str:
    """The page with its figures as the rows have them."""

    def replaced(match: re.Match[str]) -> str:
        return f"{match[1]}\n{PARTS[match[2]]()}\n{match[3]}"

    return re.sub(r"(<!-- results: (\w+) -->)\n.*?(<!-- end -->)", replaced, page.read_text(), flags=re.DOTALL)


def main(check: bool = False) -> int:
    stale = [page for page in PAGES if page.read_text() != filled(page)]
    for page in stale:
        if check:
            print(f"{page.relative_to(ROOT)} is out of date: run python docs/tools/results.py")
        else:
            page.write_text(filled(page))
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] == ["--check"]))
