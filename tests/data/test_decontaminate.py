"""Benchmark problems are recognised under other names, constants and shapes; others are left alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dice import synth
from dice.data.decontaminate import Index, fingerprint
from dice.problem import Problem, ProblemError

BENCHMARK = '''import torch
import torch.nn as nn

class Model(nn.Module):
    """Scores tokens against a learned codebook."""
    def __init__(self, dim, codes):
        super().__init__()
        self.codes = nn.Parameter(torch.randn(codes, dim))
        self.temperature = 0.7

    def forward(self, tokens):
        # distance to every code
        scores = tokens @ self.codes.t()
        scores = torch.softmax(scores / self.temperature, dim=-1)
        return scores @ self.codes

batch = 16
dim = 256

def get_inputs():
    return [torch.randn(batch, dim)]

def get_init_inputs():
    return [dim, 512]
'''
RENAMED = '''import torch
from torch import nn
batch_size, width = 4, 31

class Model(nn.Module):
    def __init__(self, width: int, entries: int):
        super().__init__()
        self.book = nn.Parameter(torch.randn(entries, width))
        self.tau = 1.3

    def forward(self, entries: torch.Tensor) -> torch.Tensor:
        """
        Soft assignment.
        """
        h = entries @ self.book.t()
        h = torch.softmax(h / self.tau, dim=-1)
        return h @ self.book

def get_init_inputs():
    return [width, 8]

def get_inputs():
    return [torch.randn(batch_size, width)]
'''
OTHER = BENCHMARK.replace("torch.softmax(scores / self.temperature, dim=-1)", "torch.sigmoid(scores) * scores.mean()")


@pytest.fixture
def index(tmp_path: Path) -> Index:
    (tmp_path / "level1").mkdir()
    (tmp_path / "level1" / "7_Codebook.py").write_text(BENCHMARK)
    return Index.from_folders([tmp_path])


def test_the_same_program_under_other_names_and_shapes(index: Index) -> None:
    match = index.find(Problem(RENAMED, "planted"))
    assert match is not None
    assert (match.benchmark, match.kind, match.problem) == ("7_Codebook", "same program", "planted")


def test_a_nearly_equal_program(index: Index) -> None:
    changed = RENAMED.replace("return h @ self.book", "return (h @ self.book).contiguous()")
    assert fingerprint(Problem(changed)).digest != fingerprint(Problem(BENCHMARK)).digest
    match = index.find(Problem(changed))
    assert match is None or match.kind == "near duplicate"
    near = Index([Problem(BENCHMARK, "7_Codebook")], threshold=0.8).find(Problem(changed))
    assert near is not None and near.kind == "near duplicate" and 0.8 <= near.similarity < 1


def test_another_computation_is_left_alone(index: Index) -> None:
    assert index.find(Problem(OTHER)) is None


def test_library_calls_are_not_names_of_the_author() -> None:
    assert (
        fingerprint(Problem(BENCHMARK)).digest
        != fingerprint(Problem(BENCHMARK.replace("softmax", "log_softmax"))).digest
    )


def test_constants_and_prose_do_not_count() -> None:
    other = re.sub(r"\b(16|256|512)\b", "3", BENCHMARK).replace("0.7", "9.5").replace("Scores tokens", "Something else")
    assert fingerprint(Problem(other)) == fingerprint(Problem(BENCHMARK))


def test_text_that_is_not_python_is_compared_as_words() -> None:
    broken = Problem("class Model(nn.Module: oops")
    assert Index([broken]).find(Problem("class  Model(nn.Module:\n    oops")) is not None
    assert Index([broken]).find(Problem(BENCHMARK)) is None


def test_a_folder_without_problems_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ProblemError, match="no problem files"):
        Index.from_folders([tmp_path])


def test_the_corpus_holds_no_kernelbench_problem() -> None:
    """With the benchmark at hand, most of the corpus is far from it and the filter removes the rest."""
    folder = next(
        (
            parent / "shared" / "kernelbench"
            for parent in Path(__file__).parents
            if (parent / "shared" / "kernelbench").is_dir()
        ),
        None,
    )
    if folder is None:
        pytest.skip("KernelBench's files are not beside this checkout")
    index = Index.from_folders([folder])
    removed = sum(index.find(synth.generate(0, number).problem) is not None for number in range(500))
    assert removed < 50
