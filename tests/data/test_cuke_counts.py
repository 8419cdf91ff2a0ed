"""From the published sets' own forms to a CuKe of the paper's counts, a hundredth of them, by the commands."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"


def test_the_counts_are_the_papers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import cuke_counts

    monkeypatch.delitem(sys.modules, "cuke_counts")
    assert cuke_counts.BASE + cuke_counts.STRUCTURAL + cuke_counts.FASTER[2.0] == 6303
    found = cuke_counts.run(tmp_path, scale=0.01)
    assert found["not as expected"] == {}
    kept = {name: one["kept"] for name, one in found["found"].items()}
    assert kept["2.0x, base as it is"] == 48 + 14 + 1 and kept["2.0x"] == 48 - 2 + 14 + 1
    assert found["found"]["2.0x, base as it is"]["checked"] == {"correct": 61, "wrong": 2}
