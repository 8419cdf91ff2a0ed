"""/v1/optimize: what is told of a module's regions, what comes out, and that nothing is left of who leaves."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from serve_helpers import Running, descendants
from sse import events, read

from dice.kernel import Kernel
from dice.problem import Problem
from dice.verify import verify
from tests.conftest import PATIENCE_S

pytestmark = pytest.mark.xdist_group("serve")  # they share one server

NETWORK = """
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return torch.topk(F.softmax(F.relu(self.layer(x)), -1), 3).values * 2


def get_inputs():
    return [torch.randn(6, 8)]


def get_init_inputs():
    return []
"""
RAISES = NETWORK.replace("return torch.topk", "raise ValueError('never')\n        return torch.topk")
ENDLESS = NETWORK.replace("return torch.topk", "while len(x):\n            pass\n        return torch.topk")


def jobs(pid: int) -> list[Path]:
    """Folders of work under way."""
    return [path for place in ("/dev/shm", "/tmp") for path in Path(place).glob(f"dice-scratch-{pid}-*/job-*")]


def held(server: Running) -> tuple[int, int, list[Path]]:
    """How many processes a server has, how many folders, and which of these are a run's."""
    folders = jobs(server.process.pid)
    return len(descendants(server.process.pid)), len(folders), [path for path in folders if (path / "run").exists()]


def optimise(server: Running, module: str) -> httpx.Response:
    """Whole; once the verifier has started."""
    deadline = time.monotonic() + PATIENCE_S
    body = {"problem": module, "stream": False}
    while (answer := httpx.post(f"{server.url}/v1/optimize", json=body, timeout=PATIENCE_S)).status_code == 503:
        assert time.monotonic() < deadline, "the verifier never started"
        time.sleep(0.2)
    return answer


@pytest.fixture(scope="module")
def warm(server: Running) -> tuple[int, int]:
    """What a server that has finished a run keeps for the next one: processes of its verifier, and their folders."""
    assert optimise(server, NETWORK).status_code == 200
    processes, folders, runs = held(server)
    assert not runs
    return processes, folders


def wait_until_idle(server: Running, warm: tuple[int, int]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        processes, folders, runs = held(server)
        if processes <= warm[0] and folders <= warm[1] and not runs:
            return
        time.sleep(0.1)
    raise AssertionError(f"left: {held(server)}, and not {warm}")


def test_a_module_that_cannot_be_run_is_refused(server: Running) -> None:
    whole = optimise(server, RAISES)
    assert whole.status_code == 400 and "cannot run" in whole.json()["error"]["message"]
    with httpx.stream("POST", f"{server.url}/v1/optimize", json={"problem": RAISES}, timeout=PATIENCE_S) as response:
        told = [json.loads(line.removeprefix("data: ")) for line in response.iter_lines() if line.startswith("data: ")]
    assert told[0] == {"type": "stage", "stage": "wait"} and told[-1] == whole.json()
    assert not held(server)[2]


def test_a_streamed_verification_is_counted(server: Running) -> None:
    name = 'dice_verdicts_total{outcome="no_kernel"}'
    assert optimise(server, RAISES).status_code == 400  # the verifier has started
    asked = {"problem": NETWORK, "reply": "There is none."}
    for stream in (False, True):
        assert httpx.post(f"{server.url}/v1/verify", json=asked | {"stream": stream}, timeout=PATIENCE_S).is_success
    assert server.metric(name) >= 2


@pytest.mark.slow
def test_a_module_is_optimised(server: Running, warm: tuple[int, int]) -> None:
    """A run starts PyTorch's compiler in a process of its own, and compiles kernels."""
    told = events(f"{server.url}/v1/optimize", {"problem": NETWORK, "writers": ["templates", "model"], "samples": 1})
    assert all(name == f"dice.{data['type']}" for name, data in told[:-1])
    kinds = [data["type"] for _, data in told[:-1] if data["type"] != "stage"]
    assert kinds[0] == "graph" and kinds[-2:] == ["composed", "result"]
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for _, data in told[:-1]:
        by_kind.setdefault(data["type"], []).append(data)
    keys = [region["key"] for region in by_kind["graph"][0]["regions"]]
    assert sorted(keys) == sorted(one["region"] for one in by_kind["region_begun"])
    assert sorted(keys) == sorted(one["region"] for one in by_kind["region_done"])
    assert {one["writer"] for one in by_kind["candidate"]} == {"templates", "nano"}
    order = [(data["type"], data.get("region")) for _, data in told[:-1]]
    for key in keys:
        places = [order.index((kind, key)) for kind in ("region_begun", "candidate", "region_done")]
        assert places == sorted(places)
    result = told[-2][1]
    assert by_kind["composed"][-1]["verdict"]["outcome"] == "correct" == result["report"]["verdict"]["outcome"]
    assert any(row["replaced"] for row in result["report"]["regions"])
    assert verify(Problem(NETWORK), Kernel(result["kernel"]), backend="emulated").correct
    wait_until_idle(server, warm)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "last"),
    [(NETWORK, "wait"), (NETWORK, "graph"), (NETWORK, "region_begun"), (NETWORK, "candidate"), (ENDLESS, "wait")],
    ids=["waiting", "cut", "begun", "judged", "endless"],
)
def test_who_leaves_ends_the_run(server: Running, warm: tuple[int, int], module: str, last: str) -> None:
    """A run starts PyTorch's compiler in a process of its own, and compiles kernels."""
    with httpx.stream("POST", f"{server.url}/v1/optimize", json={"problem": module}, timeout=PATIENCE_S) as response:
        for _, data in read(response):
            if last in (data["type"], data.get("stage")):
                break
        if module is ENDLESS:
            time.sleep(2)  # until it runs, for ever
    wait_until_idle(server, warm)
    assert optimise(server, RAISES).status_code == 400  # the next one's turn has come
