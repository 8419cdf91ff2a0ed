"""Rows of a table file, one at a time: Parquet, Arrow (stream or file), JSON Lines, JSON.

Nothing larger than a batch is held, so a file of gigabytes needs megabytes. Anything that cannot be read is a
`UserError` in one sentence that names the file, and the row where there is one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from dice.errors import UserError
from dice.files.bounded import LONGEST_LINE, check_file, lines, opened, parse_json

SUFFIXES = (".parquet", ".arrow", ".jsonl", ".json")
BATCH = 256  # rows held at once
CHUNK = 1 << 20  # characters of a JSON file read at once
COLUMN_BUFFER = 1 << 20  # bytes of a Parquet column read at once, since a row group may be the whole file

Progress = Callable[[float], None]  # the share of the file that has been read


@dataclass(frozen=True, slots=True)
class Row:
    """One row: its values by column, and where it stands."""

    values: dict[str, Any]
    file: Path
    number: int  # from 1; of a JSON Lines file the line

    @property
    def where(self) -> str:
        return f"{self.file}, {'line' if self.file.suffix == '.jsonl' else 'row'} {self.number}"


def read_rows(path: Path, columns: Sequence[str] = (), progress: Progress | None = None) -> Iterator[Row]:
    """The rows of a file by its suffix, one of `SUFFIXES`.

    A JSON file holds a list of objects, or an object of objects by name, which becomes the row's `name`. Of a Parquet
    file only `columns` are read, if it has any of them. Raises `UserError`.
    """
    if path.suffix not in SUFFIXES:
        raise UserError(f"{path} is neither {', '.join(SUFFIXES[:-1])} nor {SUFFIXES[-1]}.")
    check_file(path)
    read = {".parquet": _parquet, ".arrow": _arrow, ".jsonl": _json_lines, ".json": _json}[path.suffix]
    try:
        for number, values in read(path, columns, progress or (lambda share: None)):
            row = Row(values, path, number)
            if not isinstance(values, dict):
                raise UserError(f"{row.where}, is not an object with named columns.")
            yield row
    except (pa.ArrowException, ValueError, OSError) as error:
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{path} cannot be read as {path.suffix[1:]}: {said.rstrip('.')}.") from None


def _parquet(path: Path, columns: Sequence[str], progress: Progress) -> Iterator[tuple[int, Any]]:
    with pq.ParquetFile(path, buffer_size=COLUMN_BUFFER, pre_buffer=False) as file:
        used = [name for name in columns if name in file.schema_arrow.names]
        yield from _batches(
            file.iter_batches(batch_size=BATCH, columns=used or None),
            lambda rows: progress(rows / max(1, file.metadata.num_rows)),
        )


def _arrow(path: Path, columns: Sequence[str], progress: Progress) -> Iterator[tuple[int, Any]]:
    with pa.memory_map(str(path)) as source:
        size = max(1, source.size())
        try:
            batches: Iterator[Any] = iter(pa.ipc.open_stream(source))
        except pa.ArrowInvalid:  # not a stream; the file format begins with its own magic bytes
            source.seek(0)
            file = pa.ipc.open_file(source)
            batches = map(file.get_batch, range(file.num_record_batches))
        yield from _batches(_slices(batches), lambda rows: progress(source.tell() / size))


def _slices(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        yield from (batch.slice(start, BATCH) for start in range(0, batch.num_rows, BATCH))


def _batches(batches: Iterator[Any], progress: Callable[[int], None]) -> Iterator[tuple[int, Any]]:
    done = 0
    for batch in batches:
        yield from enumerate(batch.to_pylist(), start=done + 1)
        done += batch.num_rows
        progress(done)


def _json_lines(path: Path, columns: Sequence[str], progress: Progress) -> Iterator[tuple[int, Any]]:
    size, done = max(1, path.stat().st_size), 0
    with opened(path) as file:  # lines end at \n alone: U+2028 is legal inside JSON text
        for number, line in enumerate(lines(file), start=1):
            if line is None:
                raise ValueError(f"line {number} has more than {LONGEST_LINE >> 20} MiB")
            done += len(line)
            if line.strip():
                try:
                    yield number, parse_json(line.decode("utf-8-sig" if number == 1 else "utf-8"))
                except ValueError as error:
                    raise ValueError(f"line {number}, {error}") from None
            if number % BATCH == 0:
                progress(done / size)
    progress(1.0)


def _json(path: Path, columns: Sequence[str], progress: Progress) -> Iterator[tuple[int, Any]]:
    size = max(1, path.stat().st_size)
    with opened(path) as raw, TextIOWrapper(raw, encoding="utf-8-sig") as file:
        values = _JsonValues(file)
        opening = values.character()
        if opening not in ("[", "{"):
            raise UserError(f"{path} must hold a list of rows, or an object of rows by name.")
        for number, (name, value) in enumerate(values.members(opening), start=1):
            if name is not None and not isinstance(value, dict):
                raise UserError(f"{path} must hold a list of rows, or an object of rows by name.")
            yield number, value if name is None else {"name": name} | value
            if number % BATCH == 0:
                progress(values.read / size)
    progress(1.0)


class _JsonValues:
    """Reads the members of one JSON list or object, each as soon as its text is complete."""

    def __init__(self, file: IO[str]) -> None:
        self.file = file
        self.text = ""
        self.at = 0
        self.read = 0  # characters: near enough to bytes for a progress bar
        self.ended = False
        self.decoder = json.JSONDecoder()

    def members(self, opening: str) -> Iterator[tuple[str | None, Any]]:
        closing = "]" if opening == "[" else "}"
        if self._peek() == closing:
            self.at += 1
        else:
            while True:
                name = self._name() if opening == "{" else None
                yield name, self._value()
                mark = self.character()
                if mark == closing:
                    break
                if mark != ",":
                    raise self._broken(f"Expecting ',' or '{closing}'")
        if self._peek():
            raise self._broken("Extra data")

    def character(self) -> str:
        """The next one that is no blank; "" at the end."""
        mark = self._peek()
        self.at += len(mark)
        return mark

    def _name(self) -> str:
        name = self._value()
        if not isinstance(name, str) or self.character() != ":":
            raise self._broken("Expecting a name and ':'")
        return name

    def _value(self) -> Any:
        self._peek()
        while True:
            try:
                value, end = self.decoder.raw_decode(self.text, self.at)
            except json.JSONDecodeError as error:
                if self.ended:
                    raise self._broken(error.msg) from None
            except RecursionError:
                raise self._broken("A row is nested too deeply") from None
            else:
                # A number that ends where the text so far ends may have more digits.
                if end < len(self.text) or self.ended:
                    self.at = end
                    return value
            self._more()

    def _peek(self) -> str:
        while True:
            while self.at < len(self.text) and self.text[self.at] in " \t\r\n":
                self.at += 1
            if self.at < len(self.text) or self.ended:
                return self.text[self.at : self.at + 1]
            self._more()

    def _more(self) -> None:
        """At least doubles what is left, so that a long value is not decoded from its beginning too often."""
        rest = self.text[self.at :]
        if len(rest) > LONGEST_LINE:
            raise self._broken(f"A row of more than {LONGEST_LINE >> 20} MiB")
        chunk = self.file.read(max(CHUNK, len(rest)))
        self.text, self.at, self.ended = rest + chunk, 0, not chunk
        self.read += len(chunk)

    def _broken(self, what: str) -> ValueError:
        return ValueError(f"{what} near character {self.read - len(self.text) + self.at}")
