"""Limits on what the reference's process looks at beside its trials."""

from __future__ import annotations

import importlib
import sys
import time
from pathlib import Path

import pytest

from dice.verify.reference import workload

SLOW = """
import time
end = time.process_time() + 0.15
while time.process_time() < end:
    pass
whole = True
"""


@pytest.mark.parametrize("limits", [(0.05, 0.0), (10.0, 0.05)])
def test_a_limit_waits_for_an_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: tuple[float, float]
) -> None:
    """Or else the module would be broken for the process's life, as sympy was on busy machines."""
    (tmp_path / "slow_to_import.py").write_text(SLOW)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "slow_to_import", raising=False)
    with pytest.raises(workload.Enough), workload.within(*limits):
        module = importlib.import_module("slow_to_import")
        while True:
            time.sleep(0)
    assert module.whole


def test_what_is_done_in_time_is_not_interrupted() -> None:
    with workload.within(10.0, 10.0):
        done = True
    assert done
