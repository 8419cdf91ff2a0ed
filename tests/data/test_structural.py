"""The structural problems: every one is built and run at reduced scale, none is degenerate, no two are the same."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch

from dice.cli import main
from dice.data.decontaminate import THRESHOLD, fingerprint
from dice.data.sample import Sample, read_samples
from dice.data.structural.build import samples
from dice.data.structural.catalogue import STRUCTURES
from dice.data.structural.emit import load_modules, needed, write_problem
from dice.data.structural.models import PUBLISHED
from dice.data.structural.structure import DIFFICULTY, Structure, at
from dice.problem import Problem
from dice.verify.audit import sizes
from dice.verify.execution.running import Device
from tests.conftest import ROOT
from tests.data.structural_audit import audit

REDUCED = samples("reduced")
FIRST = {sample.origin: sample for sample in reversed(REDUCED)}  # one problem of each structure


@pytest.fixture(scope="module")
def full() -> list[Sample]:
    return samples("full")


def build(sample: Sample) -> tuple[torch.nn.Module, list[torch.Tensor], list[torch.Tensor]]:
    """The model and two draws of its inputs."""
    space: dict[str, Any] = {}
    exec(compile(sample.problem, sample.name, "exec"), space)
    torch.manual_seed(0)
    return space["Model"](*space["get_init_inputs"]()), space["get_inputs"](), space["get_inputs"]()


def test_there_are_enough_and_they_are_told_apart(full: list[Sample]) -> None:
    assert len(full) >= 320 and len({sample.origin for sample in full}) >= 100
    assert len({sample.name for sample in full}) == len({sample.problem for sample in full}) == len(full)
    assert max(Counter(sample.origin for sample in full).values()) <= 4
    assert {sample.meta["kind"] for sample in full} == set(DIFFICULTY)
    assert {sample.meta["mirrors"] for sample in full} == set(PUBLISHED)  # no model is listed in vain


def test_no_structure_nearly_repeats_another() -> None:
    prints = {origin: fingerprint(sample.as_problem()) for origin, sample in FIRST.items()}
    assert len({one.digest for one in prints.values()}) == len(prints)
    for (name, one), (other, two) in combinations(prints.items(), 2):
        shared = len(one.shingles & two.shingles)
        similarity = shared / (len(one.shingles) + len(two.shingles) - shared)
        assert similarity < THRESHOLD, f"{name} and {other}: {similarity:.3f}"


def test_both_scales_are_the_same_program(full: list[Sample]) -> None:
    for large, small in zip(full, REDUCED, strict=True):
        assert large.name == small.name
        assert constants_out(large.problem) == constants_out(small.problem), large.name


def constants_out(source: str) -> str:
    return re.sub(r"^(\w+) = [\d.e+-]+$", r"\1", source, flags=re.M)


@pytest.mark.parametrize("sample", REDUCED, ids=lambda sample: sample.name)
def test_it_runs_and_follows_its_inputs(sample: Sample) -> None:
    model, inputs, others = build(sample)
    floats = [one.requires_grad_() for one in inputs if one.is_floating_point()]
    output = model(*inputs)
    assert isinstance(output, torch.Tensor) and output.is_floating_point() and output.numel() > 1
    assert bool(output.isfinite().all()) and float(output.detach().std()) > 0.01
    with torch.no_grad():
        assert not torch.allclose(output, model(*others), rtol=1e-2, atol=1e-2)
    if output.requires_grad and floats:
        gradients = torch.autograd.grad((output * torch.randn_like(output)).sum(), floats, allow_unused=True)
        assert any(one is not None and bool(one.isfinite().all()) and bool((one != 0).any()) for one in gradients)


@pytest.mark.parametrize(
    "origin",
    [pytest.param(name, marks=pytest.mark.slow if place % 3 else ()) for place, name in enumerate(sorted(FIRST))],
)
def test_the_audit_finds_nothing(origin: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert audit(FIRST[origin].problem) == []


def test_the_audit_would_find_something(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = FIRST["SwiGLU"].problem
    assert {kind for kind, _ in audit(source.replace("return self.down_proj(", "return 0 * self.down_proj("))} >= {
        "zeros",
        "dead_input",
    }


def test_at_full_scale_none_is_launch_bound_or_huge(full: list[Sample]) -> None:
    """Without data. Where inputs and parameters alone take longer than a launch, forward need not be looked at."""
    for sample in full:
        space: dict[str, Any] = {}
        exec(compile(sample.problem, sample.name, "exec"), space)
        with torch.device("meta"), torch.no_grad():
            model, inputs = space["Model"](*space["get_init_inputs"]()), space["get_inputs"]()
            size = sum(tensor.nbytes for tensor in (*inputs, *model.parameters()))
            assert size < 2 << 30, sample.name
            if size > sizes.LAUNCH_US * 1e-6 * sizes.REFERENCE_GPU.bandwidth:
                continue
            assert sizes.measure_run(model, inputs, Device("emulated")).ceiling_us > sizes.LAUNCH_US, sample.name


def test_each_reads_well(full: list[Sample]) -> None:
    for sample in full:
        Problem(sample.problem, sample.name).check()
        tree = ast.parse(sample.problem)
        model = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Model")
        assert f"Mirrors {sample.meta['mirrors']}, at " in (ast.get_docstring(model) or "")
        assert max(map(len, sample.problem.splitlines())) <= 120 and sample.problem.isascii()
        assert {line for line in sample.problem.splitlines() if line.startswith(("import", "from"))} <= {
            "import math",
            "import torch",
            "import torch.nn as nn",
            "import torch.nn.functional as F",
        }


def test_every_part_is_used() -> None:
    used = {name for structure in STRUCTURES for name in needed(structure.main)}
    assert used == set(load_modules())


def test_what_is_used_comes_first_and_once() -> None:
    order = needed("PreNormLayer")
    assert len(set(order)) == len(order) and order[-1] == "PreNormLayer"
    assert order.index("rotate") < order.index("GroupedQueryAttention") < order.index("PreNormLayer")


def test_a_structure_that_lacks_a_size_is_an_error() -> None:
    variant = at("Mistral 7B", batch_size=2, seq_len=8)
    with pytest.raises(ValueError, match="SlidingWindowAttention mirroring Mistral 7B needs window"):
        Structure("SlidingWindowAttention", "attention", ("torch.randn(batch_size, seq_len)",), (variant,)).source(
            variant, "full"
        )
    with pytest.raises(ValueError, match="RMSNorm needs hidden_size"):
        write_problem("RMSNorm", "A test.", ("torch.randn(3)",), {})


def command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "dice", "data", "structural", *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)


def test_the_command_writes_the_same_bytes_again(tmp_path: Path) -> None:
    result = command("-o", tmp_path, "--scale", "reduced", "--family", "gemma 2", "--json")
    assert result.returncode == 0, result.stderr
    index = json.loads(result.stdout)
    assert index == json.loads((tmp_path / "index.json").read_text())
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert set(before) == {"index.json", "structural.parquet", *(entry["file"] for entry in index["index"])}
    assert command("-o", tmp_path, "--scale", "reduced", "--family", "Gemma 2").returncode == 0
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    rows = list(read_samples(tmp_path / "structural.parquet"))
    assert rows == samples("reduced", "Gemma 2") and {row.family for row in rows} == {"Gemma 2"}
    for row, entry in zip(rows, index["index"], strict=True):
        assert before[entry["file"]].decode() == row.problem and entry["id"] == row.as_problem().id
        assert entry["sizes"] == row.meta["sizes"] and entry["kind"] == row.meta["kind"]


def test_misuse_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text("")
    for arguments, words in (
        ((), "Give --out, a folder for the problems, or --list."),
        (("--list", "--family", "Llamo"), "There is no family Llamo; there are"),
        (("-o", tmp_path), "holds mine.py, which is not of this set"),
        (("-o", tmp_path / "mine.py"), "is a file; --out names a folder"),
    ):
        assert main(["data", "structural", *map(str, arguments)]) == 2
        said = capsys.readouterr().err
        assert words in said and len(said.splitlines()) == 1


def test_the_list_names_kinds_and_families() -> None:
    result = command("--list", "--family", "RWKV-6")
    assert result.returncode == 0 and "TokenShift" in result.stdout and "RWKV-6 (" in result.stdout
