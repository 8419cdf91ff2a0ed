"""A checkpoint is whole or absent, wherever the process that writes it is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch

from dice.errors import MachineError, UserError
from dice.train.checkpoints import Checkpoints

SYNCS = 5  # tensors, their index, manifest, folder, parent folder: what a save makes durable, in this order


def save(folder: Path, step: int) -> None:
    with Checkpoints(folder, keep=2) as checkpoints:
        checkpoints.save(step, {"a": torch.full((100,), float(step))}, {"note": f"step {step}"})


def load(folder: Path) -> tuple[dict[str, object], float, list[str]]:
    values = torch.zeros(100)
    restored, notes = Checkpoints(folder, keep=2).load({"a": values})
    assert restored is not None and restored.names == {"a"} and len(values.unique()) == 1
    return restored.manifest, float(values[0]), notes


def killed_at(sync: int, folder: Path) -> None:
    """In a child process: write checkpoint 2, dying without warning right after its `sync`-th sync."""
    child = os.fork()
    if child == 0:
        calls, real = 0, os.fsync

        def sync_then_die(descriptor: int) -> None:
            nonlocal calls
            real(descriptor)
            calls += 1
            if calls == sync:
                os.kill(os.getpid(), signal.SIGKILL)

        os.fsync = sync_then_die
        save(folder, 2)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.mark.parametrize("sync", range(1, SYNCS + 1))
def test_killed_while_saving(tmp_path: Path, sync: int) -> None:
    save(tmp_path, 1)
    killed_at(sync, tmp_path)
    step = 2 if sync == SYNCS else 1
    assert load(tmp_path) == ({"note": f"step {step}", "step": step}, step, [])
    save(tmp_path, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"step-{step:08d}", "step-00000003"]


def test_training_may_go_on_while_a_checkpoint_is_written(tmp_path: Path) -> None:
    values = torch.zeros(1 << 20)
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        for step in (1, 2, 3):
            values.fill_(step)
            checkpoints.save(step, {"a": values}, {})
            values.fill_(-1.0)
    found = torch.zeros(1 << 20)
    restored, _ = Checkpoints(tmp_path, keep=2).load({"a": found})
    assert restored is not None and restored.manifest["step"] == 3
    assert torch.equal(found, torch.full_like(found, 3.0))


def test_tensors_that_a_checkpoint_lacks_stay_as_they_are(tmp_path: Path) -> None:
    save(tmp_path, 1)
    tensors = {"a": torch.zeros(100), "new": torch.full((3,), 7.0)}
    restored, _ = Checkpoints(tmp_path, keep=2).load(tensors)
    assert restored is not None and restored.names == {"a"}
    assert tensors["new"].tolist() == [7.0] * 3


def test_nothing_saved_is_no_state(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path / "absent", keep=2).load({"a": torch.zeros(1)}) == (None, [])


@pytest.mark.parametrize("damage", ["manifest.json", "__0_0.distcp", ".metadata"])
def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, damage: str) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)
    path = tmp_path / "step-00000002" / damage
    path.write_bytes(path.read_bytes()[:-20])
    manifest, value, notes = load(tmp_path)
    assert (manifest["step"], value) == (1, 1.0)
    assert len(notes) == 1 and "step-00000002 is damaged" in notes[0] and "\n" not in notes[0]


def test_all_damaged_is_refused_rather_than_restarted(tmp_path: Path) -> None:
    save(tmp_path, 1)
    (tmp_path / "step-00000001" / "manifest.json").write_text("{")
    with pytest.raises(UserError, match="Every checkpoint .* is damaged"):
        load(tmp_path)


def test_a_folder_that_refuses_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        MachineError, match="Cannot write checkpoint .*: Not a directory; there is no earlier one"
    ) as told:
        save(tmp_path / "file", 1)
    assert "\n" not in str(told.value)
