"""Files that are written whole or not at all, with the same bytes for the same content."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dice.errors import UserError
from dice.files.bounded import parse_json, read_bytes

if TYPE_CHECKING:
    import pyarrow as pa


def write_text(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Raises `UserError` for what is no JSON, or cannot be read."""
    try:
        return parse_json(read_bytes(path).decode("utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read as JSON: {error.strerror}.") from None
    except ValueError as error:
        raise UserError(f"{path} cannot be read as JSON: {error}.") from None


def write_parquet(path: Path, table: pa.Table) -> None:
    import pyarrow.parquet as pq

    with replacing(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")


def sync(path: Path) -> None:
    """Wait until what was written to a file, or which entries a folder has, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file to write beside `path`, which takes its place when the block ends well: never is there half of it.

    A link stays, and what it leads to is replaced. A device or a pipe cannot be: it is written to as it is.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not (path.is_file() or path.is_dir()):
        yield path
        return
    path = path.resolve() if path.exists() else path
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
