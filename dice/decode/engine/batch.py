"""`generate` by the engine: texts that are all there at once. And the engine that suits a model."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Sequence
from functools import partial
from weakref import WeakKeyDictionary

import torch

from dice.decode.engine.engine import PAGE_POSITIONS, Engine, Handle
from dice.decode.engine.rank import free_bytes
from dice.decode.engine.ranks import Leader, Ranks
from dice.decode.engine.runner import Runner
from dice.decode.request import DecodeConfig, StepEvent
from dice.decode.text import Text
from dice.decode.trace import Trace
from dice.model.sdar import SDAR

# An engine is kept for the next call where the model and the keys and values take less than this: recording graphs
# takes a second, but memory that nobody sees is missed by others.
KEPT_BYTES = 2**30
# Of the memory that is free, for keys and values; the rest is for what a step computes.
CACHE_SHARE = 0.8

_kept: list[Engine] = []
_ranks: WeakKeyDictionary[SDAR, Ranks] = WeakKeyDictionary()


def can_run(model: SDAR) -> bool:
    """Whether the engine's kernels run this model, or this shard, where it is."""
    config, weight = model.config, model.lm_head.weight
    head_dim, kind = config.head_dim, config.traits.kind
    return (
        weight.is_cuda
        and kind != "diffusion"
        and head_dim >= 16
        and math.log2(head_dim).is_integer()
        and weight.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and importlib.util.find_spec("triton") is not None
    )


def new_engine(model: SDAR, slots: int, context: int, block_size: int | None = None, *, fp8: bool = False) -> Engine:
    """An engine of the kind that suits the model and where it is: over as many ranks as `model.tensor_parallel` says,
    and with kernels and graphs where those run. On a GPU it has keys and values for as much of `slots` texts of
    `context` positions as there is memory for, be it less than one of them (`Engine.longest`)."""
    ranks = ranks_of(model) if model.tensor_parallel > 1 else None
    shard = model if ranks is None else ranks.model
    make_runner: Callable[..., Runner] = Runner
    if can_run(shard):
        from dice.decode.engine.cuda import GraphRunner

        make_runner = GraphRunner
    if ranks is None and make_runner is not Runner:
        model.fuse()
    fitting = slots * (context + PAGE_POSITIONS)
    if shard.lm_head.weight.is_cuda:
        free = free_bytes() if ranks is None else ranks.free_bytes()
        fitting = max(min(fitting, int(free * CACHE_SHARE) // position_bytes(shard)), PAGE_POSITIONS)
    return Engine(
        model, slots=slots, context=context, cache_tokens=fitting, block_size=block_size, fp8=fp8,
        make_runner=make_runner if ranks is None else partial(Leader, ranks, make_runner),
    )  # fmt: skip


def ranks_of(model: SDAR) -> Ranks:
    """The processes that have this model's parts: started with its first engine, kept for as long as it is there."""
    ranks = _ranks.get(model)
    if ranks is None or ranks.lost or ranks.size != model.tensor_parallel:
        ranks = _ranks[model] = Ranks(model, model.tensor_parallel, "cuda" if torch.cuda.is_available() else "cpu")
    elif ranks.stale(model):
        ranks.hand_out(model)
    return ranks


def position_bytes(model: SDAR) -> int:
    """What the keys and values of one position take."""
    config = model.config
    numbers = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    return numbers * model.lm_head.weight.element_size()


def denoise_batch(
    model: SDAR,
    texts: Sequence[Text],
    config: DecodeConfig,
    on_step: Callable[[StepEvent], None] | None = None,
    on_trace: Callable[[int, Trace], None] | None = None,
    make_engine: Callable[..., Engine] = new_engine,
) -> list[Trace]:
    """`block_diffusion.denoise` by the engine, for models of every kind that it runs."""
    if not texts:
        return []
    slots, context = min(config.max_active, len(texts)), max(text.length for text in texts)
    engine = _engine(model, slots, context, texts[0].block_size, make_engine)

    def report(handle: Handle) -> None:
        if on_trace is not None and handle.trace is not None:
            on_trace(handle.text.index, handle.trace)

    try:
        handles = [engine.add(text, config, on_step, report) for text in texts]
        engine.run()
    except BaseException:
        engine.abort_all()
        raise
    _keep(engine)
    return [handle.trace for handle in handles if handle.trace is not None]


def _engine(model: SDAR, slots: int, context: int, block_size: int, make_engine: Callable[..., Engine]) -> Engine:
    """The engine of the last call if it serves this one, else a new one."""
    while _kept:
        engine = _kept.pop()
        if engine.model is model and engine.holds(slots, context, block_size):
            if engine.stale():
                engine.refresh()
            return engine
    # A little more than asked for, so that the next call can use it too, or an engine of the same shapes: for others
    # Triton compiles kernels anew, which takes some ten seconds.
    limit = model.config.max_position_embeddings
    context = min(limit, max(1 << (context - 1).bit_length(), 1024)) if context <= limit else context
    return make_engine(model, slots if slots < 16 else -(-slots // 16) * 16, context, block_size)


def _keep(engine: Engine) -> None:
    model = engine.model
    weights = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    # The other ranks' memory is nobody else's, and starting them takes longer than anything here.
    if (
        model.tensor_parallel > 1
        or weights + engine.pages.count * engine.pages.size * position_bytes(model) <= KEPT_BYTES
    ):
        _kept.append(engine)
