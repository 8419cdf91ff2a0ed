"""Files that are none, or never end; lines without end; texts nested too deeply: told at once, in bounded memory."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dice.errors import UserError
from dice.files.bounded import LONGEST_SOURCE, lines, opened, parse_json, read_bytes
from dice.files.journal import Journal, append_row, read_rows
from dice.files.tables import read_rows as read_table
from dice.problem import ProblemError, read_source
from tests.conftest import PATIENCE_S, ROOT

ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}
MEASURED = """
import resource, sys
from pathlib import Path
from dice.files.journal import Journal, append_row, read_rows
from dice.files.tables import read_rows as read_table
from dice.errors import UserError

path, what = Path(sys.argv[1]), sys.argv[2]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
if what == "journal":
    print([row["n"] for row in read_rows(path)])
elif what == "append":
    append_row(path, {"n": 9})
    print(path.read_bytes())
else:
    try:
        print(sum(1 for _ in read_table(path)))
    except UserError as error:
        print(error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


def measured(path: Path, what: str) -> tuple[str, int]:
    """What reading printed, and MiB that it took."""
    command = [sys.executable, "-c", MEASURED, str(path), what]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    printed, mib = done.stdout.strip().rsplit("\n", 1)
    return printed, int(mib)


def sparse(path: Path, before: bytes, size: int, after: bytes) -> Path:
    """A file with so many zeros between, which take no room on the disk."""
    with path.open("wb") as file:
        file.write(before)
        file.seek(size, os.SEEK_CUR)
        file.write(after)
        file.truncate()
    return path


def test_what_is_no_file_is_told_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket.py"))
        (tmp_path / "link.py").symlink_to("pipe.py")
        (tmp_path / "loop.py").symlink_to("loop.py")
        (tmp_path / "folder.py").mkdir()
        for name, words in (
            ("pipe.py", "pipe.py is a named pipe, and a file is needed"),
            ("link.py", "link.py is a named pipe"),
            ("socket.py", "is a socket"),
            ("/dev/zero", "/dev/zero is a device"),
            ("/dev/full", "/dev/full is a device"),
            ("folder.py", "is a folder; give the kernel file itself"),
            ("none.py", "There is no kernel file"),
            ("pipe.py/none.py", "There is no kernel file"),
            ("loop.py", "Cannot read"),
            ("x" * 300, "Cannot read"),
        ):
            with pytest.raises(ProblemError, match=words) as caught:
                read_source(tmp_path / name, "kernel")
            assert "\n" not in str(caught.value)


def test_a_source_is_read_up_to_a_length(tmp_path: Path) -> None:
    path = tmp_path / "kernel.py"
    path.write_bytes(b"\xef\xbb\xbf#" + b"\n" * (LONGEST_SOURCE - 4))
    assert len(read_source(path, "kernel")) == LONGEST_SOURCE - 3
    sparse(path, b"#", 1 << 40, b"\n")
    with pytest.raises(ProblemError, match="kernel.py is longer than 4 MiB"):
        read_source(path, "kernel")


@pytest.mark.parametrize("name", ["/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"])
def test_what_the_shell_hands_over_is_read(name: str, tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from dice.problem import read_source\n"
    code += "print(read_source(Path(sys.argv[1]), 'kernel'))"
    command = [sys.executable, "-c", code, name]
    (tmp_path / "file").write_text("x = 1")
    piped = subprocess.run(command, env=ENVIRONMENT, input="x = 1", capture_output=True, text=True, timeout=PATIENCE_S)
    with (tmp_path / "file").open() as file:
        given = subprocess.run(command, env=ENVIRONMENT, stdin=file, capture_output=True, text=True, timeout=PATIENCE_S)
    assert piped.stdout == given.stdout == "x = 1\n"


def test_lines_without_end_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"a\n" + b"b" * 10 + b"\n" + b"c" * 11 + b"\n" + b"d\n" + b"e" * 99)
    with opened(path) as file:
        assert list(lines(file, 11)) == [b"a\n", b"b" * 10 + b"\n", None, b"d\n", None]
    with opened(path) as file:
        assert b"".join(line or b"" for line in lines(file)) == read_bytes(path)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, b"[" * 100_000])
def test_a_text_that_is_too_deep_is_no_json(text: str | bytes) -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json(text)


def test_a_giant_line_takes_no_memory(tmp_path: Path) -> None:
    journal = sparse(tmp_path / "log.jsonl", b'{"n": 1}\n', 600 << 20, b'\n{"n": 2}\n')
    printed, mib = measured(journal, "journal")
    assert printed == "[1, 2]" and mib < 400
    printed, mib = measured(journal, "table")
    assert "line 2 has more than 64 MiB" in printed and mib < 400
    torn = sparse(tmp_path / "torn.jsonl", b'{"n": 1}\n', 600 << 20, b"x")
    printed, mib = measured(torn, "append")
    assert printed == str(b'{"n": 1}\n{"n": 9}\n') and mib < 400


def test_a_giant_row_of_json_takes_no_memory(tmp_path: Path) -> None:
    with (tmp_path / "t.json").open("wb") as file:
        file.write(b'[{"a": 1}, {"a": "')
        for _ in range(300):
            file.write(b"x" * (1 << 20))
        file.write(b'"}]')
    printed, mib = measured(tmp_path / "t.json", "table")
    assert "A row of more than 64 MiB" in printed and mib < 600


def test_a_journal_of_many_rows_is_read_as_it_goes(tmp_path: Path) -> None:
    with (tmp_path / "log.jsonl").open("w") as file:
        for number in range(40):
            file.write(json.dumps({"n": number, "text": "x" * (8 << 20)}) + "\n")
    printed, mib = measured(tmp_path / "log.jsonl", "journal")
    assert printed == str(list(range(40))) and mib < 200


@pytest.mark.parametrize("append", ["journal", "append_row"])
@pytest.mark.parametrize(
    "tail", [b'{"n": 2, "te', b"{", b'{"n": 2}garbage', b"12", b"\xff\xfe", b"[" * 100_000, b"x" * 3_000_000]
)
def test_a_torn_line_is_cut_off(tmp_path: Path, append: str, tail: bytes) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"n": 1}\n' + tail)
    assert list(read_rows(path)) == [{"n": 1}]
    if append == "append_row":
        append_row(path, {"n": 3})
    else:
        with Journal(path) as journal:
            assert path.read_bytes() == b'{"n": 1}\n'  # before anything is written
            journal.append({"n": 3})
    assert path.read_bytes() == b'{"n": 1}\n{"n": 3}\n'


def test_a_whole_row_without_its_end_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"n": 1}')
    with Journal(path) as journal:
        journal.append({"n": 2})
        journal.append({"n": 3})
    assert [json.loads(line) for line in path.read_text().splitlines()] == [{"n": 1}, {"n": 2}, {"n": 3}]


def test_who_may_not_write_mends_nothing(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with Journal(path):
        path.write_bytes(b'{"n": 1}\n{"n"')
        with pytest.raises(UserError, match="is writing"), Journal(path):
            pass
        assert path.read_bytes() == b'{"n": 1}\n{"n"'


def test_deep_lines_are_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"n": 1}\n' + b"[" * 100_000 + b'\n{"a":' + b"[" * 100_000 + b'\n{"n": 2}\n')
    assert list(read_rows(path)) == [{"n": 1}, {"n": 2}]
    with pytest.raises(UserError, match="line 2, it is nested too deeply"):
        list(read_table(path))
