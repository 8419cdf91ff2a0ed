"""Rows come out of every kind of table file as they went in, a batch at a time, and a broken file is one sentence."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dice.files.tables
from dice.errors import UserError
from dice.files.tables import SUFFIXES, read_rows
from tests.data.source_files import write

ROWS = [{"id": n, "text": f"row {n} \u2028 \n", "chat": [{"role": "user", "content": str(n)}]} for n in range(1500)]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_rows_come_out_as_they_went_in(tmp_path: Path, suffix: str) -> None:
    shares: list[float] = []
    rows = list(read_rows(write(tmp_path / f"t{suffix}", ROWS), progress=shares.append))
    assert [row.values for row in rows] == ROWS
    assert [row.number for row in rows] == list(range(1, 1501))
    assert rows[6].where == f"{tmp_path}/t{suffix}, {'line' if suffix == '.jsonl' else 'row'} 7"
    assert len(shares) > 4 and shares == sorted(shares) and shares[-1] == pytest.approx(1, abs=0.01)


def test_arrow_in_the_file_format(tmp_path: Path) -> None:
    table = pa.Table.from_pylist(ROWS)
    with pa.OSFile(str(tmp_path / "t.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=400)
    assert [row.values for row in read_rows(tmp_path / "t.arrow")] == ROWS


def test_an_object_of_rows_by_name(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text('{"a": {"x": 1}, "b": {"x": 2, "name": "own"}}')
    assert [row.values for row in read_rows(tmp_path / "t.json")] == [{"name": "a", "x": 1}, {"name": "own", "x": 2}]


def test_parquet_reads_only_the_columns_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", ROWS)
    assert next(read_rows(path, ["id", "nothing"])).values == {"id": 0}
    assert next(read_rows(path, ["nothing"])).values == ROWS[0]


def test_a_row_group_is_not_read_whole(tmp_path: Path) -> None:
    rng = random.Random(0)
    rows = [{"text": rng.randbytes(5000).hex()} for _ in range(6000)]
    for path in (write(tmp_path / "t.parquet", rows), write(tmp_path / "t.arrow", rows)):
        before = pa.total_allocated_bytes()
        held = [pa.total_allocated_bytes() - before for _ in read_rows(path)]
        assert max(held) < path.stat().st_size / 2


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(), VALUES, max_size=4)


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(OBJECTS, max_size=5), st.sampled_from([None, 0, 3]), st.booleans(), st.integers(1, 30))
def test_json_is_read_in_any_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: list[dict[str, Any]], indent: int, plain: bool, chunk: int
) -> None:
    monkeypatch.setattr(dice.files.tables, "CHUNK", chunk)
    path = tmp_path / "t.json"
    text = json.dumps(rows, indent=indent, ensure_ascii=plain)
    path.write_text(f"\n {text} \n", encoding="utf-8", errors="surrogatepass")
    assert [row.values for row in read_rows(path)] == rows
    path.write_text(text[:-1], encoding="utf-8")
    with pytest.raises(UserError, match="cannot be read as json"):
        list(read_rows(path))


BROKEN: dict[str, tuple[str, bytes | None, str]] = {
    "absent": ("t.json", None, "no file"),
    "other": ("t.csv", b"a,b", "is neither"),
    "empty json": ("t.json", b"", "must hold a list of rows, or an object of rows by name"),
    "a number": ("t.json", b"12", "must hold a list of rows"),
    "numbers": ("t.json", b"[1, 2]", "row 1, is not an object with named columns"),
    "object of numbers": ("t.json", b'{"a": 1}', "must hold a list of rows, or an object of rows by name"),
    "no comma": ("t.json", b'[{"a": 1} {"a": 2}]', "Expecting ',' or ']' near character 11"),
    "more after it": ("t.json", b'[{"a": 1}] x', "Extra data"),
    "cut": ("t.json", b'[{"a": 1}, {"a"', "cannot be read as json"),
    "deep": ("t.json", b"[" * 200_000, "nested too deeply"),
    "not text": ("t.json", b'[{"a": "\xff"}]', "cannot be read as json"),
    "broken line": ("t.jsonl", b'{"a": 1}\n\n{"a": \n', "cannot be read as jsonl: line 3"),
    "line of numbers": ("t.jsonl", b"3\n", "line 1, is not an object"),
    "not parquet": ("t.parquet", b"PAR1", "cannot be read as parquet"),
    "not arrow": ("t.arrow", b"nothing", "cannot be read as arrow"),
    "empty arrow": ("t.arrow", b"", "cannot be read as arrow"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_one_sentence(tmp_path: Path, case: str) -> None:
    name, content, message = BROKEN[case]
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        list(read_rows(tmp_path / name))
    assert str(tmp_path / name) in str(caught.value) and "\n" not in str(caught.value)
    assert str(caught.value).endswith(".") and not str(caught.value).endswith("..")


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_a_damaged_file_is_one_sentence(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"t{suffix}", ROWS)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=f"cannot be read as {suffix[1:]}") as caught:
        list(read_rows(path))
    assert "\n" not in str(caught.value)
    if suffix == ".parquet":
        damaged = bytearray(whole)
        damaged[200:2000] = bytes(1800)
        path.write_bytes(bytes(damaged))
        with pytest.raises(UserError, match="cannot be read as parquet"):
            list(read_rows(path))
