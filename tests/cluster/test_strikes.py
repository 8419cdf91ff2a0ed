"""Everything is struck in one run: a small form of benchmarks/ray_strikes.py."""

from __future__ import annotations

import pytest

pytest.importorskip("ray")

from ray_strikes import STRIKES, struck  # noqa: E402

pytestmark = pytest.mark.xdist_group("cluster")


@pytest.mark.slow  # nodes start, a driver twice, and hosts again and again
def test_none_is_lost_mixed_up_or_counted_twice() -> None:
    came = struck(seed=3, count=200, mean=0.3, nodes=3)
    assert len(came["struck"]) == len(STRIKES) - bool(came["not_cut"]), came
    assert {one["what"] for one in came["struck"]} >= {"host", "driver", "node"}
    wrong = ("exit_code", "not_answered", "answered_twice", "mixed_up", "never_done", "done_again_after_it_was_told")
    assert {name: came[name] for name in wrong} == dict.fromkeys(wrong, 0), came
