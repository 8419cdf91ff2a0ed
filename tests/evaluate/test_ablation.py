"""The ablation: its plan is what its docstring says, its figures are those of known answers, and it runs to its end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import ablation
import pytest
from ablation_curves import mean_curve
from ablation_sets import by_level
from made_runs import CORRECT, DECEPTIVE, TASKS, WRONG, make_run

from dice import synth
from dice.commands.train.recipe import Rl, Sft, configure
from dice.evaluate.run_folder import Task
from dice.recipes import RL_RECIPES, SFT_RECIPES
from dice.train.rl.config import RLConfig
from tests.conftest import PATIENCE_S, ROOT

OUT = Path("/out")


def rl_config(name: str, plan: ablation.Plan = ablation.REAL) -> RLConfig:
    """What an arm's last job trains with, read by the command itself."""
    found = [job for job in ablation.jobs(OUT, plan) if job.name.startswith(f"rl-{name}@")]
    flags = found[-1].command[found[-1].command.index("rl") + 1 :]
    return configure(Rl, "rl", flags, RL_RECIPES, "nano_rl").check()


def test_arms_differ_in_nothing_but_their_part() -> None:
    """Equal whole-kernel steps, infilling on top of them, the paper's reward; the baseline's longer end has as many
    updates as the arms with infilling."""
    base = rl_config("baseline-0")
    assert (base.infill_steps, base.generate_steps, base.order, base.stop_at_step) == (0, 18, "shuffled", 18)
    assert (base.protocol, base.provenance, base.infill_form) == ("kernelbench-v0", "any", "whole")
    assert (base.problems, base.responses, base.trials) == (16, 8, 1)
    assert base.problems * base.responses >= 4 * base.policy.minibatch, "clipping and KL act from the second update on"
    for name, infill, order in (("scheduling", 0, "scheduled"), ("infilling", 3, "shuffled"), ("full", 3, "scheduled")):
        arm = rl_config(f"{name}-1")
        assert arm == replace(
            base, out=OUT / "rl" / f"{name}-1", model=str(OUT / "sft-1" / "model"), seed=1, infill_steps=infill,
            generate_steps=15, order=order, stop_at_step=infill + 15,
        )  # fmt: skip
    for job in ablation.jobs(OUT, ablation.REAL):
        if job.name.startswith("sft-"):
            configure(Sft, "sft", job.command[job.command.index("sft") + 1 :], SFT_RECIPES, "nano_sft").check()


def test_the_second_part_differs_in_the_reward_or_in_the_form_alone() -> None:
    rewards = replace(ablation.REAL, rewards=True, seeds=(0,))
    base, full = rl_config("baseline-0", rewards), rl_config("full-0", rewards)
    assert (base, full) == (replace(rl_config("baseline-0"), generate_steps=15, stop_at_step=15), rl_config("full-0"))
    rl = OUT / "rl"
    assert rl_config("full-scaffold-0", rewards) == replace(full, out=rl / "full-scaffold-0", infill_form="scaffold")
    for arm in (base, full):
        name = f"{arm.out.name.removesuffix('-0')}-honest-0"
        assert rl_config(name, rewards) == replace(arm, out=rl / name, protocol="dice", provenance="construction")
    looks = {job.name for job in ablation.jobs(OUT, rewards) if job.name.startswith("eval-baseline")}
    assert {"eval-baseline-0@4", "eval-baseline-honest-0@4"} < looks


PLAN = replace(ablation.REAL, middle=(), seeds=(0, 1), sft_looks=(5, 10))
KEYS = [Task(f"level{level}/{n}", level, n, str(n), TASKS[0].source) for level in (1, 2, 3) for n in range(10)]


def made(out: Path, solved: Mapping[str, int], deceptive: Mapping[str, int], plan: ablation.Plan = PLAN) -> None:
    """Runs in which each arm solves the first so many of ten problems of a level, and deceives on the last so many."""
    for arm in plan.arms:
        for seed in arm.seeds:
            for e2e in arm.looks:
                name = f"{arm.name}@{e2e}"
                right, sly = solved.get(name, solved.get(arm.name, 5)), deceptive.get(arm.name, 0)
                row = [CORRECT] * right + [WRONG] * (10 - right - sly)
                verdicts = {
                    protocol: (row + [DECEPTIVE if protocol == "dice" else WRONG] * sly) * 3
                    for protocol in ablation.PROTOCOLS
                }
                make_run(out / "eval" / f"{arm.name}-{seed}@{e2e}", tasks=KEYS, verdicts=verdicts)
            steps = out / "rl" / f"{arm.name}-{seed}" / "metrics.jsonl"
            steps.parent.mkdir(parents=True)
            lines = [
                {"step": n, "stage": "infill" if n <= arm.infill else "generate", "reward": 0.5, "exec": 0.25}
                | {"updates": 4, "shown_deceptive": 0.1}
                for n in range(1, arm.infill + arm.e2e + 1)
            ]
            steps.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for seed in plan.seeds:
        make_run(out / "trial" / f"{seed}@5", verdicts={"dice": [CORRECT, CORRECT, DECEPTIVE, WRONG, WRONG]})


