"""The modules in `benchmarks/` written by hand to measure on: each runs, and its outputs follow its inputs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dice.problem import Problem

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"
LARGEST = 4_000_000  # elements of an input: more takes too long under emulation


def rows_of(file: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (BENCHMARKS / file).read_text().splitlines()]


def tensors(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Iterable):
        for one in value:
            yield from tensors(one)


@pytest.mark.parametrize("file", ["plain.jsonl", "fresh.jsonl"])
def test_names_and_sources_are_distinct(file: str) -> None:
    rows = rows_of(file)
    for key in ("name", "problem"):
        assert not [value for value, count in Counter(row[key] for row in rows).items() if count > 1]


def test_fresh_modules_are_a_hundred_of_twelve_kinds() -> None:
    kinds = Counter(row["kind"] for row in rows_of("fresh.jsonl"))
    assert kinds.total() == 100 and len(kinds) == 12
    assert min(kinds.values()) >= 6 and max(kinds.values()) <= 12


def test_fresh_modules_share_no_source_with_the_plain_ones() -> None:
    assert not {row["problem"] for row in rows_of("fresh.jsonl")} & {row["problem"] for row in rows_of("plain.jsonl")}


@pytest.mark.parametrize("row", rows_of("fresh.jsonl"), ids=lambda row: row["name"])
@torch.no_grad()
def test_a_fresh_module_runs(row: dict[str, Any]) -> None:
    namespace: dict[str, Any] = {"__name__": row["name"]}
    exec(
        compile(Problem(row["problem"], row["name"]).check().source, row["name"], "exec", dont_inherit=True), namespace
    )
    torch.manual_seed(0)
    model = namespace["Model"](*namespace["get_init_inputs"]()).eval()
    first, second = namespace["get_inputs"](), namespace["get_inputs"]()
    assert all(tensor.numel() <= LARGEST for tensor in tensors(first))
    kept = [tensor.clone() for tensor in tensors(first)]
    out, again, other = (list(tensors(model(*inputs))) for inputs in (first, first, second))
    assert all(map(torch.equal, kept, tensors(first))), "it writes to its inputs"
    assert out and all(tensor.isfinite().all() for tensor in out)
    assert all(map(torch.equal, out, again)), "it is not deterministic"
    assert not any(map(torch.equal, out, other)), "an output does not depend on the inputs"
