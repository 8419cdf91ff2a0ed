"""The paper's rows as data: all resolve, and their numbers are the paper's."""

from __future__ import annotations

import json

import pytest

from dice.cli import main
from dice.decode.diffusion import DiffusionConfig
from dice.decode.generate import DecodeConfig
from dice.errors import UserError
from dice.evaluate.paper_rows import NATIVE, ROWS, PaperRow, find, resolve
from dice.model.family import FAMILIES


def test_every_row_of_the_tables_is_there() -> None:
    counts = {table: sum(row.table == table for row in ROWS) for table in (1, 2, 3, 10, 11)}
    assert counts == {1: 20, 2: 7, 3: 6, 10: 2, 11: 1}
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert sum(bool(row.without_check) for row in ROWS) == 7, "Table 8"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_row_resolves(row: PaperRow) -> None:
    assert find(row.name.upper()) is row
    kind, why = resolve(row)
    assert kind == "native" if row.family in NATIVE else row.name in why
    assert set(row.published) == {1, 2, 3}
    for numbers in (row.published, row.without_check):
        assert all(100 >= right >= fast >= faster >= 0 for right, fast, faster in numbers.values())
    if row.family == "sdar":
        assert DecodeConfig(**row.settings).resolved_mode == "compat"
    elif row.family in NATIVE:
        config = DiffusionConfig if FAMILIES[row.family].kind == "diffusion" else DecodeConfig
        assert config(**row.settings).max_new_tokens >= 1024


def test_numbers_of_the_paper() -> None:
    assert find("DICE-8B").published == {1: (47, 15, 6), 2: (35, 19, 1), 3: (14, 6, 6)}
    assert find("CUDA-L1").published == {1: (65, 62, 60), 2: (16, 13, 5), 3: (28, 22, 16)}
    assert find("DiffuCoder-Instruct").without_check[2] == (46, 25, 13)
    assert find("LLaDA-1.5 (4096").settings == {"max_new_tokens": 4096, "block_size": 32, "temperature": 0.0}


def test_native_families_are_said_alike() -> None:
    assert set(FAMILIES) == NATIVE


def test_a_name_must_mean_one_row() -> None:
    with pytest.raises(UserError, match="may be Qwen3-8B, Qwen3-4B, Qwen3-1.7B"):
        find("Qwen3")
    with pytest.raises(UserError, match="no row 'GPT'"):
        find("GPT")


def test_list_rows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "--list-rows", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == len(ROWS) and rows[0]["published"]["1"] == [14, 6, 5]
    assert main(["eval", "--list-rows"]) == 0
    assert "LLaDA-1.5" in capsys.readouterr().out
