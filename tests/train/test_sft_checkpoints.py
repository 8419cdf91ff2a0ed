"""A checkpoint is whole or absent, wherever the process that writes it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from launching import finish, torchrun
from training_helpers import checkpoint, tiny_model

import dice.train.sft
from dice.errors import MachineError, UserError
from dice.model.checkpoint import load_model, save_model
from dice.train.checkpoints import PENDING, Checkpoints
from dice.train.config import SFTConfig
from dice.train.plan.disk import DiskNeed, check_disk
from dice.train.sft import train_sft
from dice.train.weights import stored_bytes
from dice.train.world import World
from tests.conftest import PATIENCE_S

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


SAVE_LARGE = """
import sys, torch
from pathlib import Path
from dice.train.checkpoints import Checkpoints
with Checkpoints(Path(sys.argv[1]), 2) as checkpoints:
    for step in (1, 2):
        large = torch.zeros(step * 20_000_000 - 19_999_900)
        checkpoints.save(step, {"a": torch.full((100,), float(step)), "large": large}, {})
"""


def test_killed_while_the_background_writes(tmp_path: Path) -> None:
    """A process of its own, ended with -9 when a part of its second checkpoint's tensors is on the disk."""
    child = subprocess.Popen([sys.executable, "-c", SAVE_LARGE, str(tmp_path)])
    written = tmp_path / f"{PENDING}00000002" / "__0_0.distcp"
    deadline = time.monotonic() + PATIENCE_S
    while not (written.exists() and written.stat().st_size > 0):
        assert child.poll() is None and time.monotonic() < deadline
    child.kill()
    child.wait()
    assert written.exists(), "it was ended too late to show anything"
    values = {"a": torch.zeros(100), "large": torch.zeros(100)}
    restored, notes = Checkpoints(tmp_path, keep=2).load({"a": values["a"]})
    assert restored is not None and restored.manifest["step"] == 1 and notes == []
    assert values["a"].tolist() == [1.0] * 100
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", place], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("a file system can only be mounted by root")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def fill(folder: Path, world: World) -> str:
    """What is said where the second checkpoint does not fit."""
    try:
        with Checkpoints(folder, keep=2, world=world) as checkpoints:
            for step in (1, 2):
                checkpoints.save(step, {"a": torch.full((step**3 * 100_000,), float(step))}, {})
                checkpoints.settle()
    except MachineError as error:
        return str(error)
    return "written"


def fill_together(folder: Path) -> str:
    return fill(folder, World(torch.device("cpu"), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])))


def test_a_full_disk_is_said_as_such_and_leaves_the_last_checkpoint(small_disk: Path) -> None:
    sentence = f"Cannot write checkpoint {small_disk}/step-00000002: No space left on device; the last good one is "
    assert fill(small_disk, World(torch.device("cpu"))) == f"{sentence}step-00000001."
    assert [path.name for path in small_disk.iterdir()] == ["step-00000001"]


@pytest.mark.slow
def test_several_processes_say_that_the_disk_is_full(small_disk: Path, tmp_path: Path) -> None:
    output = finish(torchrun(tmp_path / "launch", partial(fill_together, small_disk)))
    assert output.count("step-00000002: No space left on device; the last good one is step-00000001.") == 2
    assert [path.name for path in small_disk.iterdir()] == ["step-00000001"]


def test_a_model_that_does_not_fit_on_the_disk_is_said(small_disk: Path) -> None:
    model = tiny_model()
    large = replace(model.config, hidden_size=512, vocab_size=1000)
    state = {"model.embed_tokens.weight": torch.zeros(1000, 1024)}
    with pytest.raises(MachineError, match=r"Cannot write the model folder .*: No space left on device\.$"):
        save_model(state, large, small_disk / "model")
    assert list(small_disk.iterdir()) == []


def test_a_run_that_the_disk_cannot_hold_does_not_start(toy: SFTConfig, small_disk: Path) -> None:
    config = replace(toy, out=small_disk / "run", max_steps=2)
    with pytest.raises(MachineError, match=r"has 3\.1 MB for this run, which needs .* lower keep_checkpoints") as told:
        train_sft(config)
    assert "\n" not in str(told.value) and not list((small_disk / "run").glob("checkpoints/*"))


def test_what_a_run_has_written_already_counts_as_room_for_it(small_disk: Path) -> None:
    need, said = DiskNeed(checkpoint=300_000, final=300_000, export=0, kept=0), list[str]()
    need = replace(need, checkpoint=need.checkpoint - 64 * 1024**2 + 2_500_000)
    (small_disk / "step-00000001").write_bytes(bytes(2_000_000))
    check_disk(need, small_disk, said.append)
    assert len(said) == 1
    with pytest.raises(MachineError, match="lower keep_checkpoints"):
        check_disk(replace(need, checkpoint=need.checkpoint + 2_000_000), small_disk, said.append)


def test_a_short_run_need_not_have_room_for_checkpoints_that_may_never_come(small_disk: Path) -> None:
    large, said = 2_000_000_000, list[str]()
    need = DiskNeed(checkpoint=large, final=1_000_000 - 64 * 1024**2, export=1_000_000, kept=2, during=0)
    check_disk(need, small_disk, said.append)
    assert "That is too little, should a checkpoint be due by time or by a signal." in said[0]
    with pytest.raises(MachineError, match="lower keep_checkpoints"):
        check_disk(replace(need, during=1), small_disk, said.append)
    assert replace(need, during=3).least == replace(need, during=None).least == need.peak


def test_disk_need_is_what_a_run_writes(toy: SFTConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs: list[DiskNeed] = []
    monkeypatch.setattr(dice.train.sft, "check_disk", lambda need, *_: needs.append(need))
    config = replace(toy, out=tmp_path, max_steps=2, checkpoint_every=1, final_checkpoint="weights", ema=0.9)
    train_sft(replace(config, export_dtype="bfloat16"))
    full, last = stored_bytes(checkpoint(tmp_path, 1)), stored_bytes(checkpoint(tmp_path, 2))
    exported = stored_bytes(load_model(tmp_path / "model").state_dict())
    assert needs == [DiskNeed(checkpoint=full, final=last, export=exported, kept=2, during=1)]
    assert full == 2 * last == 8 * exported, "weights, average, two moments; then half of them; then bfloat16"


def test_a_last_checkpoint_without_moments_ends_a_run(toy: SFTConfig, tmp_path: Path) -> None:
    config = replace(toy, out=tmp_path, max_steps=3, checkpoint_every=1, final_checkpoint="weights", ema=None)
    assert train_sft(replace(config, stop_after_seconds=1e-9)).step == 1
    assert train_sft(config).finished
    full, last = ((tmp_path / "checkpoints" / f"step-0000000{step}" / "__0_0.distcp").stat().st_size for step in (2, 3))
    assert last < 0.45 * full
    before = load_model(tmp_path / "model").state_dict()
    assert train_sft(config).finished
    after = load_model(tmp_path / "model").state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    with pytest.raises(UserError, match=r"ended with a checkpoint without moments .* so it cannot be made longer"):
        train_sft(replace(config, max_steps=4))
