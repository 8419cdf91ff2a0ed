"""The texts that are being denoised, as the device sees them: one row of every table for each slot.

All that a step reads and changes is here, so that a step needs no word from the host: which block a text is at, what is
masked in it, its tokens, its pages, its random numbers, and how it is to be decoded. The host writes a row when a text
begins (or begins again), and learns what became of it from the steps' results, one step late.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dice.decode.block_diffusion import check_denoising_steps
from dice.decode.engine.prefixes import table_size
from dice.decode.request import DecodeConfig
from dice.decode.sampling import STRATEGIES
from dice.decode.text import Text

# Columns of `Slots.numbers`: the state of a text's denoising, then how it is decoded.
ACTIVE, BLOCK_START, UNCOMMITTED, BLOCK_STEP, DRAWN, OPEN_UNTIL = range(6)
COUNT, EXTRA, STEPS, STRATEGY, MODE, STOP_SET, VOCABULARY, TOP_K = range(6, 14)
NUMBERS = 16
# Columns of `Slots.factors`.
TEMPERATURE, THRESHOLD, BOUND, TOP_P = range(4)
RESOLVED_MODES = ("sample", "greedy", "compat")
# Different sets of stop ids that texts in slots can have at once.
STOP_SETS = 16


@dataclass(frozen=True)
class Shape:
    """Sizes that all tables share. `shift`: logits at a position predict the next token (autoregressive models)."""

    slots: int
    block_size: int
    context: int
    page_size: int
    vocab_size: int
    shift: bool

    @property
    def window(self) -> int:
        """Most positions of one text that a step computes."""
        return 1 if self.shift else 2 * self.block_size


class StopSets:
    """Which row of `Slots.stops` holds which set of stop ids."""

    def __init__(self) -> None:
        self._rows: list[frozenset[int] | None] = [None] * STOP_SETS
        self._holders = [0] * STOP_SETS

    def hold(self, ids: frozenset[int]) -> tuple[int, bool] | None:
        """(row, whether it must be written first); None where all rows are held by other sets."""
        if ids in self._rows:
            row, new = self._rows.index(ids), False
        elif 0 in self._holders:
            row, new = self._holders.index(0), True
            self._rows[row] = ids
        else:
            return None
        self._holders[row] += 1
        return row, new

    def release(self, row: int) -> None:
        self._holders[row] -= 1


class Slots:
    """Tables on one device. S slots, B block size, C context, W random numbers of a text, V vocabulary.

    - `numbers` int32 [S, NUMBERS], `factors` float64 [S, 4]: the columns above.
    - `ids` int32 [S, C]: tokens, masks where nothing is written yet. `pages` int32 [S, C / page size].
    - `masked`, `opened` int8 [S, B]: positions of the block that are masks now, and that were when it began.
    - `uniforms` float64 [S, W]: a text's random numbers, in order of use.
    - `stops` int8 [STOP_SETS, V]: 1 for a token that ends a text. `cursor` int32 [1]: the slot whose turn is first.
    - `prefixes` int32 [1, ...]: who begins like whom, see there; `has_prefixes`: whether anybody does. `rows` int32
      [S, 2]: of a step on a GPU, the first row of each slot's text and how many it has.
    """

    def __init__(self, shape: Shape, device: torch.device) -> None:
        self.shape, self.device = shape, device

        def table(*size: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(size, dtype=dtype, device=device)

        slots = shape.slots
        self.numbers = table(slots, NUMBERS)
        self.factors = table(slots, 4, dtype=torch.float64)
        self.ids = table(slots, shape.context)
        self.pages = table(slots, -(-shape.context // shape.page_size))
        self.masked = table(slots, shape.block_size, dtype=torch.int8)
        self.opened = table(slots, shape.block_size, dtype=torch.int8)
        self.uniforms = table(slots, shape.context * (shape.block_size + 1) // 2, dtype=torch.float64)
        self.stops = table(STOP_SETS, shape.vocab_size, dtype=torch.int8)
        self.cursor = table(1)
        self.prefixes, self.has_prefixes = table(1, table_size(slots)), False
        self.rows = table(slots, 2)
        self.on_write: Callable[[str, int, int, Tensor], None] | None = None  # hears of every `write`

    def write(self, table: str, row: int, first: int, values: Tensor) -> None:
        """Write `values` [n], on the host, into the columns of a table's row from `first` on: in the order of the
        device's work, and without waiting for it."""
        if self.on_write is not None:
            self.on_write(table, row, first, values)
        if table == "prefixes":  # on every rank, all of which are given what is written
            self.has_prefixes = bool(values.any())
        if self.device.type == "cuda":
            values = values.pin_memory()
        into: Tensor = getattr(self, table)
        into[row, first : first + len(values)].copy_(values, non_blocking=True)

    def write_text(self, slot: int, text: Text, uniforms: Tensor | None) -> None:
        """The tokens of a text, and its random numbers [at most W] if it uses any."""
        self.write("ids", slot, 0, torch.tensor(text.ids, dtype=torch.int32))
        if uniforms is not None:
            self.write("uniforms", slot, 0, uniforms)

    def write_pages(self, slot: int, first: int, pages: Sequence[int]) -> None:
        """The text's pages from its `first`-th on."""
        self.write("pages", slot, first, torch.tensor(pages, dtype=torch.int32))

    def write_prefixes(self, numbers: Sequence[int]) -> None:
        self.write("prefixes", 0, 0, torch.tensor(numbers, dtype=torch.int32))

    def write_stops(self, row: int, ids: frozenset[int]) -> None:
        known = [token for token in ids if 0 <= token < self.shape.vocab_size]
        line = torch.zeros(self.shape.vocab_size, dtype=torch.int8)
        line[torch.tensor(known, dtype=torch.int64)] = 1
        self.write("stops", row, 0, line)

    def start(self, slot: int, text: Text, config: DecodeConfig, stop_set: int) -> None:
        """Let steps denoise the text from where it stands; the blocks before its own are in its pages."""
        block = range(text.block_start, text.block_start + self.shape.block_size)
        masked, opened = set(text.masked), set(text.written(text.block_start))
        self.write("masked", slot, 0, torch.tensor([p in masked for p in block], dtype=torch.int8))
        self.write("opened", slot, 0, torch.tensor([p in opened for p in block], dtype=torch.int8))
        temperature = config.temperature or 1.0
        factors = [temperature, config.confidence_threshold, config.entropy_bound, config.top_p or 1.0]
        self.write("factors", slot, 0, torch.tensor(factors, dtype=torch.float64))
        self.write("numbers", slot, 0, torch.tensor(self._numbers(text, config, stop_set), dtype=torch.int32))

    def stop(self, slot: int) -> None:
        """No step takes the text any more."""
        self.write("numbers", slot, ACTIVE, torch.zeros(1, dtype=torch.int32))

    def _numbers(self, text: Text, config: DecodeConfig, stop_set: int) -> list[int]:
        vocabulary = self.shape.vocab_size
        limit = vocabulary if config.vocab_limit is None else min(config.vocab_limit, vocabulary)
        steps = check_denoising_steps(config, self.shape.block_size)
        count, extra = divmod(self.shape.block_size, steps)
        mode = RESOLVED_MODES.index(config.resolved_mode)
        state = [1, text.block_start, int(text.uncommitted), text.block_step, text.drawn, text.open_until]
        return [
            *state, count, extra, steps, STRATEGIES.index(config.remasking), mode, stop_set, limit, config.top_k or 0,
        ]  # fmt: skip


def truncates(config: DecodeConfig, vocab_size: int) -> bool:
    """Whether top-k or top-p cuts the distribution that tokens are drawn from."""
    cuts = 0 < (config.top_k or 0) < vocab_size or (config.top_p or 1.0) < 1.0
    return cuts and config.resolved_mode == "sample"
