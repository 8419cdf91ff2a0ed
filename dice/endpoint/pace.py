"""How fast requests may go out: at most so many requests, and so many tokens, in any minute."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass

# Seconds over which requests and tokens are counted: the limits are of a minute.
WINDOW_S = 60.0


@dataclass
class Departure:
    """One request that was let go, and the tokens it counts for."""

    at: float
    tokens: int


class Pace:
    """Lets requests go in the order of asking. `window_s` is shorter than a minute in tests alone."""

    def __init__(self, requests: int = 0, tokens: int = 0, window_s: float = WINDOW_S):
        self.requests, self.tokens, self.window_s = requests, tokens, window_s
        self._departures: deque[Departure] = deque()
        self._not_before = 0.0
        self._turn = asyncio.Lock()

    async def go(self, tokens: int) -> Departure:
        """Wait until one more request of so many tokens is within the limits. A request over the limit by itself goes
        alone. Correct the departure's `tokens` once they are known."""
        async with self._turn:
            while (wait := self._wait_s(tokens)) > 0:
                await asyncio.sleep(wait)
            departure = Departure(time.monotonic(), tokens)
            self._departures.append(departure)
            return departure

    def hold(self, seconds: float) -> None:
        """Let nothing go for so long: the endpoint asked for it."""
        self._not_before = max(self._not_before, time.monotonic() + seconds)

    def _wait_s(self, tokens: int) -> float:
        now = time.monotonic()
        if now < self._not_before:
            return self._not_before - now
        while self._departures and self._departures[0].at <= now - self.window_s:
            self._departures.popleft()
        if not self._departures:
            return 0.0
        many = bool(self.requests) and len(self._departures) >= self.requests
        much = bool(self.tokens) and sum(one.tokens for one in self._departures) + tokens > self.tokens
        return self._departures[0].at + self.window_s - now + 1e-3 if many or much else 0.0
