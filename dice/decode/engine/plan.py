"""Which rows a step computes: chosen on the device, in buffers of fixed size, so that a recorded step can be replayed.

A text needs one block of rows, or two where the block before is still to be committed, and logits where it is masked.
Where the texts need more than a step has room for, those whose turn it is take part and the others wait; what a text
says does not depend on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dice.decode.engine import slots as at
from dice.decode.engine.slots import Shape, Slots
from dice.decode.text import Text


@dataclass(frozen=True)
class Room:
    """Of a step: at most `texts` texts, and `blocks` blocks of rows among them."""

    texts: int
    blocks: int

    def heads(self, shape: Shape) -> int:
        """Positions of which it has logits at most: half of its rows. As many are masked in texts that reveal equally
        many a step and are anywhere in their blocks, and all are in a step with two blocks for each text."""
        most = self.texts * shape.block_size
        return most if shape.shift else min(most, self.blocks * shape.block_size // 2)


def blocks_needed(texts: Sequence[Text], shape: Shape) -> int:
    """Of the least step with room for all `texts`: for their rows, and for the logits of what is masked in them."""
    if shape.shift:
        return len(texts)
    masked = sum(len(text.masked) for text in texts)
    return max(len(texts) + sum(text.uncommitted for text in texts), -(-2 * masked // shape.block_size))


@dataclass(frozen=True)
class Plan:
    """The rows of a forward. N rows, R of them with logits, T texts (or tiles of a prompt), B block size; all integers
    are int32.

    - `tiles` [T, 4]: consecutive positions of one text: (slot or -1, first row, first position, positions).
    - `slots`, `positions` [N]: of each row; slot -1 in rows that are not used. `ids` [N]: its token.
    - `wanted` [T * B], int8: whether a position of a text's block is masked. `head_rows`, `places` [R]: the rows whose
      logits predict those that are, and which of the T * B each predicts; place -1 in rows that are not used.
    """

    tiles: Tensor
    slots: Tensor
    positions: Tensor
    ids: Tensor
    head_rows: Tensor
    places: Tensor
    wanted: Tensor

    @classmethod
    def empty(cls, room: Room, shape: Shape, device: torch.device) -> Plan:
        rows, most, heads = room.blocks * shape.block_size, room.texts * shape.block_size, room.heads(shape)

        def table(*size: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(size, dtype=dtype, device=device)

        return cls(
            table(room.texts, 4), table(rows), table(rows), table(rows), table(heads), table(heads),
            table(most, dtype=torch.int8),
        )  # fmt: skip


def plan_step(slots: Slots, room: Room) -> Plan:
    """The next step's rows; moves the turn on to the first text that found no room."""
    shape, size = slots.shape, slots.shape.block_size
    turn = (slots.cursor + torch.arange(shape.slots, device=slots.device)) % shape.slots
    numbers = slots.numbers[turn].long()
    active = numbers[:, at.ACTIVE] > 0
    two = (numbers[:, at.UNCOMMITTED] > 0) & (not shape.shift)
    blocks, heads = active * (1 + two.long()), active * slots.masked[turn].sum(1)
    last_block, last_head, last_text = blocks.cumsum(0), heads.cumsum(0), active.cumsum(0)
    takes_part = active & (last_block <= room.blocks) & (last_text <= room.texts) & (last_head <= room.heads(shape))
    waits = active & ~takes_part
    if waits.any():
        slots.cursor.copy_(turn[waits.long().argmax()])

    first = numbers[:, at.BLOCK_START] - size * two.long() - int(shape.shift)
    columns = torch.stack((turn, (last_block - blocks) * size, first, blocks * size), 1)
    return _rows(slots, columns[takes_part].int())


def _rows(slots: Slots, tiles: Tensor) -> Plan:
    """The plan of no more rows than `tiles` have."""
    shape, size = slots.shape, slots.shape.block_size
    plan = Plan.empty(Room(len(tiles), int(tiles[:, 3].sum()) // size), shape, slots.device)
    plan.tiles.copy_(tiles)
    head_rows = torch.zeros_like(plan.wanted, dtype=torch.int32)
    for index, (slot, row, first, count) in enumerate(tiles.tolist()):
        rows = slice(row, row + count)
        plan.slots[rows] = slot
        plan.positions[rows] = torch.arange(first, first + count, dtype=torch.int32)
        plan.ids[rows] = slots.ids[slot, first : first + count]
        heads = slice(index * size, (index + 1) * size)
        head_rows[heads] = torch.arange(row + count - size, row + count, dtype=torch.int32)
        plan.wanted[heads] = slots.masked[slot]
    places = plan.wanted.nonzero()[:, 0]
    return replace(plan, head_rows=head_rows[places], places=places.int())
