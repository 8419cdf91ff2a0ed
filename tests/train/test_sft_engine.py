"""The sparse mask is the dense one, and an engine that errs or breaks is not used."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask
from training_helpers import MASK_ID, PAD_ID, random_documents, tiny_model

import dice.train.engine
from dice.errors import MachineError
from dice.model.sdar import SDAR
from dice.train.attention import DenseMask, FlexMask, fits_tiles, tiles
from dice.train.blocks import RECOMPUTE_BLOCKS, set_blocks
from dice.train.engine import Engine, disagreement, pick_engine
from dice.train.packing import PackedRows, pack


def long_rows(block_size: int, count: int = 4, seed: int = 0) -> PackedRows:
    documents = random_documents(30, seed=seed, longest=300)
    rows = pack(documents, row_tokens=384, block_size=block_size, pad_id=PAD_ID)
    return rows.take(torch.arange(count))


def listed(numbers: Tensor, indices: Tensor) -> Tensor:
    """A BlockMask's lists of tiles as flags [R, T, T]."""
    count = indices.shape[-1]
    flags = torch.zeros(len(numbers), count, count + 1, dtype=torch.bool)
    used = torch.arange(count) < numbers[:, 0, :, None]
    return flags.scatter(2, torch.where(used, indices[:, 0].long(), count), True)[..., :count]


@pytest.mark.parametrize("block_size", [1, 4, 8, 32, 128])
def test_tiles_are_those_of_the_mask_itself(block_size: int) -> None:
    """Against FlexAttention's own builder, which evaluates the mask at every pair of tokens."""
    mask = FlexMask(block_size)
    for seed in (0, 1):  # the second batch goes through the in-place update
        batch = long_rows(block_size, seed=seed)
        length, rule = 2 * batch.row_tokens, batch.layout(block_size).mask_mod()
        reference = create_block_mask(rule, len(batch), None, length, length, device="cpu")
        ours = mask(batch)
        for kind in ("kv", "full_kv", "q", "full_q"):
            lists = [(getattr(m, f"{kind}_num_blocks"), getattr(m, f"{kind}_indices")) for m in (ours, reference)]
            assert torch.equal(listed(*lists[0]), listed(*lists[1])), kind
        assert reference.kv_num_blocks.sum() + reference.full_kv_num_blocks.sum() > 0


@pytest.mark.parametrize("block_size", [4, 8])
def test_tiles_agree_with_the_dense_mask(block_size: int) -> None:
    batch = long_rows(block_size)
    dense = DenseMask(block_size)(batch)[:, 0].unflatten(2, (-1, 128)).unflatten(1, (-1, 128))
    partial, full = tiles(batch.layout(block_size))
    assert torch.equal(dense.any(4).any(2), partial | full)
    assert torch.equal(dense.all(4).all(2), full)


def test_one_mask_object_serves_every_batch() -> None:
    mask = FlexMask(4)
    first = mask(long_rows(4, seed=0))
    pointers = {name: value.data_ptr() for name, value in vars(first).items() if isinstance(value, Tensor)}
    second = mask(long_rows(4, seed=1))
    assert second is first
    assert pointers == {name: value.data_ptr() for name, value in vars(second).items() if isinstance(value, Tensor)}


@pytest.mark.parametrize("captured", [False, True])
def test_flex_attention_gives_the_dense_result(captured: bool) -> None:
    """Forward only, which is all it does on a CPU. Captured: the compiler's front end takes the model, the mask object
    and its in-place updates as one graph, once for all batches."""
    torch._dynamo.reset()  # what other tests of this process made it compile is no recompilation of ours
    model, mask = tiny_model(4, torch.float32).requires_grad_(False), FlexMask(4)
    graph = torch.compile(model.hidden, backend="aot_eager", dynamic=False, fullgraph=True)
    hidden = graph if captured else model.hidden
    flex, dense = Engine(hidden, mask, "flex"), Engine(model.hidden, DenseMask(4), "dense")
    with torch._dynamo.config.patch(error_on_recompile=True):
        for seed in (0, 1):
            batch = long_rows(4, seed=seed)
            torch.testing.assert_close(flex(batch.tokens, batch), dense(batch.tokens, batch), rtol=1e-4, atol=1e-4)


class WrongMask(DenseMask):
    """Each way a mask can be wrong in one 128-token tile or one document."""

    def __init__(self, fault: str) -> None:
        super().__init__(4)
        self.fault = fault

    def __call__(self, batch: PackedRows) -> Tensor:
        mask = super().__call__(batch)
        length = batch.row_tokens
        if self.fault == "documents":
            mask |= super().__call__(replace(batch, documents=batch.documents * 0))
        elif self.fault == "missing tile":
            mask[0, :, 256:384, length : length + 128] = False
        elif self.fault == "sees the answer":
            mask[:, :, :length, length:] |= mask[:, :, length:, length:]
        return mask


