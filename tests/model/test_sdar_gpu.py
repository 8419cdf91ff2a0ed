"""The same promises on a GPU: other kernels, same numbers."""

from __future__ import annotations

import pytest
import torch
from tiny_model import TINY, lively

from dice.model.mask import BlockLayout

pytestmark = pytest.mark.gpu


@torch.no_grad()
def test_logits_equal_those_of_the_cpu() -> None:
    tokens = torch.randint(0, 90, (2, 64), generator=torch.Generator().manual_seed(0))
    expected = lively(TINY)(tokens)
    logits = lively(TINY).cuda()(tokens.cuda())
    torch.testing.assert_close(logits.cpu(), expected, atol=1e-2, rtol=1e-2)


@torch.no_grad()
@pytest.mark.parametrize("fused", [False, True])
def test_ragged_steps_equal_full_passes(fused: bool) -> None:
    model = lively(TINY).cuda()
    if fused:
        model.fuse()
    tokens = torch.randint(0, 90, (3, 64), generator=torch.Generator().manual_seed(0)).cuda()
    full, starts = model(tokens), [4, 40, 20]
    cache = model.new_cache(3, 64)
    model.prefill(tokens[:, :40], cache, 4)
    window = torch.stack([tokens[row, start : start + 8] for row, start in enumerate(starts)])
    logits = model.logits(model.step(window, starts, cache, 4))
    for row, start in enumerate(starts):
        torch.testing.assert_close(logits[row], full[row, start : start + 8], atol=1e-2, rtol=1e-2)


@torch.no_grad()
@pytest.mark.parametrize("block_size", [4, 16])
def test_compiled_flex_attention_equals_the_dense_mask(block_size: int) -> None:
    """FlexAttention's tiles of 128 were reported to give wrong masks at small block sizes."""
    model = lively(TINY).cuda()
    positions = torch.cat((torch.arange(90), torch.arange(38)))[None].cuda()
    documents = torch.cat((torch.zeros(90), torch.ones(38)))[None].long().cuda()
    layout = BlockLayout.noisy_clean(positions, block_size, documents)
    tokens = torch.randint(0, 90, (1, 256), generator=torch.Generator().manual_seed(0)).cuda()
    dense = model(tokens, layout.position_ids, layout.dense())
    flex = model(tokens, layout.position_ids, layout.block_mask())
    torch.testing.assert_close(flex, dense, atol=2e-2, rtol=2e-2)
