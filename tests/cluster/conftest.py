"""Ray nodes on this machine, kept for all tests of the room that leave them as they were."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray_nodes import RayNodes

from tests.conftest import PATIENCE_S, ROOT

NODES = 2


def ray_nodes(count: int, environment: dict[str, str] | None = None) -> RayNodes:
    """Whose processes find the tests' fakes."""
    return RayNodes(count, environment={"PYTHONPATH": str(ROOT)} | (environment or {}))


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine processes are silent for seconds; who counts what is asked must not ask twice."""
    if importlib.util.find_spec("ray") is not None:
        monkeypatch.setattr("dice.cluster.pulse.SILENT_S", PATIENCE_S)
        monkeypatch.setattr("dice.cluster.pulse.GIVEN_UP_S", PATIENCE_S)
        monkeypatch.setattr("dice.cluster.hiring.LATE_S", PATIENCE_S)


@pytest.fixture(scope="session")
def cluster() -> Iterator[RayNodes]:
    """Two nodes of two cores each."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed (the extra `cluster`)")
    with ray_nodes(NODES) as nodes:
        yield nodes


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@pytest.fixture(scope="module")
def training_tests() -> Iterator[None]:
    """Helpers of the tests of training can be imported."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.syspath_prepend(str(ROOT / "tests" / "train"))
        yield
