"""Steps of SFT, ours against a stock implementation of the same layout: in turns, in one run.

Both train the same weights with the same optimiser (bf16 on float32 masters, AdamW), on the same rows under the same
noise. Stock is plain PyTorch: a dense mask over [noisy ; clean], scaled_dot_product_attention, logits of all noisy
positions, nothing compiled. Each takes the largest micro-batch that fits, and recomputes blocks only if one row does
not.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dice.errors import MachineError
from dice.model.sdar import SDAR, SDARConfig
from dice.train.attention import DenseMask
from dice.train.blocks import KEEP_ALL, RECOMPUTE_BLOCKS, Recompute, set_blocks, shard
from dice.train.config import ModelShape, SFTConfig
from dice.train.engine import Engine, pick_engine
from dice.train.noise import Corruption, corrupt, step_generator
from dice.train.packing import Document, PackedRows, pack
from dice.train.plan.flops import training_flops
from dice.train.plan.gpus import peak_flops
from dice.train.sft_objective import deal, split_noise, weighted_loss
from dice.train.weights import Weights
from dice.train.world import World

Figures = dict[str, Any]
WARM_UP = 2  # steps of each before any is timed


@dataclass(frozen=True, slots=True)
class TrainBenchPlan:
    """What is measured. Documents of `shortest` to `longest` tokens are packed into the rows."""

    shape: ModelShape
    vocab_size: int
    block_size: int
    row_tokens: int
    batch_rows: int
    micro_rows: int
    rounds: int
    shortest: int
    longest: int
    seed: int = 0

    @property
    def model(self) -> SDARConfig:
        return self.shape.for_timing(self.vocab_size, self.block_size)


@dataclass(frozen=True, slots=True)
class Setting:
    """What lets a step fit into memory."""

    micro_rows: int
    recompute: bool

    def __str__(self) -> str:
        return f"{self.micro_rows} rows at a time" + (", recomputing blocks" if self.recompute else "")


@dataclass(slots=True)
class Contender:
    """One way to compute the loss of a micro-batch. `prepare` makes the model run that way, and is not timed."""

    name: str
    prepare: Callable[[], None]
    loss: Callable[[PackedRows, Corruption], Tensor]
    setting: Setting
    how: str


class TrainBench:
    """Raises `MachineError` when not even one row fits. `say` hears of progress."""

    def __init__(self, plan: TrainBenchPlan, world: World, say: Callable[[str], None]) -> None:
        self.plan, self.world, self.say = plan, world, say
        device = world.device
        self.dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        torch.manual_seed(plan.seed)
        with torch.device(device):
            master = SDAR(plan.model)
        self.parameters = sum(weight.numel() for weight in master.parameters())
        self.batch = random_rows(plan).to(device).take(torch.arange(plan.batch_rows, device=device))
        generator = step_generator(plan.seed, "bench", 0, device)
        self.noise = corrupt(self.batch.trainable, self.batch.documents, plan.block_size, "count", generator)
        shard(master, world, self.dtype, reshard=True)
        # A rate of 0: both see the same weights throughout, and AdamW works all the same.
        self.weights = Weights(master, SFTConfig(lr=0.0), self.dtype)

    def run(self) -> Figures:
        """Figures of both, and the ratio of their rates turn by turn."""
        contenders = [self._fitting(self._stock), self._fitting(self._ours)]
        seconds: dict[str, list[float]] = {contender.name: [] for contender in contenders}
        memory: dict[str, int] = dict.fromkeys(seconds, 0)
        begun = time.monotonic()
        for turn in range(self.plan.rounds):
            for contender in contenders:
                taken, peak = self._turn(contender)
                seconds[contender.name].append(taken)
                memory[contender.name] = max(memory[contender.name], peak)
            left = (time.monotonic() - begun) / (turn + 1) * (self.plan.rounds - turn - 1)
            self.say(f"round {turn + 1} of {self.plan.rounds}, {left:.0f} s left")
        figures: Figures = {}
        for contender in contenders:
            figures[contender.name] = self._figures(contender, seconds[contender.name], memory[contender.name])
        pairs = zip(seconds["stock"], seconds["ours"], strict=True)
        figures["ratio"] = spread([stock / ours for stock, ours in pairs])
        return figures

    def _turn(self, contender: Contender) -> tuple[float, int]:
        """Seconds of one optimiser step over the whole batch, and the most memory it held."""
        contender.prepare()
        cuda = self.world.device.type == "cuda"
        if cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        begun = time.perf_counter()
        self._step(contender)
        if cuda:
            torch.cuda.synchronize()
        taken, peak = self.world.all_reduce_max(
            time.perf_counter() - begun, torch.cuda.max_memory_allocated() if cuda else 0
        )
        return taken, int(peak)

    def _step(self, contender: Contender) -> float:
        """One optimiser step; returns the loss of the whole batch."""
        trained, size = int(self.batch.trainable.sum()), contender.setting.micro_rows
        total = torch.zeros((), device=self.world.device)
        parts = list(zip(self.batch.split(size), split_noise(self.noise, size), strict=True))
        for micro, part in deal(parts, self.world):
            loss = contender.loss(micro, part) / trained
            loss.backward()
            total += loss.detach()
        self.weights.clip(1.0)
        self.weights.update(0.0, 0)
        return float(self.world.all_reduce_sum(total))

    def _fitting(self, make: Callable[[Setting], Contender]) -> Contender:
        """The contender with the largest micro-batch that fits, warmed up."""
        for setting in self._settings():
            try:
                contender = make(setting)
                contender.prepare()
                for _ in range(WARM_UP):
                    self._step(contender)
            except torch.OutOfMemoryError:
                self.say(f"out of memory with {setting}")
                self._clean_up()
                continue
            self.say(f"{contender.name}, {contender.how}: {setting}")
            return contender
        raise MachineError("Not even one row at a time fits into this GPU's memory.")

    def _settings(self) -> Iterator[Setting]:
        size = self.plan.micro_rows
        if self.world.size > 1:  # where one process ran out of memory, the others would wait for it
            yield Setting(size, True)
            return
        while size:
            yield Setting(size, False)
            size //= 2
        yield Setting(1, True)

    def _clean_up(self) -> None:
        if self.weights.model is not self.weights.master:
            self.weights.model.zero_grad(set_to_none=True)
        self.weights.optimizer.zero_grad(set_to_none=False)
        torch.cuda.empty_cache()

    def _ours(self, setting: Setting) -> Contender:
        model, mask_id = self.weights.model, self.plan.model.mask_token_id
        probe = next(self.batch.split(setting.micro_rows))
        compiled = self.world.device.type == "cuda"
        engine = pick_engine(
            model, probe, self.plan.block_size, mask_id,
            attention="auto", compiled=compiled, say=self.say, recompute=_recompute(setting), dtype=self.dtype,
        )  # fmt: skip
        compiled = "compiled" in engine.name
        return Contender(
            "ours", lambda: set_blocks(model, compiled=compiled, recompute=_recompute(setting)),
            lambda batch, noise: weighted_loss(engine, model, batch, noise, mask_id)[0], setting, engine.name,
        )  # fmt: skip

    def _stock(self, setting: Setting) -> Contender:
        model, mask_id = self.weights.model, self.plan.model.mask_token_id
        engine = Engine(model.hidden, DenseMask(self.plan.block_size), "dense")
        return Contender(
            "stock", lambda: set_blocks(model, compiled=False, recompute=_recompute(setting)),
            lambda batch, noise: stock_loss(engine, model, batch, noise, mask_id), setting, engine.name,
        )  # fmt: skip

    def _figures(self, contender: Contender, seconds: list[float], memory: int) -> Figures:
        plan, size = self.plan, self.world.size
        needed = needed_flops(plan.model, self.batch, self.noise)
        peak = peak_flops(self.world.device)
        contender.prepare()
        return {
            "tokens_per_s": spread([plan.batch_rows * plan.row_tokens / taken for taken in seconds]),
            "step_s": spread(seconds),
            "mfu": None if peak is None else needed / statistics.median(seconds) / (peak * size),
            "peak_memory_bytes": memory or None,
            "loss": self._step(contender),
            "how": contender.how,
            **asdict(contender.setting),
        }


def _recompute(setting: Setting) -> Recompute:
    return RECOMPUTE_BLOCKS if setting.recompute else KEEP_ALL


def stock_loss(engine: Engine, model: SDAR, batch: PackedRows, noise: Corruption, mask_id: int) -> Tensor:
    """`weighted_loss` the plain way: logits and cross-entropy of every noisy position."""
    noisy = torch.where(noise.masked, mask_id, batch.tokens)
    logits = model.lm_head(engine(noisy, batch)[:, : batch.row_tokens]).float()
    nll = F.cross_entropy(logits.flatten(0, 1), batch.tokens.flatten(), reduction="none")
    return (nll * noise.weight.flatten()).sum()


def needed_flops(config: SDARConfig, batch: PackedRows, noise: Corruption) -> float:
    """What a step must compute, forward and backward: every matrix of the blocks for each token of [noisy ; clean],
    attention for each pair that the mask allows, and the head for each hidden token. Recomputed blocks, masked pairs
    and logits that nobody asked for are not counted."""
    # A noisy token sees its block and the clean blocks before it, a clean one as many.
    pairs = 2 * int(((batch.positions // config.block_size + 1) * config.block_size).sum())
    return training_flops(config, tokens=2 * batch.tokens.numel(), pairs=pairs, predicted=int(noise.masked.sum()))


def random_rows(plan: TrainBenchPlan) -> PackedRows:
    """At least `batch_rows` rows of random documents, a quarter of each its prompt."""
    rng = np.random.default_rng(plan.seed)
    documents: list[Document] = []
    while sum(len(document.ids) for document in documents) < 1.2 * (plan.batch_rows + 1) * plan.row_tokens:
        length = int(rng.integers(plan.shortest, plan.longest + 1))
        ids = rng.integers(0, plan.vocab_size - 1, size=length).astype(np.int32)
        documents.append(Document(ids, max(1, length // 4)))
    return pack(documents, row_tokens=plan.row_tokens, block_size=plan.block_size, pad_id=0)


def spread(values: list[float]) -> Figures:
    low, high = (float(np.quantile(values, share)) for share in (0.1, 0.9))
    return {"median": statistics.median(values), "p10": low, "p90": high, "n": len(values)}
