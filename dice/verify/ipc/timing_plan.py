"""Numbers of a timing on which the supervisor and the two children that are timed must agree."""

from __future__ import annotations

ROUND_CALLS = 8  # calls of one side before it is the other side's turn, at most
IDLE_CALLS = 2  # further calls of a round that begin on an idle device
WARM_UP_S = 0.2  # on each side, or a quarter of the budget where that is less
KEEP_BYTES = 2 << 30  # outputs of one round that stay on the device
FLUSH_BYTES = 256 << 20  # written before each call: several times any L2 cache
