"""The block-diffusion mask, against its definition token by token and against FlexAttention."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention.flex_attention import create_mask, flex_attention

from dice.model.mask import BlockLayout, block_causal_mask

BLOCK_SIZES = (1, 4, 8, 16, 32)
PACKINGS = ((37,), (5, 1, 64, 3), (33, 31))


def packed(lengths: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    documents = torch.cat([torch.full((length,), index) for index, length in enumerate(lengths)])[None]
    return positions, documents


def by_definition(positions: list[int], documents: list[int], block_size: int, noisy_views: int) -> torch.Tensor:
    """The three cases of the specification, spelled out for one pair of tokens at a time."""
    copies = [*range(1, noisy_views + 1), 0]
    tokens = [(v, d, p // block_size) for v in copies for p, d in zip(positions, documents, strict=True)]
    rows = []
    for q_view, q_document, q_block in tokens:
        row = []
        for k_view, k_document, k_block in tokens:
            if q_document != k_document:
                row.append(False)
            elif q_view and k_view:
                row.append(q_view == k_view and q_block == k_block)
            elif q_view:
                row.append(k_block < q_block)
            else:
                row.append(not k_view and k_block <= q_block)
        rows.append(row)
    return torch.tensor(rows)


@pytest.mark.parametrize("noisy_views", [1, 2])
@pytest.mark.parametrize("lengths", PACKINGS)
@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_dense_mask_is_the_definition(block_size: int, lengths: tuple[int, ...], noisy_views: int) -> None:
    positions, documents = packed(lengths)
    layout = BlockLayout.noisy_clean(positions, block_size, documents, noisy_views)
    expected = by_definition(positions[0].tolist(), documents[0].tolist(), block_size, noisy_views)
    assert torch.equal(layout.dense()[0, 0], expected)


@pytest.mark.parametrize("lengths", PACKINGS)
@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_flex_mask_equals_dense_mask(block_size: int, lengths: tuple[int, ...]) -> None:
    positions, documents = packed(lengths)
    layout = BlockLayout.noisy_clean(positions, block_size, documents)
    length = layout.position_ids.shape[1]
    assert torch.equal(create_mask(layout.mask_mod(), 1, 1, length, length, device="cpu"), layout.dense())


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_with_its_tiles_equals_dense_attention(block_size: int) -> None:
    """FlexAttention skips whole 128-token tiles; small blocks inside them must survive that."""
    torch.manual_seed(0)
    rows = [packed((150, 41, 9)), packed((1, 100, 99))]
    positions, documents = (torch.cat([row[part] for row in rows]) for part in (0, 1))
    layout = BlockLayout.noisy_clean(positions, block_size, documents)
    q, k, v = torch.randn(3, 2, 2, layout.position_ids.shape[1], 16)
    flex = flex_attention(q, k, v, block_mask=layout.block_mask())
    dense = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=layout.dense())
    torch.testing.assert_close(flex, dense, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_plain_block_causal_mask(block_size: int) -> None:
    positions = torch.arange(45)[None]
    block = torch.arange(45) // block_size
    assert torch.equal(block_causal_mask(positions, block_size)[0, 0], block[:, None] >= block[None, :])


def test_the_grid_is_absolute() -> None:
    """A row that starts in the middle of a document keeps the document's blocks."""
    mask = block_causal_mask(torch.arange(3, 9)[None], 4)[0, 0]
    assert mask[0].tolist() == [True, False, False, False, False, False]  # position 3 ends block 0
    assert mask[1].tolist() == [True, True, True, True, True, False]  # position 4 opens block 1


def test_every_token_sees_itself() -> None:
    positions, documents = packed((3, 7))
    layout = BlockLayout.noisy_clean(positions, 4, documents, noisy_views=3)
    assert layout.dense()[0, 0].diagonal().all()