@pytest.mark.parametrize("fault", ["documents", "missing tile", "sees the answer"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_wrong_mask_is_noticed(fault: str, dtype: torch.dtype) -> None:
    """Also in a freshly initialised model, whose attention hardly speaks, and in bfloat16."""
    model = fresh_model(dtype)
    reference = Engine(model.hidden, DenseMask(4), "dense")
    assert disagreement(Engine(model.hidden, WrongMask("none"), "x"), reference, model, one_long_row(), MASK_ID) is None
    problem = disagreement(Engine(model.hidden, WrongMask(fault), "x"), reference, model, one_long_row(), MASK_ID)
    assert problem is not None and "differs" in problem


def fresh_model(dtype: torch.dtype) -> SDAR:
    model = tiny_model(4, torch.float32)
    model.config.__dict__["initializer_range"] = 0.02
    model.init_weights()
    return model.to(dtype)


def one_long_row() -> PackedRows:
    """A 300-token document and a shorter one, so that the second and third tile look back across tiles."""
    documents = [d for d in random_documents(60, longest=380) if len(d.ids) > 290][:1] + random_documents(1, longest=60)
    rows = pack(documents, row_tokens=384, block_size=4, pad_id=PAD_ID)
    return rows.take(torch.arange(1))


def test_a_broken_compiler_falls_back_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> object:
        def fail(*_: object) -> Tensor:
            raise RuntimeError("no compiler for this device")

        return fail

    monkeypatch.setattr(dice.train.engine.torch, "compile", broken)
    model, said = tiny_model(4, torch.float32), []
    before = [weight.clone() for weight in model.parameters()]
    engine = pick_engine(model, long_rows(4), 4, MASK_ID, attention="dense", compiled=True, say=said.append)
    assert engine.name == "dense"
    assert said == ["Not using dense, compiled attention: it fails here (RuntimeError: no compiler for this device)."]
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))


def test_blocks_share_one_compiled_graph_and_decoding_stays_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    graphs, compile_with = [], torch.compile

    def count(graph: torch.fx.GraphModule, _: list[Tensor]) -> object:
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(dice.train.engine.torch, "compile", lambda f, **how: compile_with(f, backend=count, **how))
    model, batch = SDAR(replace(tiny_model(4, torch.float32).config, num_hidden_layers=12)), long_rows(4)
    engine = pick_engine(
        model, batch, 4, MASK_ID, attention="dense", compiled=True, say=pytest.fail, recompute=RECOMPUTE_BLOCKS
    )  # fmt: skip
    for _ in range(2):
        engine(batch.tokens, batch).sum().backward()
    with torch.inference_mode():
        for length in (8, 16, 24):
            model.prefill(torch.arange(4, 4 + length)[None], model.new_cache(1, length), 4)
    assert engine.name == "dense, compiled" and len(graphs) == 1


def test_a_copied_model_computes_with_its_own_weights() -> None:
    model, batch = tiny_model(4), long_rows(4)
    set_blocks(model, compiled=False, recompute=RECOMPUTE_BLOCKS)
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for weight in model.model.layers.parameters():
            weight.zero_()
    assert not torch.allclose(copied(batch.tokens), model(batch.tokens))


def test_demanded_flex_attention_that_errs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dice.train.engine, "disagreement", lambda *_: "its output differs")
    said: list[str] = []
    with pytest.raises(MachineError, match="does not work on this machine"):
        pick_engine(tiny_model(4), long_rows(4), 4, MASK_ID, attention="flex", compiled=False, say=said.append)
    assert said == ["Not using flex attention: its output differs."]


def test_processors_without_kernels_use_the_dense_mask() -> None:
    engine = pick_engine(tiny_model(4), long_rows(4), 4, MASK_ID, attention="auto", compiled=False, say=pytest.fail)
    assert engine.name == "dense"


def test_shapes_for_tiles() -> None:
    assert [fits_tiles(*shape) for shape in ((384, 4), (384, 128), (400, 4), (384, 12))] == [True, True, False, False]


@pytest.mark.gpu
def test_compiled_flex_attention_agrees_on_the_gpu() -> None:
    model = tiny_model(4, torch.float32).to(device="cuda", dtype=torch.bfloat16)
    said: list[str] = []
    engine = pick_engine(model, long_rows(4).to("cuda"), 4, MASK_ID, attention="auto", compiled=True, say=said.append)
    assert (engine.name, said) == ("flex, compiled", [])
