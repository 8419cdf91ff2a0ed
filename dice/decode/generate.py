"""Generation: `generate` takes a model of any family, and hands the prompts to the decoder of its kind."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from dice.decode.autoregressive import generate_autoregressive
from dice.decode.block_diffusion import denoise, new_texts
from dice.decode.diffusion import DiffusionConfig, generate_diffusion
from dice.decode.request import (
    ContextLengthError,
    DecodeConfig,
    DecodeError,
    StepEvent,
    prompt_seeds,
    sample_seeds,
)
from dice.decode.text import Text
from dice.decode.trace import Trace
from dice.model.sdar import SDAR

__all__ = [
    "ContextLengthError",
    "DecodeConfig",
    "DecodeError",
    "DiffusionConfig",
    "StepEvent",
    "generate",
    "sample_seeds",
]

ENGINE = "DICE_ENGINE"  # the environment variable that is 1 or 0 where the engine is to write on a GPU, or never
# Else it writes so many texts, or those of a model with so many parameters: where Triton has not compiled its kernels
# before, that takes some ten seconds, in which the plain loop writes several texts of a small model.
ENGINE_TEXTS, ENGINE_PARAMETERS = 8, 300_000_000


def generate(
    model: SDAR,
    prompts: Sequence[Sequence[int]],
    config: DecodeConfig | DiffusionConfig,
    on_step: Callable[[StepEvent], None] | None = None,
    seeds: Sequence[int] | None = None,
    on_trace: Callable[[int, Trace], None] | None = None,
    *,
    engine: bool | None = None,
) -> list[Trace]:
    """Write an answer to each prompt (token ids); traces come back in the order of `prompts`.

    The model's family decides how: by block diffusion, token after token, or by diffusion of the whole answer. The
    last alone takes a `DiffusionConfig`, and makes its family's own from a `DecodeConfig`. On a GPU with Triton the
    engine writes the first two kinds where that pays (`ENGINE_TEXTS`, `ENGINE_PARAMETERS`; the environment variable
    DICE_ENGINE decides where it is 1 or 0), and anywhere where the model is cut over ranks (`model.tensor_parallel`);
    elsewhere a plain loop does, and both write the same but for rounding. `engine` True or False asks for one of them,
    the engine also on a CPU.

    Prompt i draws its randomness from `seeds[i]`, by default from (config.seed, i), and from nothing else: apart from
    floating-point rounding its result does not depend on its batch. `on_trace` is called with (prompt's index, trace)
    of each text: in block diffusion as soon as that text ends, while others are still being written. Raises
    `ContextLengthError` before any work when a prompt and `max_new_tokens` exceed the model's context, `DecodeError`
    for other impossible requests.
    """
    kind = model.config.traits.kind
    if kind == "diffusion":
        own = config if isinstance(config, DiffusionConfig) else DiffusionConfig.published(model.config, config)
        return _reported(generate_diffusion(model, prompts, own, on_step, seeds), on_trace)
    if isinstance(config, DiffusionConfig):
        raise DecodeError(f"A DiffusionConfig is for whole-answer diffusion; {model.config.family} takes DecodeConfig.")
    chosen = _has_engine(model, len(prompts)) if engine is None else engine
    if kind == "autoregressive" and not chosen:
        return _reported(generate_autoregressive(model, prompts, config, on_step, seeds), on_trace)
    texts = new_texts(model, prompts, config, prompt_seeds(config.seed, seeds, len(prompts)))
    return write(model, texts, config, on_step, on_trace, engine=chosen)


def write(
    model: SDAR,
    texts: Sequence[Text],
    config: DecodeConfig,
    on_step: Callable[[StepEvent], None] | None = None,
    on_trace: Callable[[int, Trace], None] | None = None,
    *,
    engine: bool | None = None,
) -> list[Trace]:
    """Write what is masked in `texts`, block by block: by the engine where it runs, else by the plain loop."""
    if not (_has_engine(model, len(texts)) if engine is None else engine):
        return denoise(model, texts, config, on_step, on_trace)
    from dice.decode.engine.batch import denoise_batch

    return denoise_batch(model, texts, config, on_step, on_trace)


def _has_engine(model: SDAR, texts: int) -> bool:
    if model.tensor_parallel > 1:
        return True
    said = os.environ.get(ENGINE, "")
    if said == "0" or not model.lm_head.weight.is_cuda:
        return False
    if said != "1" and texts < ENGINE_TEXTS and _parameters(model) < ENGINE_PARAMETERS:
        return False
    from dice.decode.engine.batch import can_run

    return can_run(model)


def _parameters(model: SDAR) -> int:
    return sum(weight.numel() for weight in model.parameters())


def _reported(traces: list[Trace], on_trace: Callable[[int, Trace], None] | None) -> list[Trace]:
    """`traces`, after `on_trace` was called with each."""
    if on_trace is not None:
        for index, trace in enumerate(traces):
            on_trace(index, trace)
    return traces
