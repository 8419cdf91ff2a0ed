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


@pytest.fixture
def host_code(streams: Library) -> Iterator[Library]:
    """As within a bound function, where it is known when the default stream is turned to."""
    streams.runtime.dice_host_code(True)
    yield streams
    streams.runtime.dice_host_code(False)
    streams.runtime.dice_set_order(0)


UNJOINED = ["two_unjoined", "two_unjoined_and_device", "two_blocking_unjoined", "event_too_early"]
JOINED = ["two_joined", "two_blocking_joined", "default_then_blocking", "blocking_then_default", "three_in_a_chain"]
JOINED += ["default_then_blocking_beside_another", "blocking_then_default_beside_another", "event_in_time"]


@pytest.mark.parametrize("entry", UNJOINED)
def test_one_of_two_orders_shows_that_a_stream_does_not_wait_for_another(host_code: Library, entry: str) -> None:
    found = []
    for order in (0, 1):
        x, y = arrays()
        host_code.runtime.dice_set_order(order)
        host_code.call(f"h_{entry}", x, y)
        found.append(np.array_equal(y, x + 2))
    assert found == [True, False]


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("entry", JOINED)
def test_no_order_changes_what_streams_that_wait_compute(host_code: Library, entry: str, order: int) -> None:
    x, y = arrays()
    host_code.runtime.dice_set_order(order)
    host_code.call(f"h_{entry}", x, y)
    np.testing.assert_array_equal(y, x + 2)


@pytest.mark.parametrize("order", [0, 1])
def test_the_default_stream_and_pytorch_wait_for_blocking_streams(host_code: Library, order: int) -> None:
    x, y = arrays()
    host_code.runtime.dice_set_order(order)
    host_code.call("h_blocking", x, y)
    assert not y.any(), "it is kept while nothing turns to the default stream"
    host_code.runtime.dice_host_code(False)
    np.testing.assert_array_equal(y, x + 1)


@pytest.mark.parametrize("entry", ["brought_too_early", "sent_and_overwritten"])
def test_one_of_two_orders_shows_that_the_host_does_not_wait_for_a_copy_of_pinned_memory(
    host_code: Library, entry: str
) -> None:
    found = []
    for order in (0, 1):
        x, y = arrays()
        host_code.runtime.dice_set_order(order)
        host_code.call(f"h_{entry}", x, y)
        found.append(np.array_equal(y, x + 1))
    assert found == [True, False]


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("entry", ["brought", "brought_by_a_stream", "sent", "sent_by_a_stream"])
def test_copies_of_pinned_memory_that_are_waited_for_are_made(host_code: Library, entry: str, order: int) -> None:
    x, y = arrays()
    host_code.runtime.dice_set_order(order)
    host_code.call(f"h_{entry}", x, y)
    np.testing.assert_array_equal(y, x + 1)
