"""`choose.propose` where every rank has the logits of its own part of the vocabulary.

The logits stay where they are. Ranks exchange, for each position, their greatest logit and sums of exponentials; these
say whose part the token lies in, and that rank tells which it is. What decides is gathered and not added up, so it is
the same to the last bit on all ranks: they never part.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from dice.decode.engine import slots as at
from dice.decode.engine.choose import Proposals
from dice.decode.engine.group import Group
from dice.decode.engine.slots import RESOLVED_MODES, Slots


def propose_split(
    logits: Tensor, rows: Tensor, uniforms: Tensor, slots: Slots, mask_token_id: int, group: Group
) -> Proposals:
    """What each of M positions would be, without top-k and top-p. `logits` [M, v]: of this rank's part of the
    vocabulary; `rows` [M]: the slot of each; `uniforms` [M]."""
    numbers, factors = slots.numbers[rows].long(), slots.factors[rows]
    first = group.shard.vocabulary(slots.shape.vocab_size).start
    token = first + torch.arange(logits.shape[1], device=logits.device)
    forbidden = (token >= numbers[:, at.VOCABULARY, None]) | (token == mask_token_id)
    scaled = logits.float().masked_fill(forbidden, float("-inf")) / factors[:, at.TEMPERATURE, None].float()

    peaks, sums, weighted = group.gather(_summary(scaled)).unbind(1)  # [ranks, M] each
    peak = peaks.amax(0)
    fade = (peaks - peak).exp()
    sums = sums * fade
    total = sums.sum(0)
    lower = torch.where(fade > 0, peaks - peak, 0.0)
    entropies = total.log() - (weighted * fade + sums * lower).sum(0) / total

    samples = numbers[:, at.MODE] == RESOLVED_MODES.index("sample")
    target, upto = uniforms * total, sums.cumsum(0)
    last = len(sums) - 1 - (sums > 0).flip(0).long().argmax(0)
    owner = torch.where(samples, (upto <= target).sum(0).minimum(last), (peaks == peak).long().argmax(0))
    before = (upto - sums).gather(0, owner[None])[0]
    place = torch.where(samples, _drawn(scaled, peak, target - before), scaled.argmax(1))
    own = scaled.gather(1, place[:, None])[:, 0].double()
    told = torch.stack((first + place.double(), own - peak - total.log()))
    told = group.add(torch.where(owner == group.shard.rank, told, 0.0))  # all but the owner add nothing
    compat = numbers[:, at.MODE] == RESOLVED_MODES.index("compat")
    return Proposals(told[0].int(), told[1].masked_fill(compat, 0.0).float(), entropies.float())


def whole_logits(logits: Tensor, vocabulary: int, group: Group) -> Tensor:
    """Logits [M, vocabulary] from every rank's [M, v]. Top-k and top-p sort them; steps with texts that draw so, and no
    others, pay for it."""
    size = group.shard.size
    if size == 1:
        return logits
    parts = [type(group.shard)(rank, size).vocabulary(vocabulary) for rank in range(size)]
    widest = max(map(len, parts))
    found = group.gather(F.pad(logits, (0, widest - logits.shape[1])))
    return torch.cat([rows[:, : len(part)] for rows, part in zip(found, parts, strict=True)], 1)


def _summary(scaled: Tensor) -> Tensor:
    """Of each row of logits [M, v]: the greatest, the sum of exp(logit - greatest), and the same weighted by the
    exponent; float64 [3, M]."""
    peak = scaled.amax(1)
    below = scaled - peak.masked_fill(peak == float("-inf"), 0.0)[:, None]
    share = below.exp().double()
    return torch.stack((peak.double(), share.sum(1), torch.where(share > 0, share * below, 0.0).sum(1)))


def _drawn(scaled: Tensor, peak: Tensor, target: Tensor) -> Tensor:
    """Where in each row [M, v] the sum of exp(logit - peak) passes `target` [M]; never where it is 0."""
    share = (scaled.double() - peak[:, None]).exp()
    found = torch.searchsorted(share.cumsum(1), target[:, None], right=True)[:, 0].clamp_max(share.shape[1] - 1)
    impossible = share.gather(1, found[:, None])[:, 0] == 0
    return torch.where(impossible, scaled.argmax(1), found)
