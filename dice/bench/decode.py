"""Decoding beside its limit: the engine, the plain decoder and transformers' `generate`, on random weights.

How many tokens a step reveals is forced, so that random weights measure speed fairly. The limit is computed from the
memory's bandwidth and the rate of products as measured in the same run: a forward cannot be shorter than reading what
it reads, or computing what it computes, whichever takes longer, one after the other for the layers' products, the head
and attention.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dice.decode.block_diffusion import denoise, new_texts
from dice.decode.engine.batch import new_engine
from dice.decode.engine.engine import Engine
from dice.decode.request import DecodeConfig, StepEvent
from dice.model.sdar import SDAR, SDARConfig
from dice.train.config import ModelShape

Figures = dict[str, Any]
# Steps before any is timed: enough to record every size of step and to time each.
WARM_UP = 24
# What others publish for SDAR's models, as they say it. None is measured here; none says all that a rate depends on.
PUBLISHED = (
    {"who": "JetEngine", "model": "SDAR-4B", "gpu": "H200", "batch": 128, "tokens_per_s": 5000,
     "unsaid": "tokens revealed a step, context, whether prompts count"},
    {"who": "SGLang", "model": "SDAR-8B", "gpu": "unsaid", "batch": 32, "tokens_per_s": 1600,
     "unsaid": "GPU, tokens revealed a step, context"},
    {"who": "SGLang", "model": "SDAR-8B", "gpu": "unsaid", "batch": 128, "tokens_per_s": 659,
     "unsaid": "GPU, tokens revealed a step, context"},
    {"who": "FOCUS", "model": "SDAR-8B, blocks of 32", "gpu": "unsaid", "batch": 32, "tokens_per_s": 2272,
     "unsaid": "GPU, context"},
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """What is measured: every combination of `batches`, `contexts` (prompt tokens) and `revealed` (tokens a step)."""

    shape: ModelShape
    vocab_size: int
    block_size: int
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    revealed: tuple[int, ...]
    steps: int
    fp8: bool = False
    seed: int = 0
    tensor_parallel: int = 1

    @property
    def model(self) -> SDARConfig:
        return self.shape.for_timing(self.vocab_size, self.block_size)


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Of this machine, measured: bytes a second that a sum reads, and operations a second of a chain of products."""

    bandwidth: float
    flops: float
    eighth_flops: float | None


