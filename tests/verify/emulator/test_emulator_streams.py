"""Work on a stream of its own is done when something waits for it, and not before."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from emulator_harness import Library, case

WAITED_FOR = [
    "default",
    "per_thread",
    "blocking",
    "stream",
    "device",
    "query",
    "free",
    "event",
    "event_query",
    "chain",
    "behind_the_event",
    "copies",
]


@pytest.fixture
def streams() -> Iterator[Library]:
    library = case("streams.cu")
    yield library
    library.runtime.dice_finish()


def arrays() -> tuple[np.ndarray, np.ndarray]:
    return np.arange(64, dtype=np.float32), np.zeros(64, np.float32)


@pytest.mark.parametrize("entry", WAITED_FOR)
def test_what_is_waited_for_is_there(streams: Library, entry: str) -> None:
    x, y = arrays()
    streams.call(f"h_{entry}", x, y)
    np.testing.assert_array_equal(y, x + 1)


def test_what_nobody_waits_for_comes_later(streams: Library) -> None:
    x, y = arrays()
    streams.runtime.dice_launches_reset()
    streams.call("h_nobody", x, y)
    assert not y.any()
    assert streams.launches() == {"add": 1}
    streams.runtime.dice_finish()
    np.testing.assert_array_equal(y, x + 1)


def test_what_comes_behind_an_event_is_not_waited_for_with_it(streams: Library) -> None:
    x, y = arrays()
    streams.call("h_behind_the_event", x, y)
    streams.runtime.dice_finish()
    np.testing.assert_array_equal(y, x + 2)
