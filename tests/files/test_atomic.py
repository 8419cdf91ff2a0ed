"""What a file that is written whole does to what stands in its place."""

from __future__ import annotations

import os
from pathlib import Path

from dice.files.atomic import write_text


def test_a_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    write_text(link, "new")
    assert link.is_symlink() and target.read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "target"]


def test_a_link_to_nothing_becomes_the_file(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nowhere" / "file")
    write_text(link, "new")
    assert not link.is_symlink() and link.read_text() == "new"


def test_what_is_no_file_is_written_to_and_stays(tmp_path: Path) -> None:
    """As a device must: root could replace /dev/null for everybody."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    held = os.open(pipe, os.O_RDWR)
    try:
        write_text(pipe, "new")
        assert pipe.is_fifo() and os.read(held, 10) == b"new"
    finally:
        os.close(held)
