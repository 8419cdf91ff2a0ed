"""Training on hosts of a cluster is what torchrun's processes do; losses of processes and nodes are mended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from ray_machines import RayMachines, why_not
from ray_nodes import RayNodes

from dice.errors import MachineError
from tests.cluster.conftest import ray_nodes
from tests.cluster.fakes import wait_until
from tests.conftest import PATIENCE_S, ROOT

pytestmark = pytest.mark.xdist_group("cluster")  # they share the nodes
STEPS = 6


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory, training_tests: None) -> list[str]:
    """A tiny run."""
    import training_helpers

    from dice.data.train_tokenizer import train_tokenizer

    folder = tmp_path_factory.mktemp("sft")
    data = training_helpers.write_toy_pairs(folder / "toy.jsonl", 48)
    train_tokenizer([data], folder / "tokenizer", 400)
    settings = {
        "data": data, "tokenizer": folder / "tokenizer", "device": "cpu", "micro-rows": 2, "log-every": 1,
        "checkpoint-every": 2, "warmup": 0.3,
    }  # fmt: skip
    return [word for name, value in settings.items() for word in (f"--{name}", str(value))]


def start(
    flags: list[str], out: Path, *more: str, launch: tuple[str, ...] = (), steps: int = STEPS
) -> subprocess.Popen[str]:
    command = [sys.executable, *launch, "-m", "dice", "train", "sft", "--recipe", "tiny_sft", *flags]
    command += ["--max-steps", str(steps), "--out", str(out), *more]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finished(run: subprocess.Popen[str]) -> str:
    output, errors = run.communicate(timeout=PATIENCE_S)
    assert run.returncode == 0, output + errors
    return output


def losses(out: Path) -> list[float]:
    lines = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if "loss" in line]


def on(cluster: RayNodes, hosts: int) -> tuple[str, ...]:
    return "--cluster", cluster.address, "--hosts", str(hosts)


def wait_for(path: Path, run: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not path.exists():
        assert run.poll() is None, run.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.01)


def ranks(cluster: RayNodes) -> list[int]:
    return [pid for pid in cluster.processes() if b"dice.cluster.rank" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def test_each_host_runs_its_processes_and_hands_on_what_they_say(
    cluster: RayNodes, capfd: pytest.CaptureFixture[str]
) -> None:
    from dice.cluster.trainers import train_on_hosts

    assert train_on_hosts(cluster.address, ["--version"], 2, 1, "cpu") == 0
    assert capfd.readouterr().out.count("dice ") == 2
    assert train_on_hosts(cluster.address, ["verify", "nowhere.py", "nowhere.py"], 1, 2, "cpu") == 2
    assert capfd.readouterr().err.count("nowhere.py") == 2
    with pytest.raises(MachineError, match="3 hosts are to train, and the cluster has 2"):
        train_on_hosts(cluster.address, [], 3, 1, "cpu")
    with pytest.raises(MachineError, match="2 hosts with 4 GPUs each are to train; some have 0"):
        train_on_hosts(cluster.address, [], 2, 4, "cuda")


@pytest.mark.parametrize(
    ("codes", "comes"),
    [
        ({0: 0, 1: 0}, 0),
        ({0: 2, 1: -9}, 2),  # one that cannot go on says why, whatever becomes of its fellow
        ({0: 3, 1: -9}, "lost"),  # one that cannot reach the other
        ({0: 3, -1: -9}, "lost"),  # a host is gone
        ({0: 70, 1: -9}, "lost"),  # nor can this one
        ({0: 3, 1: 3}, 3),
        ({0: 70}, 70),  # a fault of ours, for which the other waits
        ({0: 0}, "lost"),
    ],
)
def test_what_comes_of_a_run_is_told_from_how_its_processes_end(codes: dict[int, int], comes: int | str) -> None:
    pytest.importorskip("ray")
    from dice.cluster.trainers import LOST, _verdict
    from dice.train.session import StopSignal

    assert _verdict(codes, 2, StopSignal()) == (LOST if comes == "lost" else comes)


@pytest.mark.slow  # three runs of two processes each
def test_two_hosts_train_as_torchruns_two_processes_do(cluster: RayNodes, flags: list[str], tmp_path: Path) -> None:
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    finished(start(flags, tmp_path / "torchrun", launch=torchrun))
    output = finished(start(flags, tmp_path / "hosts", *on(cluster, 2)))
    assert output.count("2 x cpu") == 1, "only one process speaks"
    finished(start(flags, tmp_path / "copies", *on(cluster, 2), "--sharding", "host"))
    assert len(losses(tmp_path / "torchrun")) == STEPS
    assert losses(tmp_path / "hosts") == losses(tmp_path / "torchrun")
    assert losses(tmp_path / "copies") == pytest.approx(losses(tmp_path / "torchrun"), rel=1e-5)


@pytest.mark.slow  # processes and a node are killed, and start again
def test_a_lost_process_and_a_lost_node_cost_a_start(flags: list[str], tmp_path: Path) -> None:
    steps = 60
    whole = tmp_path / "whole"
    finished(start(flags, whole, steps=steps))
    with ray_nodes(2) as nodes:
        out = tmp_path / "killed"
        run = start(flags, out, *on(nodes, 2), steps=steps)
        wait_for(out / "checkpoints" / "step-00000002", run)
        os.kill(ranks(nodes)[-1], signal.SIGKILL)
        saved = max(int(path.name[5:]) for path in (out / "checkpoints").glob("step-*"))
        wait_for(out / "checkpoints" / f"step-{saved + 6:08d}", run)
        nodes.kill_node(-1)
        output = finished(run)
        assert output.count("was lost; starting again") == 2 and output.count("Resuming after step") == 2, output
        assert not ranks(nodes)
    assert losses(out) == pytest.approx(losses(whole), rel=1e-4)


@pytest.mark.slow  # a run is stopped, and goes on with another number of hosts
def test_a_signal_reaches_all_and_another_number_of_hosts_goes_on(
    cluster: RayNodes, flags: list[str], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    run = start(flags, out, *on(cluster, 2), steps=20)
    wait_for(out / "checkpoints" / "step-00000002", run)
    run.send_signal(signal.SIGTERM)
    assert "interrupted after step" in finished(run)
    assert "Resuming after step" in finished(start(flags, out, *on(cluster, 1), steps=20))
    finished(start(flags, tmp_path / "whole", steps=20))
    assert losses(out) == pytest.approx(losses(tmp_path / "whole"), rel=1e-4)


def strike_when(path: Path, strike: Callable[[], None]) -> None:
    """In a thread: this one has the signals, as training needs it."""

    def work() -> None:
        wait_until(path.exists)
        strike()

    threading.Thread(target=work, daemon=True).start()


@pytest.mark.slow  # a run of two processes starts, and again
def test_a_host_that_hangs_is_given_up_and_the_run_goes_on(
    cluster: RayNodes, flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    """Of which Ray never says that it is lost."""
    from dice.cluster.trainers import train_on_hosts

    monkeypatch.setattr("dice.cluster.pulse.GIVEN_UP_S", 30.0)
    out, steps, hanging = tmp_path / "run", 60, list[int]()
    command = ["train", "sft", "--recipe", "tiny_sft", *flags, "--max-steps", str(steps), "--out", str(out)]

    def hang() -> None:
        hanging.append(cluster.titled("ray::Trainer")[-1])
        os.kill(hanging[0], signal.SIGSTOP)

    strike_when(out / "checkpoints" / "step-00000002", hang)
    assert train_on_hosts(cluster.address, command, 2, 1, "cpu") == 0
    said = capfd.readouterr().out
    assert said.count("was lost; starting again") == 1 and "Resuming after step" in said
    wait_until(lambda: hanging[0] not in cluster.processes() and not ranks(cluster))
    finished(start(flags, tmp_path / "whole", steps=steps))
    assert losses(out) == pytest.approx(losses(tmp_path / "whole"), rel=1e-4)


@pytest.mark.slow  # nodes with networks of their own start
@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_a_host_that_is_cut_off_ends_itself_and_another_one_goes_on(
    flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    """Before Ray knows that the node is gone; both see the same disk, on which only one of them may write."""
    from dice.cluster.trainers import train_on_hosts

    monkeypatch.setattr("dice.cluster.pulse.GIVEN_UP_S", 15.0)
    out, steps = tmp_path / "run", 1000
    command = ["train", "sft", "--recipe", "tiny_sft", *flags, "--max-steps", str(steps), "--out", str(out)]
    command += ["--checkpoint-every", "20"]
    with RayMachines(2, environment={"PYTHONPATH": str(ROOT)}) as machines:
        strike_when(out / "checkpoints" / "step-00000020", lambda: machines.cut(machines.place_of(ranks(machines)[0])))
        assert train_on_hosts(machines.address, command, 1, 1, "cpu") == 0
    said = capfd.readouterr().out
    assert said.count("was lost; starting again") == 1 and "Resuming after step" in said
    assert len(losses(out)) == steps
