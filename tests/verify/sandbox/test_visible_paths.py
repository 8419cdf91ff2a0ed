"""What candidates and references see of the machine's files."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from dice.verify import toolchain
from dice.verify.sandbox.visible_paths import candidate_view


def test_a_c_compiler_in_a_folder_of_its_own_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = shutil.which("gcc") or shutil.which("cc")
    if found is None:
        pytest.skip("there is no C compiler")
    (tmp_path / "toolchain" / "bin").mkdir(parents=True)
    (tmp_path / "links").mkdir()
    compiler = tmp_path / "toolchain" / "bin" / "gcc"
    shutil.copy(os.path.realpath(found), compiler)
    link = tmp_path / "links" / "gcc"
    link.symlink_to(compiler)
    monkeypatch.setenv("CC", str(link))
    view = candidate_view(tmp_path / "cache")
    assert str(link) in view and str(tmp_path / "toolchain") in view
    assert str(tmp_path) not in view and str(tmp_path / "links") not in view


def test_without_a_c_compiler_nothing_is_shown_for_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    assert toolchain.c_compiler() is None
    assert not {"", ".", str(tmp_path), str(tmp_path.parent.parent)}.intersection(candidate_view(tmp_path / "cache"))


def test_a_compiler_in_a_home_folder_shows_no_more_than_itself() -> None:
    compiler = str(Path.home() / "bin" / "gcc")
    assert toolchain.compiler_paths(compiler) == [compiler]
