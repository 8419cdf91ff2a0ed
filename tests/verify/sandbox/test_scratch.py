"""What the verifier removes: folders that it made, and nothing else, whatever path it is given."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from dice.verify.build.cache import Cache, content_key
from dice.verify.options import Options
from dice.verify.sandbox import scratch
from dice.verify.sandbox.scratch import PREFIX, Scratch, make_owned, remove, remove_if_orphan, sweep

FOREIGN = ("", ".", "..", "relative", f"{PREFIX}1-abcdefgh", "/", "/tmp", "/home", "/usr/bin")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with a file in it that must survive."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "precious").write_text("x")
    (tmp_path / "relative").mkdir()
    (tmp_path / f"{PREFIX}1-abcdefgh").mkdir()
    return tmp_path


@pytest.mark.parametrize("action", [remove, remove_if_orphan])
@pytest.mark.parametrize("path", FOREIGN)
def test_an_empty_relative_or_foreign_path_is_refused(
    action: Callable[[Path, str], None], path: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scratch.shutil, "rmtree", _never)  # so that a failure of this test removes nothing either
    before = sorted(os.listdir(folder))
    with pytest.raises(ValueError, match="is not to be removed"):
        action(Path(path), PREFIX)
    assert sorted(os.listdir(folder)) == before


def test_no_prefix_and_no_way_up_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch.shutil, "rmtree", _never)
    for path, prefix in ((folder / "relative", ""), (folder / "relative" / ".." / "relative", "rel")):
        with pytest.raises(ValueError):
            remove(path, prefix)


def test_own_folders_are_removed_links_files_and_other_users_folders_are_not(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, others, file, link = (folder / f"tmp-{name}" for name in ("own", "others", "file", "link"))
    own.mkdir()
    (own / "link").symlink_to(folder / "relative")
    (folder / "relative" / "kept").write_text("x")
    others.mkdir()
    file.write_text("x")
    link.symlink_to(folder / "relative")
    for path in (own, file, link):
        remove(path, "tmp-")
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        remove(others, "tmp-")
    assert not own.exists() and file.exists() and link.exists() and others.exists()
    assert (folder / "relative" / "kept").exists()


def test_a_sweep_takes_orphans_and_leaves_folders_that_only_look_like_ours() -> None:
    place = Path(tempfile.gettempdir())
    orphan, lock = make_owned(place, f"{PREFIX}{os.getpid()}-")
    held, held_lock = make_owned(place, f"{PREFIX}{os.getpid()}-")
    foreign = [place / f"{name}-{os.getpid()}" for name in ("dice-something", f"{PREFIX}notes", "dice-scratch")]
    for path in foreign:
        path.mkdir()
        (path / "precious").write_text("x")
    os.close(lock)
    try:
        sweep()
        assert not orphan.exists() and held.is_dir()
        assert all((path / "precious").exists() for path in foreign)
    finally:
        os.close(held_lock)
        held.rmdir()
        for path in foreign:
            (path / "precious").unlink(missing_ok=True)
            path.rmdir()


def test_a_scratch_folder_is_private_and_gone_afterwards() -> None:
    with Scratch() as folder:
        assert folder.root.is_absolute() and folder.root.parent.name.startswith(f"{PREFIX}{os.getpid()}-")
        assert folder.root.parent.stat().st_mode & 0o077 == 0
    assert not folder.root.exists() and folder.root.parent.is_dir()


@pytest.mark.parametrize("key", ["", ".", "..", "../precious", "/tmp", "tmp-x", "A" * 32, "0" * 31])
def test_a_cache_takes_no_key_but_a_hash(key: str, tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    for action in (cache.find, cache.discard, lambda key: cache.publish(key, tmp_path)):
        with pytest.raises(ValueError, match="is no key"):
            action(key)


def test_a_cache_removes_only_its_own_entries(tmp_path: Path) -> None:
    """`DICE_CACHE` may name a folder in which others keep things."""
    cache = Cache(tmp_path, limit_bytes=0, trim_interval_s=0)
    foreign = [tmp_path / name for name in ("extension-of-an-editor", "tmp-of-theirs", "0" * 31)]
    for path in foreign:
        path.mkdir()
        (path / "precious").write_text("x")
    killed = tmp_path / "tmp-abcd_123"  # as `make_owned` names them
    entry = tmp_path / content_key(["entry"])
    for path in (killed, entry):
        path.mkdir()
        (path / "data").write_text("x")
    cache.trim()
    assert sorted(tmp_path.iterdir()) == sorted(foreign)
    assert all((path / "precious").exists() for path in foreign)


@pytest.mark.parametrize("given", ["relative", "other/../relative", "link"])
def test_a_cache_folder_has_one_absolute_path(given: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes that read it work in folders of their own, and nothing with `..` in its path is ever removed."""
    (folder / "other").mkdir()
    (folder / "link").symlink_to("relative")
    assert Options(cache_dir=Path(given)).cache_dir == Cache(Path(given)).folder == folder / "relative"
    monkeypatch.setenv("DICE_CACHE", given)
    assert Options().cache_dir == folder / "relative"


def test_a_folder_for_temporary_files_may_be_named_in_any_way(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "other").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "other" / ".." / "other"))
    monkeypatch.setattr(scratch, "ROOM_BYTES", 1 << 62)  # more than there is in memory, so that it is used
    assert list(scratch._places()) == [folder / "other"]


def _never(path: object, **_: object) -> None:
    raise AssertionError(f"{path} would have been removed")