@pytest.mark.slow
def test_effects_are_those_of_the_answers(tmp_path: Path) -> None:
    """Infilling alone adds 2 of 10, scheduling 1, both together 3; three more steps of the baseline add 2."""
    made(tmp_path, {"infilling": 7, "scheduling": 6, "full": 8, "baseline@18": 7}, {"baseline": 1})
    found = ablation.results(tmp_path, PLAN)
    effects = {name: one["value"] for name, one in found["primary"].items()}
    assert effects == pytest.approx(
        {
            "infilling": 0.2, "scheduling": 0.1, "full at equal whole-kernel steps": 0.3, "full at equal updates": 0.1,
        }
    )  # fmt: skip
    assert found["secondary"]["deceptive share"]["infilling"]["value"] == pytest.approx(-0.05)
    one = found["primary"]["infilling"]
    assert one["low"] > 0 and one["p"] <= one["adjusted"] <= 4 * one["p"] and not one["within_margin"]
    assert {level: effects["infilling"]["value"] for level, effects in found["levels"].items()} == pytest.approx(
        {"1": 0.2, "2": 0.2, "3": 0.2}
    )
    runs = {(run["arm"], run["seed"], run["e2e"]): run for run in found["runs"]}
    assert runs["full", 1, 15]["updates"] == 72 == runs["baseline", 1, 18]["updates"]
    assert runs["baseline", 0, 15]["updates"] == 60 and runs["baseline", 0, 15]["exec_not_deceptive"] == 0.5 / 0.9
    assert found["start"]["1"] == {"steps": 5, "exec": 0.4, "deceptive": 0.2}
    ablation.report(tmp_path, tmp_path, PLAN)
    steps, shares = mean_curve(found["runs"], "full", "exec")
    assert (
        steps == list(range(-2, 16))
        and set(shares) == {0.25}
        and (tmp_path / "ablation_curves.png").stat().st_size > 5000
    )
    text = (tmp_path / "ablation.md").read_text()
    assert "| full | 1 | 3 + 15 | 72 | 80.0 | 80.0 | 0.0 |" in text and "| infilling: +20.0 [" in text


@pytest.mark.slow
def test_the_second_part_reports_its_arms_without_endpoints(tmp_path: Path) -> None:
    plan = replace(PLAN, rewards=True, seeds=(0,))
    made(tmp_path, {"baseline-honest": 8}, {"baseline": 3}, plan)
    ablation.report(tmp_path, tmp_path, plan)
    text = (tmp_path / "rewards.md").read_text()
    assert "| baseline-honest | 0 | 0 + 4 | 16 | 80.0 | 80.0 | 0.0 |" in text and "effect" not in text
    assert "primary" not in json.loads((tmp_path / "rewards.json").read_text())


def test_training_goes_on_to_the_next_look_until_one_finds_enough(tmp_path: Path) -> None:
    jobs = {job.name: job for job in ablation.jobs(tmp_path, PLAN)}
    first, later = jobs["sft-0@5"].unless, jobs["sft-0@10"].unless
    assert first is not None and later is not None
    assert not first() and not later()
    make_run(tmp_path / "trial" / "0@5", verdicts={"dice": [CORRECT, WRONG, WRONG, WRONG, WRONG]})
    assert not later()
    make_run(tmp_path / "trial" / "0@5", verdicts={"dice": [CORRECT, WRONG, WRONG, WRONG, WRONG]})
    (tmp_path / "trial" / "0@5" / "verdicts" / "dice.jsonl").unlink()
    make_run(tmp_path / "trial" / "0@5", verdicts={"dice": [CORRECT, CORRECT, WRONG, WRONG, WRONG]})
    assert later() and not first()


def test_each_level_gets_as_many_problems() -> None:
    pairs = [synth.generate(301, index) for index in range(150)]
    found = by_level(pairs, 2)
    assert len(found) == 6 and len({pair.problem.source for pair in found}) == 6


def test_a_folder_of_other_work_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "settings.json").write_text('{"infill": 9}')
    assert ablation.main(["run", str(tmp_path), "--to", str(tmp_path / "to"), "--seconds", "0"]) == 1
    said = capsys.readouterr().err
    assert "holds work with other" in said and "infill" in said and said.count("\n") == 1


@pytest.mark.slow  # its jobs are commands that have tests of their own
def test_it_runs_to_its_end_in_chunks(tmp_path: Path) -> None:
    """Every part of it on two cores, stopped once under way: data, starts, arms, looks, table."""
    out, to = tmp_path / "a folder", tmp_path / "results"
    environment = os.environ | {"PYTHON": sys.executable, "CHUNK": "45", "RESULTS": str(to)}
    command = ["bash", str(ROOT / "runs" / "ablation.sh"), str(out), "--smoke", "--parallel", "2"]
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "give the same command again" in done.stdout
    found = json.loads((to / "ablation.json").read_text())
    assert found["smoke"] and found["problems"] == 3 and len(found["runs"]) == 10
    assert sum(run["updates"] for run in found["runs"]) > 0
    answers = json.loads((to / "ablation_outcomes.json").read_text())
    assert all(len(protocols["dice"]) == 3 for protocols in answers.values())
