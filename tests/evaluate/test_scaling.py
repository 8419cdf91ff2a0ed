"""What `benchmarks/scaling_gpu.py` reckons: rates, times, which checkpoints are kept, what is in them, and the rows."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from made_runs import CORRECT, TASKS, WRONG
from scaling_gpu import EVALUATE_S, LEAST_TRAIN_S, START_S, parse, training_seconds
from scaling_rows import CURVE_POINTS, Kept, read_evaluation, thinned
from scaling_study import NANO_FOLDER, ROW_TOKENS, SIZES, Study, learning_rate

from dice.commands.train.recipe import Sft, configure
from dice.evaluate.run_folder import Judgement, RunFolder
from dice.model.checkpoint import load_model, read_config, save_model
from dice.model.sdar import SDAR
from dice.recipes import MINI, NANO, SFT_RECIPES, mini_sft, nano_sft
from dice.train.checkpoints import Checkpoints
from dice.train.config import SFTConfig
from dice.train.weights import Weights


def study(out: Path, *flags: str, gpus: tuple[str, ...] = ()) -> Study:
    return Study(out, parse([str(out), *flags]), gpus)


def sft(one: Study, name: str) -> SFTConfig:
    command = one.training(name, 300.0).command
    return configure(Sft, "sft", command[command.index("sft") + 1 :], SFT_RECIPES, "nano_sft").check()


def test_learning_rates_go_through_those_of_the_recipes() -> None:
    assert learning_rate(NANO.hidden_size, 32, False) == nano_sft().lr
    assert learning_rate(MINI.hidden_size, 32, False) == mini_sft().lr
    assert learning_rate(NANO.hidden_size, 128, True) == 3e-3


def test_training_leaves_a_call_time_to_evaluate() -> None:
    assert training_seconds(330, 1000, 1) == 330
    assert training_seconds(330, 480, 1) == 480 - EVALUATE_S - START_S
    assert 2 * (training_seconds(330, 480, 2) + START_S) + EVALUATE_S <= 480
    assert training_seconds(330, 100, 1) == LEAST_TRAIN_S


def test_all_sizes_are_trained_on_the_same_batches(tmp_path: Path) -> None:
    one = study(tmp_path, gpus=tuple("0123"))
    configs = [sft(one, name) for name in one.names]
    alike = ("data", "seed", "batch_rows", "row_tokens", "max_seconds", "max_steps", "schedule", "tokenizer")
    assert len({tuple(getattr(config, field) for field in alike) for config in configs}) == 1
    assert [config.shape for config in configs] == [SIZES[name].shape for name in one.names]
    assert all(config.checkpoint_every * config.batch_rows * ROW_TOKENS == 1 << 24 for config in configs)


def test_the_end_of_a_training_is_by_tokens_where_asked(tmp_path: Path) -> None:
    config = sft(study(tmp_path, "--train-tokens", str(1 << 26)), "9m")
    assert config.max_steps is not None and config.max_steps * config.batch_rows * ROW_TOKENS == 1 << 26


def test_nano_goes_on_over_all_gpus(tmp_path: Path) -> None:
    one = study(tmp_path, "--start", "nano", gpus=tuple("0123"))
    assert "--nproc-per-node" in one.training("nano", 300.0).command
    config = sft(one, "nano")
    assert (config.model, config.batch_rows, config.lr) == ("nano", 64, learning_rate(384, 64, True))


def checkpoint(folder: Path, step: int) -> None:
    (folder / f"step-{step:08d}").mkdir(parents=True)
    (folder / f"step-{step:08d}" / "manifest.json").write_text(json.dumps({"step": step}))


def test_checkpoints_are_kept_at_powers_of_two_and_outlive_their_run(tmp_path: Path) -> None:
    one = study(tmp_path, "--sizes", "tiny", "2m", "--batch-rows", "1", "--least-tokens", str(2 * ROW_TOKENS))
    kept = Kept(one)
    for name, steps in (("tiny", (1, 2, 3, 4, 8)), ("2m", (2, 4, 5))):
        for step in steps:
            checkpoint(tmp_path / "train" / name / "checkpoints", step)
    kept.keep()
    shutil.rmtree(tmp_path / "train")
    kept.keep()
    assert kept.of("tiny") == [2 * ROW_TOKENS, 4 * ROW_TOKENS, 8 * ROW_TOKENS]
    assert kept.shared() == [(name, step * ROW_TOKENS) for step in (4, 2) for name in ("tiny", "2m")]
    assert kept.manifest("tiny", 8 * ROW_TOKENS)["step"] == 8


def test_a_kept_checkpoint_is_a_model_of_averaged_weights(tmp_path: Path) -> None:
    one = study(tmp_path, "--sizes", "tiny", "--batch-rows", "1", "--least-tokens", str(ROW_TOKENS))
    run = tmp_path / "train" / "tiny"
    torch.manual_seed(0)
    model = SDAR(
        replace(read_config(NANO_FOLDER), **{k: v for k, v in asdict(SIZES["tiny"].shape).items() if k != "family"})
    )
    weights = Weights(model, nano_sft(), torch.float32, ema=0.5)
    for step in range(3):
        for weight in weights.params:
            assert weight.grad is not None
            weight.grad.normal_()
        weights.update(1e-2, step)
    with Checkpoints(run / "checkpoints", 2) as checkpoints:
        checkpoints.save(1, weights.tensors(), {"step": 1})
    save_model(weights.export(), model.config, run / "model", NANO_FOLDER, dtype=torch.bfloat16)
    kept = Kept(one)
    kept.keep()
    found, expected = (
        dict(load_model(path).named_parameters()) for path in (kept.model("tiny", ROW_TOKENS), run / "model")
    )
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)
    assert not torch.equal(found["lm_head.weight"].float(), weights.params[-1].bfloat16().float())


def made(folder: Path, samples: int, right: dict[str, int]) -> Path:
    """A run over one task of each set, judged; `right`: of a task, how many answers."""
    run = RunFolder(folder)
    run.begin({"samples": samples}, [replace(TASKS[0], key=key) for key in right])
    for key, count in right.items():
        for sample in range(samples):
            run.add_judgement("dice", Judgement(key, sample, CORRECT if sample < count else WRONG))
    return folder


def test_rows_count_solved_problems_by_set(tmp_path: Path) -> None:
    sets, why = read_evaluation(made(tmp_path, 1, {"plain/a": 1, "plain/b": 0, "heldout/c": 1}))
    assert not why
    assert {name: (row["solved"], row["of"], row["value"]) for name, row in sets.items()} == {
        "plain": (1, 2, 0.5), "heldout": (1, 1, 1.0),
    }  # fmt: skip
    assert sets["plain"]["outcomes"] == {"correct": 1, "wrong": 1}


def test_one_of_several_answers_solves_a_problem(tmp_path: Path) -> None:
    sets, _ = read_evaluation(made(tmp_path, 4, {"plain/a": 1, "plain/b": 0}))
    assert (sets["plain"]["solved"], sets["plain"]["one_sample"]) == (1, 0.125)


def test_what_is_not_judged_to_the_end_has_no_figure(tmp_path: Path) -> None:
    assert read_evaluation(tmp_path / "none") == ({}, "not begun: no time was left")
    path = made(tmp_path, 1, {"plain/a": 1, "plain/b": 1}) / "verdicts" / "dice.jsonl"
    path.write_text(path.read_text().splitlines(keepends=True)[0])
    assert read_evaluation(tmp_path) == ({}, "stopped: 1 of 2 answers were judged")


@pytest.mark.parametrize("count", [0, 1, CURVE_POINTS, CURVE_POINTS + 1, 1000])
def test_thinned_curves_keep_their_end(count: int) -> None:
    points = [{"step": step} for step in range(count)]
    assert len(thinned(points)) <= CURVE_POINTS and thinned(points)[-1:] == points[-1:]
