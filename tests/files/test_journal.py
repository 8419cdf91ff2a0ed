"""The journal: whole lines, one writer, and what a kill leaves behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dice.errors import UserError
from dice.files.journal import Journal, append_row, read_rows


def test_rows_come_back_in_order_with_every_character(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "log.jsonl"
    rows = [{"text": "two\nlines and \u2028 a separator"}, {"text": "half a pair \ud800"}, {"number": 3}]
    with Journal(path) as journal:
        for row in rows[:2]:
            journal.append(row)
    with Journal(path) as journal:
        assert list(journal.rows()) == rows[:2]
        journal.append(rows[2], sync=False)
    assert list(read_rows(path)) == rows


@pytest.mark.parametrize("append", ["journal", "append_row"])
def test_a_torn_line_counts_for_nothing_and_spoils_no_other(tmp_path: Path, append: str) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"n": 1}\n[1]\n{"n": 2, "te')
    assert list(read_rows(path)) == [{"n": 1}]
    if append == "append_row":
        append_row(path, {"n": 3})
    else:
        with Journal(path) as journal:
            journal.append({"n": 3})
    assert list(read_rows(path)) == [{"n": 1}, {"n": 3}]


def test_one_process_writes_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    hold = "from pathlib import Path; from dice.files.journal import Journal; import sys\n"
    hold += "with Journal(Path(sys.argv[1])):\n    print(1, flush=True)\n    input()"
    command = [sys.executable, "-c", hold, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout and other.stdout.readline()
        with pytest.raises(UserError, match="Another audit is writing to .*log.jsonl"), Journal(path, "audit"):
            pass
        other.kill()
    with Journal(path):
        pass


def test_without_a_path_nothing_is_kept() -> None:
    with Journal(None) as journal:
        journal.append({"n": 1})
        assert list(journal.rows()) == []
    assert list(read_rows(Path("no such file"))) == []
