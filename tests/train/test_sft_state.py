"""A checkpoint is whole or absent, wherever the process that writes it is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch

import dice.train.state
from dice.errors import UserError
from dice.train.state import load_state, save_state

SYNCS = 4  # weights, manifest, folder, parent folder: save_state's steps


def save(folder: Path, step: int) -> None:
    save_state(folder, step, {"a": torch.full((100,), float(step))}, {"note": f"step {step}"}, keep=2)


def killed_at(sync: int, folder: Path) -> None:
    """In a child process: write checkpoint 2, dying without warning right after its `sync`-th step."""
    child = os.fork()
    if child == 0:
        calls, real = 0, dice.train.state._sync

        def sync_then_die(path: Path) -> None:
            nonlocal calls
            real(path)
            calls += 1
            if calls == sync:
                os.kill(os.getpid(), signal.SIGKILL)

        dice.train.state._sync = sync_then_die
        save(folder, 2)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.mark.parametrize("sync", range(1, SYNCS + 1))
def test_killed_while_saving(tmp_path: Path, sync: int) -> None:
    save(tmp_path, 1)
    killed_at(sync, tmp_path)
    state, notes = load_state(tmp_path)
    assert state is not None and notes == []
    step = 2 if sync == SYNCS else 1
    assert state.manifest == {"note": f"step {step}", "step": step}
    assert torch.equal(state.tensors["a"], torch.full((100,), float(step)))
    save(tmp_path, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"step-{step:08d}", "step-00000003"]


def test_nothing_saved_is_no_state(tmp_path: Path) -> None:
    assert load_state(tmp_path / "absent") == (None, [])


def test_all_damaged_is_refused_rather_than_restarted(tmp_path: Path) -> None:
    save(tmp_path, 1)
    (tmp_path / "step-00000001" / "manifest.json").write_text("{")
    with pytest.raises(UserError, match="Every checkpoint .* is damaged"):
        load_state(tmp_path)