@dataclass(slots=True)
class Load:
    """One combination, and how long a run must be for it."""

    batch: int
    context: int
    revealed: int
    steps: int
    seed: int
    vocabulary: int
    block_size: int

    @property
    def config(self) -> DecodeConfig:
        """Each step reveals the leftmost positions, and nothing ends a text."""
        # The first texts are being written while the last ones' prompts are still being read.
        reading = self.batch * self.context // 4096
        return DecodeConfig(
            max_new_tokens=(self.steps + 2 * WARM_UP + reading) * self.revealed + 2 * self.block_size,
            block_size=self.block_size, denoising_steps=self.block_size // self.revealed, remasking="sequential",
            stop_ids=frozenset(), seed=self.seed,
        )  # fmt: skip

    def fresh_prompts(self, turn: int) -> list[list[int]]:
        """Prompts that no one has read before."""
        chance = torch.Generator().manual_seed(1000 * self.seed + turn)
        # A tenth shorter at most, so that texts are at different places of their blocks.
        spread = max(1, min(self.context // 10, 2 * self.block_size))
        lengths = [self.context - index % spread for index in range(self.batch)]
        return [torch.randint(0, self.vocabulary - 1, (length,), generator=chance).tolist() for length in lengths]


class DecodeBench:
    """`say` hears of progress, `keep` of each row of figures as soon as there is one."""

    def __init__(
        self, plan: DecodePlan, device: torch.device, say: Callable[[str], None], keep: Callable[[Figures], None]
    ) -> None:
        self.plan, self.device, self.say, self.keep = plan, device, say, keep
        self.dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.ceilings = measure_ceilings(device, self.dtype, fp8=plan.fp8)
        self.model = random_model(plan.model, device, self.dtype, plan.seed)
        self.model.tensor_parallel = plan.tensor_parallel

    def run(self, contenders: Sequence[str], done: Callable[[Figures], bool] = lambda row: False) -> None:
        """Measure every combination for each contender ("engine", "engine fp8", "plain", "transformers"), but what is
        `done`."""
        for contender in contenders:
            measure = self._measure(contender)
            for load in self._loads(contender):
                row: Figures = {"who": contender, "batch": load.batch, "context": load.context, "t": load.revealed}
                if done(row):
                    continue
                self.say(f"{contender}, batch {load.batch}, context {load.context:,}, {load.revealed} a step")
                row |= self._limit(load, fp8=contender == "engine fp8", ranks=self._ranks(contender))
                row |= self._in_memory(measure, load)
                if "forward_ms" in row:
                    row["share_of_limit"] = row["limit_ms"] / row["forward_ms"]
                self.keep(row)

    def _loads(self, contender: str) -> Iterator[Load]:
        plan = self.plan
        # transformers' generate writes one token after another.
        revealed = (1,) if contender == "transformers" else plan.revealed
        for context in plan.contexts:
            for batch in plan.batches:
                for count in revealed:
                    yield Load(batch, context, count, plan.steps, plan.seed, plan.vocab_size, plan.block_size)

    def _measure(self, contender: str) -> Callable[[Load], Figures]:
        if contender == "plain":
            return self._plain
        if contender == "transformers":
            other = qwen3(self.plan.model, self.device, self.dtype)
            return lambda load: transformers_rate(other, load, self.device)
        return lambda load: self._engine(load, fp8=contender == "engine fp8")

    def _in_memory(self, measure: Callable[[Load], Figures], load: Load) -> Figures:
        """Figures with the memory they took; why there are none where it does not suffice."""
        cuda = self.device.type == "cuda"
        if cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        try:
            figures = measure(load)
        except torch.OutOfMemoryError:
            return {"failed": "out of memory"}
        return figures | {"peak_memory_bytes": torch.cuda.max_memory_allocated() if cuda else None}

    def _engine(self, load: Load, *, fp8: bool) -> Figures:
        length = load.context + load.config.max_new_tokens + load.block_size
        engine = new_engine(self.model, load.batch, length, load.block_size, fp8=fp8)
        self._run_engine(engine, load, 0)
        engine.abort_all()
        return self._run_engine(engine, load, 1)

    def _run_engine(self, engine: Engine, load: Load, turn: int) -> Figures:
        """Tokens and forwards between two moments at which nothing is under way."""
        revealed = 0
        first_block: float | None = None
        begun = time.perf_counter()

        def on_step(event: StepEvent) -> None:
            nonlocal revealed, first_block
            revealed += len(event.tokens)
            if first_block is None and event.step + 1 >= load.block_size // load.revealed:
                first_block = time.perf_counter() - begun

        handles = [
            engine.submit(prompt, load.config, seed, on_step=on_step)
            for seed, prompt in enumerate(load.fresh_prompts(turn))
        ]
        while any(handle.state in ("waiting", "reading") for handle in handles):
            engine.step()
        for _ in range(WARM_UP):
            engine.step()
        self._wait()
        before, started = revealed, time.perf_counter()
        for _ in range(load.steps):
            engine.step()
        self._wait()
        taken = time.perf_counter() - started
        return {
            "tokens_per_s": (revealed - before) / taken,
            "forward_ms": 1000 * taken / load.steps,
            "tokens_a_forward": (revealed - before) / load.steps,
            "first_block_s": first_block,
            # What the device took for its steps, without the host: one entry for each size of step.
            "device_ms": {f"{room.texts} texts, {room.blocks} blocks": took for room, took in engine.timings()},
        }

    def _plain(self, load: Load) -> Figures:
        """Between its first step and its last; the plain decoder waits for each anyway."""
        times: list[float] = []
        counted: list[int] = []

        def on_step(event: StepEvent) -> None:
            times.append(time.perf_counter())
            counted.append(len(event.tokens))

        prompts = load.fresh_prompts(2)
        config = DecodeConfig(
            max_new_tokens=max(2, load.steps // 2) * load.revealed, block_size=load.block_size, seed=load.seed,
            denoising_steps=load.block_size // load.revealed, remasking="sequential", stop_ids=frozenset(),
            max_active=load.batch,
        )  # fmt: skip
        begun = time.perf_counter()
        denoise(self.model, new_texts(self.model, prompts, config, range(load.batch)), config, on_step)
        self._wait()
        first, last = times[load.batch - 1], times[-1]
        forwards = (len(times) - load.batch) / load.batch
        tokens = sum(counted[load.batch :])
        return {
            "tokens_per_s": tokens / (last - first),
            "forward_ms": 1000 * (last - first) / forwards,
            "tokens_a_forward": tokens / forwards,
            "first_block_s": times[load.batch * (load.block_size // load.revealed) - 1] - begun,
        }

    def _ranks(self, contender: str) -> int:
        return self.plan.tensor_parallel if contender.startswith("engine") else 1

    def _limit(self, load: Load, *, fp8: bool, ranks: int) -> Figures:
        """Of `ranks` GPUs that share the work evenly and lose no time to each other."""
        seconds = sum(
            forward_limit(self.plan.model, self.ceilings, load.batch, load.context, load.revealed, self.dtype, fp8=fp8)
        )
        milliseconds = 1000 * seconds / ranks
        return {"limit_ms": milliseconds, "limit_tokens_per_s": 1000 * load.batch * load.revealed / milliseconds}

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def forward_limit(
    config: SDARConfig, ceilings: Ceilings, batch: int, context: int, revealed: int, dtype: torch.dtype, *, fp8: bool
) -> tuple[float, float, float]:
    """The least seconds of a forward's products, head and attention, on average over a block's steps.

    A block of B positions takes B / `revealed` steps; one of them also commits the block before, and only masked
    positions need logits. Keys and values of `context` positions are read once for each text.
    """
    size = torch.empty((), dtype=dtype).element_size()
    heads = config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    layer = config.hidden_size * (2 * heads + 2 * keys) + 3 * config.hidden_size * config.intermediate_size
    rows = batch * (config.block_size + revealed)
    wanted = batch * (config.block_size + revealed) / 2
    products, head = config.num_hidden_layers * layer, config.hidden_size * config.vocab_size
    flops = ceilings.eighth_flops if fp8 and ceilings.eighth_flops else ceilings.flops
    cached = 2 * config.num_hidden_layers * keys * size * batch * context
    attention = 4 * config.num_hidden_layers * heads * rows * context
    return (
        max(products * (1 if fp8 else size) / ceilings.bandwidth, 2 * rows * products / flops),
        max(head * size / ceilings.bandwidth, 2 * wanted * head / ceilings.flops),
        max(cached / ceilings.bandwidth, attention / ceilings.flops),
    )


def measure_ceilings(device: torch.device, dtype: torch.dtype, *, fp8: bool = False) -> Ceilings:
    """Bandwidth from a sum over more memory than caches hold, the best of five times, since a pause of the host is long
    beside it; rates from a second's chain of products."""
    cuda = device.type == "cuda"
    numbers = torch.ones((2**31 if cuda else 2**25) // 4, device=device)
    bandwidth = numbers.numel() * 4 / min(_seconds(numbers.sum, device, 20 if cuda else 3) for _ in range(5))
    del numbers
    size = 8192 if cuda else 512
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    # Long enough to meet the clock that the chip holds under load.
    flops = 2 * size**3 / _seconds(lambda: left @ right, device, 400 if cuda else 3)
    eighth: float | None = None
    if fp8 and cuda:
        one = torch.ones(size, 1, device=device)
        a, b = left.to(torch.float8_e4m3fn), right.to(torch.float8_e4m3fn)

        def product() -> Tensor:
            return torch._scaled_mm(a, b.T, scale_a=one, scale_b=one.T, out_dtype=dtype)

        eighth = 2 * size**3 / _seconds(product, device, 400)
    return Ceilings(bandwidth, flops, eighth)


def _seconds(work: Callable[[], Tensor], device: torch.device, turns: int) -> float:
    """Of one turn, on average."""
    for _ in range(3):
        work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(turns):
        work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - begun) / turns


def random_model(config: SDARConfig, device: torch.device, dtype: torch.dtype, seed: int) -> SDAR:
    """Made where it runs and in its own precision: 8B in float32 would not fit beside anything."""
    torch.manual_seed(seed)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            return SDAR(config).requires_grad_(False)
    finally:
        torch.set_default_dtype(before)


def has_transformers() -> bool:
    from importlib.util import find_spec

    return find_spec("transformers") is not None


def qwen3(config: SDARConfig, device: torch.device, dtype: torch.dtype) -> Any:
    """transformers' Qwen3 of the same shape, which SDAR is but for its mask."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
             "num_key_value_heads", "head_dim", "max_position_embeddings")  # fmt: skip
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            settings = {name: getattr(config, name) for name in sizes}
            return Qwen3ForCausalLM(Qwen3Config(**settings, tie_word_embeddings=False)).eval()
    finally:
        torch.set_default_dtype(before)


@torch.inference_mode()
def transformers_rate(model: Any, load: Load, device: torch.device) -> Figures:
    """One token a forward and text, timed between the first token and the last."""
    from transformers import StoppingCriteriaList

    prompts = torch.tensor([prompt[:1] * load.context for prompt in load.fresh_prompts(3)], device=device)
    times: list[float] = []

    def note(ids: Tensor, scores: Any, **_: Any) -> Tensor:
        times.append(time.perf_counter())
        return torch.zeros(len(ids), dtype=torch.bool, device=ids.device)

    def write(count: int) -> float:
        times.clear()
        begun = time.perf_counter()
        model.generate(
            prompts, attention_mask=torch.ones_like(prompts), min_new_tokens=count, max_new_tokens=count,
            do_sample=False, pad_token_id=0, eos_token_id=None, stopping_criteria=StoppingCriteriaList([note]),
        )  # fmt: skip
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - begun

    write(2)
    count = max(2, load.steps // 2)
    write(count + 1)
    taken = times[-1] - times[0]
    return {
        "tokens_per_s": load.batch * count / taken,
        "forward_ms": 1000 * taken / count,
        "tokens_a_forward": float(load.batch),
        "first_block_s": write(1),
    }
