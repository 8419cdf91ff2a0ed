"""`Answer`: from what the engine reveals, in whatever order, to the text that a client may see, in its order."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from dice.decode.request import StepEvent
from dice.decode.sampling import Likeliest


@dataclass(frozen=True, slots=True)
class Token:
    """`data`: its bytes. `end`: characters of the text up to its end. `likeliest`: the most likely tokens at its place
    when it was revealed, where they were asked for."""

    id: int
    data: bytes
    logprob: float
    end: int
    likeliest: Likeliest = ()


@dataclass(frozen=True, slots=True)
class Delta:
    """The next characters of a text, and the tokens that end within them."""

    text: str = ""
    tokens: tuple[Token, ...] = ()


class Answer:
    """One text while it is written: its tokens up to the first that is still masked, as characters.

    A token that was revealed never changes, so its text is final once all before it is. Never shown: half a character,
    the beginning of a stop string that may yet be completed, and what follows a stop. `most`: tokens of the answer.
    `given`: tokens, by position, that nobody writes.

    - `ended`: "stop", by a stop token or string, or "length"; None while it is written.
    - `kept`: tokens of the answer, its stop token included, or up to the one that completes a stop string.
    """

    def __init__(
        self,
        token_bytes: Callable[[int], bytes],
        stop_ids: Collection[int],
        stops: Sequence[str],
        most: int,
        given: Mapping[int, int] | None = None,
    ) -> None:
        self.ended: str | None = None
        self.kept = 0
        self.cut_by_string = False
        self._token_bytes = token_bytes
        self._stop_ids, self._stops, self._most = stop_ids, tuple(stops), most
        self._longest = max(map(len, stops), default=0)
        self._given = frozenset(given or ())
        self._revealed: dict[int, tuple[int, float, Likeliest]] = {
            position: (token, 0.0, ()) for position, token in (given or {}).items()
        }
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text = ""
        self._shown = 0
        self._tokens: list[Token] = []
        self._tokens_shown = 0

    @property
    def text(self) -> str:
        """All that was shown."""
        return self._text[: self._shown]

    def holds(self, positions: range) -> bool:
        """Whether everything there has been revealed."""
        return all(position in self._revealed for position in positions)

    def take(self, event: StepEvent | None = None) -> Delta:
        """What one step, or nothing but what is given, adds to what may be shown."""
        if event is not None:
            likeliest = event.likeliest or ((),) * len(event.positions)
            revealed = zip(event.tokens, event.logprobs, likeliest, strict=True)
            self._revealed |= dict(zip(event.positions, revealed, strict=True))
        while self.ended is None and self.kept in self._revealed:
            self._append(*self._revealed[self.kept])
        return self._show()

    def _append(self, token: int, logprob: float, likeliest: Likeliest) -> None:
        data = self._token_bytes(token)
        is_stop = token in self._stop_ids and self.kept not in self._given
        self.kept += 1
        if is_stop or self.kept == self._most:
            self.ended = "stop" if is_stop else "length"
        before = len(self._text)
        self._text += self._decoder.decode(data, final=self.ended is not None)
        if data:
            self._tokens.append(Token(token, data, logprob, len(self._text), likeliest))
        starts = [self._text.find(stop, max(0, before - len(stop) + 1)) for stop in self._stops]
        found = min((start for start in starts if start >= 0), default=None)
        if found is not None:
            self._text, self.ended, self.cut_by_string = self._text[:found], "stop", True

    def _show(self) -> Delta:
        safe = len(self._text) if self.ended else len(self._text) - self._possible_stop()
        text, self._shown = self._text[self._shown : safe], max(safe, self._shown)
        first = self._tokens_shown
        while self._tokens_shown < len(self._tokens) and self._tokens[self._tokens_shown].end <= self._shown:
            # A token whose last character is not whole yet ends where the one before it did.
            if self.ended is None and self._tokens_shown + 1 == len(self._tokens) and self._is_partial():
                break
            self._tokens_shown += 1
        return Delta(text, tuple(self._tokens[first : self._tokens_shown]))

    def _is_partial(self) -> bool:
        return bool(self._decoder.getstate()[0])

    def _possible_stop(self) -> int:
        """How many characters at the end of the text are the beginning of a stop string."""
        for length in range(min(self._longest - 1, len(self._text)), 0, -1):
            end = self._text[-length:]
            if any(len(stop) > length and stop.startswith(end) for stop in self._stops):
                return length
        return 0
