"""SDAR against Qwen3 on parts of a data set: nested parts, equal settings, and gains of known answers."""

from __future__ import annotations

import json
from pathlib import Path

import data_efficiency
import pytest
from made_runs import CORRECT, WRONG, make_run

from dice.commands.train.recipe import Sft, configure
from dice.data.pairs import read_pairs
from dice.recipes import SFT_RECIPES
from dice.train.config import SFTConfig

pytest.importorskip("matplotlib")


def test_parts_are_nested_and_one_order_a_seed(tmp_path: Path) -> None:
    data = tmp_path / "pairs.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"p{n}", "response": f"r{n}"}) + "\n" for n in range(16)))
    flags = ["parts", str(tmp_path), "--size", "nano", "--data", str(data)]
    assert data_efficiency.main(flags) == 0
    parts = {
        (seed, share): [pair.response for pair in read_pairs(tmp_path / "parts" / f"{seed}-{share:g}.parquet")]
        for seed in (0, 1)
        for share in data_efficiency.SHARES
    }
    assert [len(parts[0, share]) for share in data_efficiency.SHARES] == [2, 4, 8, 16]
    assert all(parts[seed, 1.0][: len(part)] == part for (seed, _), part in parts.items())
    assert parts[0, 1.0] != parts[1, 1.0] and sorted(parts[0, 1.0]) == sorted(parts[1, 1.0])


@pytest.mark.parametrize(("size", "bases"), [("nano", ()), ("4b", ("JetLM/SDAR-4B-Chat", "Qwen/Qwen3-4B"))])
def test_both_families_train_alike(size: str, bases: tuple[str, ...], tmp_path: Path) -> None:
    parser_flags = ["run", str(tmp_path), "--size", size, "--data", "d", "--problems", "p", "--to", str(tmp_path)]
    jobs: list[data_efficiency.Job] = []
    with pytest.MonkeyPatch.context() as patch:

        def note(self: data_efficiency.Study) -> list[data_efficiency.Job]:
            jobs.extend(real(self))
            return []

        real = data_efficiency.Study.jobs
        patch.setattr(data_efficiency.Study, "jobs", note)
        assert data_efficiency.main(parser_flags) == 1  # nothing was evaluated
    configs: list[SFTConfig] = []
    for family in data_efficiency.FAMILIES:
        command = next(job.command for job in jobs if job.name == f"sft-{family}-1-0.25")
        configs.append(configure(Sft, "sft", command[command.index("sft") + 1 :], SFT_RECIPES, "nano_sft").check())
    sdar, qwen = configs
    assert (sdar.data, sdar.epochs, sdar.lr, sdar.seed) == (qwen.data, qwen.epochs, qwen.lr, qwen.seed)
    if bases:
        assert (sdar.model, qwen.model) == bases
    else:
        assert sdar.shape is not None and qwen.shape is not None and qwen.shape.family == "qwen3"


def test_gains_are_those_of_the_answers(tmp_path: Path) -> None:
    for family, right in (("sdar", 3), ("qwen3", 1)):
        for seed in (0, 1):
            verdicts = {"dice-paper": [CORRECT] * right + [WRONG] * (5 - right)}
            make_run(tmp_path / "eval" / f"{family}-{seed}-1", verdicts=verdicts)
    flags = ["report", str(tmp_path), "--size", "nano", "--shares", "1", "--to", str(tmp_path / "to")]
    assert data_efficiency.main(flags) == 0
    part = json.loads((tmp_path / "to" / "data_efficiency.json").read_text())["parts"]["1"]
    assert part["sdar"]["gain"]["value"] == pytest.approx(0.6) and part["qwen3"]["exec"]["value"] == pytest.approx(0.2)
    assert part["sdar_less_qwen3"]["value"] == pytest.approx(0.4)
    assert (tmp_path / "to" / "data_efficiency.png").stat().st_size > 5000
