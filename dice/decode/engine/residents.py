"""Texts that were submitted, and those of them that have a slot and pages: the host's side of `Slots`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from dice.decode.engine.pages import Pages
from dice.decode.engine.prefixes import STEP_TEXTS, prefix_table
from dice.decode.engine.slots import Slots, StopSets
from dice.decode.request import DecodeConfig, StepEvent
from dice.decode.text import Text
from dice.decode.trace import Trace

State = Literal["waiting", "reading", "writing", "finished", "aborted"]
# Blocks past the one that a text is known to be at for which it must have pages: results are a step late.
BLOCKS_AHEAD = 3


@dataclass(eq=False)
class Handle:
    """A submitted text. `trace` is there once `state` is "finished"; `answer_ids` are its answer, suffix included.

    While `state` is "reading" its prompt is being read, or what it had written before it had to leave.
    """

    number: int
    text: Text
    config: DecodeConfig
    on_step: Callable[[StepEvent], None] | None
    on_end: Callable[[Handle], None] | None = None
    state: State = "waiting"
    trace: Trace | None = None
    answer_ids: tuple[int, ...] = ()
    slot: int = -1
    stop_set: int = -1
    pages: list[int] = field(default_factory=list)
    read: int = 0  # positions whose keys and values are in the pages, or will be before anyone reads them
    open_until: int = 0  # where the device stops to ask the host what comes next
    uniforms: Tensor | None = None

    @property
    def done(self) -> bool:
        return self.state in ("finished", "aborted")


class Residents:
    """Who has which slot. A resident is "reading" or "writing"."""

    def __init__(self, slots: Slots, pages: Pages) -> None:
        self.slots, self.pages = slots, pages
        self._by_slot: dict[int, Handle] = {}
        self._free = list(range(slots.shape.slots))[::-1]
        self._stops = StopSets()
        self._prefixes_known = True

    def __len__(self) -> int:
        return len(self._by_slot)

    def __iter__(self) -> Iterator[Handle]:
        """In the order in which they came; they may leave meanwhile."""
        return iter(list(self._by_slot.values()))

    def in_state(self, state: State) -> list[Handle]:
        return [handle for handle in self if handle.state == state]

    def to_read(self, handle: Handle) -> int:
        """Positions that must be in the pages before the text's block can be denoised."""
        return handle.text.block_start - int(self.slots.shape.shift)

    def enter(self, handle: Handle) -> bool:
        """Give a waiting text a slot and pages, those of a known beginning among them; False where there are none."""
        if not self._free:
            return False
        text = handle.text
        text.uncommitted = text.behind = False
        shared = self.pages.share(text.ids[: self.to_read(handle)])
        missing = self._pages_needed(text) - len(shared)
        # Those that are being written need a page each before long.
        own = self.pages.take(missing) if self.pages.free >= missing + len(self) else None
        held = self._stops.hold(text.stop_ids) if own is not None else None
        if own is None or held is None:
            self.pages.release([*shared, *(own or [])])
            return False
        handle.slot, handle.pages, handle.read = self._free.pop(), [*shared, *own], len(shared) * self.pages.size
        handle.stop_set, new = held
        handle.state = "reading"
        self._by_slot[handle.slot] = handle
        if new:
            self.slots.write_stops(handle.stop_set, text.stop_ids)
        if handle.uniforms is None and handle.config.resolved_mode == "sample":
            handle.uniforms = text.all_uniforms()
        self.slots.write_text(handle.slot, text, handle.uniforms)
        self.slots.write_pages(handle.slot, 0, handle.pages)
        return True

    def start(self, handle: Handle) -> None:
        """Let the device write a text whose blocks so far have been read."""
        self.slots.start(handle.slot, handle.text, handle.config, handle.stop_set)
        handle.open_until, handle.state = handle.text.open_until, "writing"
        self._prefixes_known = False

    def tell_prefixes(self) -> None:
        """Let the device know who of those that are being written begin alike, if that has changed."""
        if self._prefixes_known:
            return
        self._prefixes_known = True
        pages = [(handle.slot, handle.pages) for handle in self.in_state("writing")]
        alike = len(pages) >= STEP_TEXTS and len({own[0] for _, own in pages}) < len(pages)
        if alike or self.slots.has_prefixes:
            self.slots.write_prefixes(prefix_table(pages, self.slots.shape.slots, self.pages.size))

    def provide(self, handle: Handle) -> bool:
        """Give a resident the pages of its next blocks; False, and perhaps not all of them, where too few are free."""
        while len(handle.pages) < self._pages_needed(handle.text):
            own = self.pages.take(1)
            if own is None:
                return False
            self.slots.write_pages(handle.slot, len(handle.pages), own)
            handle.pages += own
        return True

    def leave(self, handle: Handle, state: State) -> None:
        """Free the slot and the pages. What the device has been given already may still write there; what it is given
        from now on comes later."""
        if state != "finished":
            self.slots.stop(handle.slot)
        self._prefixes_known = False
        del self._by_slot[handle.slot]
        self._free.append(handle.slot)
        self._stops.release(handle.stop_set)
        self.pages.release(handle.pages)
        handle.pages, handle.state = [], state

    def _pages_needed(self, text: Text) -> int:
        return self.pages.needed(min(text.length, text.block_start + BLOCKS_AHEAD * self.slots.shape.block_size))
