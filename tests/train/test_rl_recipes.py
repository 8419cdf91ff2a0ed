"""RL recipes build, say what the paper says, and start; the commands around them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rl_helpers import kernel, problem

from dice import cli
from dice.commands.train import curves
from dice.commands.train.recipe import Rl, configure
from dice.errors import UserError
from dice.recipes import RL_RECIPES, dice_8b_rl, nano_rl, paper_8b_rl
from tests.conftest import PATIENCE_S

ROOT = Path(__file__).parents[2]


def command(*arguments: object) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "dice", "train", *map(str, arguments)]
    return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.parametrize("name", RL_RECIPES)
def test_recipe_needs_only_its_files(name: str) -> None:
    files = ["--model", "m", "--out", "o", "--infill-data", "i.json", "--generate-data", "g.json"]
    config = configure(Rl, "rl", ("--recipe", name, *files), RL_RECIPES, "nano_rl")
    assert config.check() is config
    assert json.loads(json.dumps(config.to_json()))["generate_data"] == "g.json"
    assert config.policy.row_tokens % 128 == 0


@pytest.mark.parametrize("name", [f"{who}_{size}_rl" for who in ("paper", "dice") for size in ("1_7b", "4b", "8b")])
def test_the_papers_numbers(name: str) -> None:
    config = RL_RECIPES[name]()
    assert (config.infill_steps, config.generate_steps, config.problems, config.responses) == (20, 100, 64, 16)
    assert (config.confidence_threshold, config.temperature, config.top_p, config.top_k) == (0.9, 1.0, 1.0, 0)
    policy = config.policy
    assert (policy.lr, policy.clip_ratio, policy.kl_coef, policy.shrink) == (1e-6, 0.2, 0.01, 1)
    assert (config.reference, config.speed_reward) == ("step", 0)


def test_the_papers_recipe_is_the_papers() -> None:
    """Where the text is silent, the released code: rl_sdar_kernel_*.yaml, its rollout, its reward."""
    config = paper_8b_rl()
    assert (config.protocol, config.provenance, config.trials) == ("kernelbench-v0", "any", 1)
    assert (config.order, config.infill_form, config.infill_prompt) == ("sequential", "whole", "with_example")
    policy = config.policy
    assert (policy.minibatch, policy.minibatch_unit, policy.fresh_optimizer) == (256, "rounds", True)
    assert (policy.beta1, policy.beta2, policy.adam_eps, policy.weight_decay) == (0.9, 0.999, 1e-8, 0.0)
    ours = dice_8b_rl()
    assert (ours.protocol, ours.provenance, ours.infill_form) == ("dice", "construction", "scaffold")


def test_nano_takes_whole_steps() -> None:
    assert (nano_rl().problems, nano_rl().responses, nano_rl().model) == (64, 16, "nano")


def test_any_field_is_a_flag() -> None:
    flags = ["--recipe", "tiny_rl", "--policy.lr", "0.5", "--order", "adaptive", "--staleness", "1", "--model", "m"]
    config = configure(Rl, "rl", tuple(flags), RL_RECIPES, "nano_rl")
    assert (config.policy.lr, config.order, config.staleness) == (0.5, "adaptive", 1)
    with pytest.raises(UserError, match="there is no recipe 'none'; the RL recipes are nano_rl"):
        configure(Rl, "rl", ("--recipe", "none"), RL_RECIPES, "nano_rl")


def test_shipped_model_takes_a_step_until_ctrl_c(tmp_path: Path) -> None:
    """The nano recipe for real, at the size of a CPU, as a user starts and interrupts it."""
    parts = kernel().split()
    rows = [
        {"id": 0, "level": "1", "pytorch_code": problem("add").source, "prefix": parts.prefix, "middle": parts.core}
        | {"suffix": parts.suffix}
    ]
    (tmp_path / "infill.json").write_text(json.dumps(rows))
    (tmp_path / "generate.json").write_text(json.dumps(rows))
    child = command(
        "rl", "--recipe", "nano_rl", "--infill-data", tmp_path / "infill.json", "--generate-data",
        tmp_path / "generate.json", "--out", tmp_path / "run", "--problems", 1, "--responses", 2,
        "--max-new-tokens", 24, "--infill-steps", 0, "--generate-steps", 100000, "--backend", "emulated",
        "--device", "cpu",
    )  # fmt: skip
    deadline = time.monotonic() + PATIENCE_S
    while not (tmp_path / "run" / "metrics.jsonl").exists():
        assert child.poll() is None and time.monotonic() < deadline, child.communicate()[0]
        time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    text = child.communicate(timeout=PATIENCE_S)[0]
    assert child.returncode == 130, text
    assert "interrupted by Ctrl-C" in text and (tmp_path / "run" / "model" / "model.safetensors").exists()


@pytest.fixture
def some_run(tmp_path: Path) -> Path:
    folder = tmp_path / "some"
    folder.mkdir()
    lines = [
        {"step": step, "stage": "infill" if step < 5 else "generate", "reward": step / 40, "exec": step / 40}
        | {"deceptive": 0.0, "kl": 1e-4, "seconds": 60.0 * step, "decode_s": 3.0, "verify_s": 1.0}
        for step in range(1, 31)
    ]
    lines += [{"step": 30, "eval_exec": 0.5}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 31, "rew')
    (folder / "config.json").write_text('{"infill_steps": 20, "generate_steps": 100}')
    return folder


def test_watch_shows_every_curve_once(some_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "watch", str(some_run), "--once"]) == 0
    shown = capsys.readouterr().out
    for text in ("some: step 30 of 120, stage generate, 0.50 h", "decode 3.0 s", "reward: 0.75", "held out: 50.0%"):
        assert text in " ".join(shown.split())


def test_watch_draws_the_trajectory(some_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "figures" / "reward.png"
    assert cli.main(["train", "watch", str(some_run), "--png", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 10_000
    assert str(picture) in capsys.readouterr().out


def test_the_running_mean_restarts_at_a_stage() -> None:
    """The second stage asks for more and is rewarded less: a mean over both would show a slope that nobody measured."""
    lines = [{"step": step, "stage": "infill", "reward": 1.0} for step in range(1, 9)]
    lines += [{"step": step, "stage": "generate", "reward": 0.0} for step in range(9, 17)]
    infill, generate = curves.running_means(lines, "reward")
    assert infill == [(step, 1.0) for step in range(1, 9)]
    assert generate == [(step, 0.0) for step in range(9, 17)]
    assert curves.running_means([{"step": 1, "loss": 2.0}, {"step": 2, "loss": 4.0}], "loss") == [[(1, 2.0), (2, 3.0)]]


def test_watch_calls_no_problem_held_out_that_is_trained_on(some_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metrics = some_run / "metrics.jsonl"
    lines = metrics.read_text().splitlines()[:-2]
    metrics.write_text("\n".join([*lines, json.dumps({"step": 30, "eval_exec": 0.5, "eval_trained_on": 4})]) + "\n")
    assert cli.main(["train", "watch", str(some_run), "--once"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Exec, also trained on: 50.0%" in shown and "held out" not in shown


def test_watch_says_what_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        assert cli.main(["train", "watch", str(folder), "--once"]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_charts_fill_from_the_smallest_to_the_largest_value() -> None:
    rows = curves.chart([0.0, 0.5, 1.0], width=10, height=2)
    assert [row[0] for row in rows] == [" ", curves.LEVELS[1]]
    assert [row[2] for row in rows] == [curves.LEVELS[8], curves.LEVELS[8]]
    assert len(curves.chart([float(value) for value in range(1000)], width=10, height=3)[0]) == 10
    assert curves.chart([2.0], width=5, height=1) == [curves.LEVELS[1]]
