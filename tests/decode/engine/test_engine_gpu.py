"""On a GPU: the recorded steps write what the plain decoder writes, whatever the size of the batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from decoding_helpers import CONFIG, prompt_of
from engine_helpers import assert_same, plain, requests, submit

from dice.decode.block_diffusion import denoise, new_texts
from dice.decode.engine.batch import can_run, new_engine
from dice.decode.engine.weights import Projection
from dice.decode.generate import DecodeConfig, generate
from dice.model.sdar import SDAR

pytestmark = pytest.mark.gpu


@pytest.fixture
def wide() -> SDAR:
    """Heads of 16, the least that the kernels take."""
    torch.manual_seed(0)
    model = SDAR(replace(CONFIG, head_dim=16))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if not name.endswith("norm.weight"):
                weight.normal_(0, 0.3)
    return model.cuda()


@pytest.mark.parametrize("block_size", [4, 8, 16])
def test_texts_are_those_of_the_plain_decoder(wide: SDAR, block_size: int) -> None:
    assert can_run(wide)
    wanted = requests(40, block_size, seed=block_size)
    engine = new_engine(wide, 12, 128, block_size)
    handles = submit(engine, wanted)
    engine.run()
    for handle, request in zip(handles, wanted, strict=True):
        assert_same(handle.trace, plain(wide, request), atol=1e-3)
    assert engine._runner.graphs  # type: ignore[attr-defined]


def test_products_in_two_parts_add_up_to_the_same_texts(wide: SDAR, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where they are quicker is found out in the middle of a run, when a size of step first comes up."""
    from dice.decode.engine import cuda  # both need Triton
    from dice.decode.engine.kernels import few_rows

    really, timed = few_rows._quicker_in_parts, []

    def quicker(projections: Sequence[Projection], rows: int) -> bool:
        timed.append((rows, really(projections, rows)))
        return True

    monkeypatch.setattr(cuda, "LARGE_MODEL", 0)
    monkeypatch.setattr(few_rows, "_quicker_in_parts", quicker)
    wanted = requests(40, 4, seed=11)
    engine = new_engine(wide, 12, 128, 4)
    handles = submit(engine, wanted)
    engine.run()
    for handle, request in zip(handles, wanted, strict=True):
        assert_same(handle.trace, plain(wide, request), atol=1e-3)
    assert timed, "no size of step was timed"


def test_generate_uses_the_engine_and_notices_new_weights(wide: SDAR) -> None:
    config = DecodeConfig(max_new_tokens=30, temperature=0.0, stop_ids=frozenset())
    prompts = [prompt_of(length, seed=length) for length in (5, 70, 11)]
    for _ in range(2):
        expected = denoise(wide, new_texts(wide, prompts, config, range(3)), config)
        for found, theirs in zip(generate(wide, prompts, config), expected, strict=True):
            assert_same(found, theirs, atol=1e-3)
        with torch.no_grad():
            wide.lm_head.weight.mul_(-1)
    wide.to(torch.bfloat16)
    assert all(len(trace.token_ids) >= 30 for trace in generate(wide, prompts, config))
