"""A step's choices for all its texts at once: `sampling.propose` and `sampling.select` without a word to the host.

Plain PyTorch: the CPU's path, and what the kernels are held against. Every text has settings of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from dice.decode.engine import slots as at
from dice.decode.engine.plan import Plan
from dice.decode.engine.slots import RESOLVED_MODES, Slots
from dice.decode.sampling import STRATEGIES, Likeliest, draw, entropy, forbid, likeliest

NOT_REVEALED = -1  # in place of a token, in a step's results


@dataclass(frozen=True)
class Proposals:
    """For each of R positions: int32 `tokens`, and float32 `logprobs` and `entropies` (nats). `source` [R, V]: the
    logits of the distribution that the log-probabilities refer to, where `propose` has just made it."""

    tokens: Tensor
    logprobs: Tensor
    entropies: Tensor
    source: Tensor | None = None

    @classmethod
    def empty(cls, count: int, device: torch.device) -> Proposals:
        numbers = torch.zeros(2, count, dtype=torch.float32, device=device)
        return cls(torch.zeros(count, dtype=torch.int32, device=device), numbers[0], numbers[1])

    def put(self, places: Tensor, found: Proposals) -> None:
        """Take over `found` [M] as what is proposed at `places` [M]."""
        self.tokens[places], self.logprobs[places] = found.tokens, found.logprobs
        self.entropies[places] = found.entropies


def uniform_of(slots: Slots, plan: Plan) -> Tensor:
    """The random number, float64 [T * B], of every position that a step predicts; any where none is wanted."""
    size = slots.shape.block_size
    slot = plan.tiles[:, 0].clamp_min(0).long()
    wanted = plan.wanted.view(-1, size).long()
    place = slots.numbers[slot, at.DRAWN].long()[:, None] + wanted.cumsum(1) - wanted
    return slots.uniforms[slot[:, None], place.clamp_max(slots.uniforms.shape[1] - 1)].flatten()


def propose(
    logits: Tensor, rows: Tensor, uniforms: Tensor, slots: Slots, mask_token_id: int, *, truncates: bool = True
) -> Proposals:
    """What each of M positions would be. `logits` [M, V], `rows` [M]: the slot of each, `uniforms` [M]. `truncates`:
    one of them may be drawn with top-k or top-p."""
    numbers, factors = slots.numbers[rows].long(), slots.factors[rows]
    logits = forbid(logits.float(), mask_token_id)
    unused = torch.arange(logits.shape[-1], device=logits.device) >= numbers[:, at.VOCABULARY, None]
    scaled = logits.masked_fill_(unused, float("-inf")) / factors[:, at.TEMPERATURE, None].float()
    filtered = truncate_rows(scaled, numbers[:, at.TOP_K], factors[:, at.TOP_P].float()) if truncates else scaled
    drawn = draw(filtered.softmax(-1), uniforms)
    best = scaled.argmax(-1)

    mode = numbers[:, at.MODE]
    samples = mode == RESOLVED_MODES.index("sample")
    tokens = torch.where(samples, drawn, best)
    source = torch.where(samples[:, None], filtered, scaled)
    logprobs = source.gather(-1, tokens[:, None])[:, 0] - source.logsumexp(-1)
    logprobs = logprobs.masked_fill(mode == RESOLVED_MODES.index("compat"), 0.0)
    return Proposals(tokens.int(), logprobs, entropy(scaled), source)


def likeliest_of(
    found: Proposals, rows: Tensor, places: Tensor, asked: Mapping[int, int]
) -> dict[tuple[int, int], Likeliest]:
    """By slot and place in its block, the most likely tokens of those of M positions whose slots ask for them.

    `rows`, `places` [M]: of each. `asked`: how many, by slot, of one slot at least. The host waits for the device.
    """
    assert found.source is not None
    own = torch.isin(rows, torch.tensor(list(asked), device=rows.device))
    told = likeliest(found.source[own], max(asked.values()))
    keys = zip(rows[own].tolist(), places[own].tolist(), strict=True)
    return {key: one[: asked[key[0]]] for key, one in zip(keys, told, strict=True)}


def truncate_rows(logits: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """`sampling.truncate` with a `top_k` and a `top_p` for each row of `logits` [M, V]; 0 and 1 leave a row alone."""
    values, order = logits.sort(dim=-1, descending=True, stable=True)
    vocabulary = logits.shape[-1]
    top_k = torch.where(top_k == 0, vocabulary, top_k)
    values = values.masked_fill(torch.arange(vocabulary, device=logits.device) >= top_k[:, None], float("-inf"))
    probabilities = values.softmax(-1)
    before = probabilities.cumsum(-1) - probabilities
    cut = (before >= top_p[:, None]) & (top_p < 1)[:, None]
    cut[:, 0] = False  # the best token always survives
    values = values.masked_fill(cut, float("-inf"))
    return torch.empty_like(logits).scatter_(-1, order, values)


def select(found: Proposals, wanted: Tensor, slots: Slots, texts: Tensor) -> Tensor:
    """Which positions to reveal now: boolean [T, B], by `sampling.select`'s rules. `wanted` [T, B]; `texts` [T]: the
    slot of each."""
    numbers, factors = slots.numbers[texts].long(), slots.factors[texts]
    masked = wanted > 0
    logprobs = found.logprobs.view(masked.shape).double()
    entropies = found.entropies.view(masked.shape).double()
    step = torch.minimum(numbers[:, at.BLOCK_STEP], numbers[:, at.STEPS] - 1)
    count = numbers[:, at.COUNT] + (step < numbers[:, at.EXTRA])
    count = torch.minimum(count.clamp_min(1), masked.sum(1))[:, None]

    sure = masked & (logprobs.exp() > factors[:, at.THRESHOLD, None])
    surest = masked & (_rank(-logprobs, masked) < count)
    leftmost = masked & (masked.long().cumsum(1) <= count)
    rank = _rank(entropies, masked)
    before = masked[:, None] & (rank[:, None] <= rank[..., None])
    total = torch.where(before, entropies[:, None], 0.0).sum(-1)
    bounded = masked & ((rank == 0) | (total < factors[:, at.BOUND, None]))

    by_strategy = {
        "sequential": leftmost,
        "low_confidence_static": surest,
        "low_confidence_dynamic": torch.where(sure.sum(1, keepdim=True) >= count, sure, surest),
        "entropy_bounded": bounded,
    }
    every = torch.stack([by_strategy[name] for name in STRATEGIES])
    return every[numbers[:, at.STRATEGY], torch.arange(len(texts), device=texts.device)]


def _rank(values: Tensor, masked: Tensor) -> Tensor:
    """How many masked positions of its row come before each one: smaller `values` [T, B], or as small and further
    left."""
    place = torch.arange(values.shape[1], device=values.device)
    smaller = values[:, None] < values[..., None]
    as_small = (values[:, None] == values[..., None]) & (place[None, None] < place[None, :, None])
    return (masked[:, None] & (smaller | as_small)).sum(-1)


def reveal(found: Proposals, plan: Plan, slots: Slots) -> Tensor:
    """Write what the step reveals into the tables, and move its texts on; returns its results, int32 [T, 1 + 2 * B].

    A row is (slot or -1, the token revealed at each position of the block or `NOT_REVEALED`, the bits of the
    log-probabilities).
    """
    size = slots.shape.block_size
    used = plan.tiles[:, 0] >= 0
    texts = plan.tiles[used, 0].long()
    wanted, tokens = plan.wanted.view(-1, size)[used], found.tokens.view(-1, size)[used]
    part = Proposals(tokens, found.logprobs.view(-1, size)[used], found.entropies.view(-1, size)[used])
    chosen = select(part, wanted, slots, texts)

    numbers = slots.numbers[texts].long()
    start = numbers[:, at.BLOCK_START]
    where = start[:, None] + torch.arange(size, device=slots.device)
    slots.ids[texts[:, None], where] = torch.where(chosen, tokens, slots.ids[texts[:, None], where])
    masked = (wanted > 0) & ~chosen
    full = ~masked.any(1)
    ending = slots.stops[numbers[:, at.STOP_SET, None], slots.ids[texts[:, None], where].long().clamp_min(0)] > 0
    stopped = full & ((slots.opened[texts] > 0) & ending).any(1)
    goes_on = full & ~stopped & (start + 2 * size <= numbers[:, at.OPEN_UNTIL])

    slots.numbers[texts, at.DRAWN] += (wanted > 0).sum(1).int()
    slots.numbers[texts, at.ACTIVE] = (~full | goes_on).int()
    slots.numbers[texts, at.BLOCK_START] = torch.where(goes_on, start + size, start).int()
    slots.numbers[texts, at.UNCOMMITTED] = goes_on.int()
    slots.numbers[texts, at.BLOCK_STEP] = torch.where(goes_on, 0, numbers[:, at.BLOCK_STEP] + 1).int()
    slots.masked[texts] = (masked | goes_on[:, None]).to(torch.int8)
    slots.opened[texts] = torch.where(goes_on[:, None], 1, slots.opened[texts])

    results = torch.full((len(used), 1 + 2 * size), NOT_REVEALED, dtype=torch.int32, device=slots.device)
    bits = part.logprobs.contiguous().view(torch.int32)
    results[used] = torch.cat((texts[:, None].int(), torch.where(chosen, tokens, NOT_REVEALED), bits), 1)
    return results
