"""The kernels in Triton's interpreter, or on a GPU where there is one; see `kernel_checks`."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import replace

import pytest
import torch

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is not installed", allow_module_level=True)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("Triton was imported before its interpreter was asked for", allow_module_level=True)

from engine_helpers import assert_same, plain, requests, submit  # noqa: E402
from kernel_checks import (  # noqa: E402
    Case,
    check_attention,
    check_drawing,
    check_few_rows,
    check_prefixes,
    check_rows,
    check_split,
    check_step,
)

from dice.decode.engine.engine import Engine  # noqa: E402
from dice.decode.engine.kernels import ops  # noqa: E402
from dice.decode.engine.plan import Room  # noqa: E402
from dice.decode.engine.runner import Results, Runner  # noqa: E402
from dice.model.sdar import SDAR  # noqa: E402

CASE = Case(device=DEVICE)


@pytest.fixture(autouse=True)
def several_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "SEGMENT", 32)


def test_norms_and_activations() -> None:
    check_rows(CASE)


def test_products_of_few_rows() -> None:
    check_few_rows(CASE)


@pytest.mark.parametrize("programs", [1, 64])
@pytest.mark.parametrize(
    "case", [CASE, replace(CASE, block_size=8, norms=False), replace(CASE, heads=(8, 1, 16), block_size=16)]
)
def test_attention_over_pages(case: Case, programs: int) -> None:
    check_attention(case, programs)


@pytest.mark.parametrize("programs", [1, 64])
@pytest.mark.parametrize("case", [replace(CASE, page_size=8), replace(CASE, page_size=16, slots=14, context=192)])
def test_attention_to_what_texts_have_in_common(case: Case, programs: int) -> None:
    check_prefixes(case, programs)


@pytest.mark.parametrize("block_size", [1, 4, 8])
def test_steps(block_size: int) -> None:
    check_step(replace(CASE, block_size=block_size), Room(5, 10))


def test_steps_of_models_that_predict_the_next_token() -> None:
    check_step(replace(CASE, block_size=1, shift=True), Room(5, 5))


def test_steps_with_little_room() -> None:
    check_step(CASE, Room(3, 4))


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_vocabulary_that_is_cut_over_ranks(ranks: int) -> None:
    check_split(CASE, ranks)


def test_draws_follow_their_distribution() -> None:
    assert check_drawing(replace(CASE, vocabulary=40), 30) < 0.25


def test_the_engine_on_kernels_writes_what_the_plain_decoder_does(model: SDAR) -> None:
    class Kernels(Runner):
        """What `GraphRunner` computes, without graphs."""

        def step(self, room: Room, *, truncates: bool, asked: object):  # type: ignore[no-untyped-def]
            slots, buffers = self.slots, ops.StepBuffers.empty(room, self.slots.shape, self.device)
            ops.plan_step(slots, room, buffers)
            hidden = self.forward.hidden(buffers.plan, slots, slots.shape.window)
            ops.propose(self.forward.logits(hidden, buffers.plan.head_rows), slots, buffers, self.mask_token_id)
            ops.reveal(slots, buffers)
            results = Results(buffers.results.cpu().numpy())
            return lambda: results

    def make(*args, **settings):  # type: ignore[no-untyped-def]
        runner = Kernels(*args, **settings)
        runner.forward.ops = ops.KernelOps(1)
        return runner

    model = model.to(DEVICE)
    wanted = [
        replace(one, config=replace(one.config, max_new_tokens=4, top_k=None, top_p=None)) for one in requests(3, 4)
    ]
    engine = Engine(model, slots=3, context=64, block_size=4, page_size=32, make_runner=make)
    handles = submit(engine, wanted)
    engine.run()
    for handle, request in zip(handles, wanted, strict=True):
        assert_same(handle.trace, plain(model, request))
