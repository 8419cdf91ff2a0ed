"""Supervised fine-tuning by block diffusion, the paper's Equation 2, or of the next token: pairs to a checkpoint.

A row is read twice, [noisy ; clean]. A noisy block sees its own noisy tokens and the clean blocks before it; the loss
is cross-entropy at hidden tokens, weighted by 1/t, with no shift, over the number of trainable tokens of the batch:

    loss = (1 / N) * sum over hidden tokens i of weight_i * CE(logits_i, token_i)

An autoregressive model (family qwen3), there to compare with, reads the clean row once, from left to right; its loss is
the same sum over all trainable tokens, with weight 1 and the logits of the token before.

Everything random is a function of (seed, step), so a run that is killed and resumed goes on as if nothing had happened.
Under torchrun every process holds all rows and draws the noise of the whole batch; each then trains on its share of the
micro-batches, and FSDP adds up the gradients.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dice.data.pairs import read_pairs
from dice.data.sources import read_problems
from dice.errors import MachineError, UserError
from dice.model.checkpoint import load_model, resolve_model, save_model
from dice.model.config import PROMPT_KEY
from dice.model.family import FAMILIES, NO_MASK
from dice.model.sdar import SDAR, SDARConfig
from dice.model.tokenizer import Tokenizer
from dice.problem import Problem
from dice.prompts import PROMPTS, is_compact
from dice.train.blocks import shard
from dice.train.config import ModelShape, SFTConfig
from dice.train.engine import Engine, pick_engine
from dice.train.exec_eval import exec_verdicts
from dice.train.lora import add_adapters
from dice.train.loss import masked_cross_entropy
from dice.train.noise import Corruption, all_of, corrupt, step_generator
from dice.train.rows import Rows, batch_rows, pack, tokenize
from dice.train.run import check_identity, surroundings
from dice.train.runlog import RunLog, duration
from dice.train.schedule import lr_scale
from dice.train.session import TERMINATED, Stop, compute_dtype
from dice.train.state import Checkpoints
from dice.train.weights import Weights
from dice.train.world import World
from dice.verify.options import resolve_backend, visible_gpus

NO_ROOM = re.compile(r"memory|size calculation overflowed")  # what an allocator says of a tensor, on either device
IDENTITY = ("data_sha256", "row_tokens", "batch_rows", "block_size", "seed", "parameters")
Part = tuple[Rows, Corruption]  # a micro-batch


class TrainingError(UserError):
    """Training cannot go on; the message says why and what is left."""


@dataclass(frozen=True, slots=True)
class SFTResult:
    """How a call ended: steps done in all, whether the run is complete, and why it stopped."""

    step: int
    finished: bool
    reason: str
    model: Path


@dataclass(frozen=True, slots=True)
class Score:
    """`loss` is Eq. 2's; `nll` and `accuracy` are plain means over the hidden tokens."""

    loss: float
    nll: float
    accuracy: float


def train_sft(config: SFTConfig) -> SFTResult:
    """Train, or go on training, the run in `config.out`; export the model to `out/model` at the end of every call.

    Raises `UserError` for unusable settings or data and for a loss that is not a number, `MachineError` when memory or
    disk run out. Checkpoints written before stay usable. SIGTERM and Ctrl-C end the chunk with a checkpoint.
    """
    config.check()
    assert config.out is not None
    folder = Path(config.out)
    if config.model is not None:
        config = replace(config, shape=None)
    with surroundings(folder, "sft", config.device, config.keep_checkpoints) as given:
        try:
            return _Run(config, *given).train()
        except torch.OutOfMemoryError:
            message = f"The GPU's memory ran out with micro_rows {config.micro_rows}; halve micro_rows"
            less = "" if config.activation_checkpointing == "block" else ", or set activation_checkpointing=block"
            raise MachineError(f"{message}{less}.") from None


class _Run:
    def __init__(self, config: SFTConfig, world: World, log: RunLog, checkpoints: Checkpoints, stopped: Stop) -> None:
        self.started = time.monotonic()
        self.config, self.world, self.log, self.checkpoints, self.stopped = config, world, log, checkpoints, stopped
        self.folder, self.device = log.folder, world.device
        self.micro_rows = micro_rows(config, world.size)
        dtype = compute_dtype(config.precision, self.device)
        tokenizer_folder = Path(config.tokenizer) if config.tokenizer else resolve_model(str(config.model))
        self.tokenizer = Tokenizer.from_folder(tokenizer_folder)
        self.tokenizer_folder = tokenizer_folder
        torch.manual_seed(config.seed)
        if config.model is not None:
            master = load_model(config.model, dtype=torch.float32, device=self.device)
            master.config.to_json()  # says so at once where a model could not be saved
        else:
            assert config.shape is not None
            fresh = new_model_config(config.shape, self.tokenizer, config.block_size or 4)
            try:
                master = SDAR(fresh).to(self.device)
            except RuntimeError as error:
                if not NO_ROOM.search(str(error)):
                    raise
                raise MachineError("A model of this shape does not fit in memory: make `shape` smaller.") from None
        self.causal = master.config.traits.kind == "autoregressive"
        self.block_size = 1 if self.causal else config.block_size or master.config.block_size
        longest = min(config.row_tokens, config.max_sample_tokens or config.row_tokens)
        if longest > master.config.max_position_embeddings:
            reach = master.config.max_position_embeddings
            raise UserError(f"Documents may have {longest} tokens, the model {reach} positions; set max_sample_tokens.")
        self.mask_id = master.config.mask_token_id
        rows, self.prompt = world.once(lambda: self._rows(config.data))
        self.rows = rows.to(self.device)
        extra = master.config.extra | {PROMPT_KEY: self.prompt}  # so that whoever asks the model asks as it was taught
        self.model_config = replace(master.config, block_size=self.block_size, extra=extra)
        self.eval_rows: Rows | None = None
        if config.eval_data is not None:
            self.eval_rows = world.once(lambda: self._rows(config.eval_data))[0].to(self.device)
        self.problems = [] if config.exec_data is None else self._problems(config.exec_data, master.config)
        self.max_steps = config.max_steps or math.ceil((config.epochs or 0) * len(self.rows) / config.batch_rows)
        if config.lora_rank is not None:
            add_adapters(master, config.lora_rank, config.lora_alpha, dtype)
        shard(master, world, dtype, reshard=config.reshard)
        self.weights = Weights(master, config, dtype, config.ema)
        self.identity = self._identity()
        self.step, self.seconds, self.tokens = 0, 0.0, 0
        self._resume()
        log.begin(config.to_json() | {"max_steps": self.max_steps, **self.identity}, self.step, self.device)
        self.engine = self._engine(dtype)
        log.say(
            f"{self.identity['parameters'] / 1e6:.1f}M parameters, {world}, "
            f"{str(dtype).removeprefix('torch.')}, {self.engine.name} attention; {self.rows.describe()}; "
            f"steps {self.step:,} to {self.max_steps:,} of {config.batch_rows * config.row_tokens:,} tokens"
        )

    def train(self) -> SFTResult:
        """The loop: one batch, one update, then whatever is due."""
        config = self.config
        saved_at, saved_step = time.monotonic(), self.step
        reported = (self.step, self.seconds)
        reason = "finished"
        while self.progress < 1.0:
            begun = time.monotonic()
            lr = config.lr * lr_scale(
                self._progress_at(self.step + 1), config.schedule,
                warmup=config.warmup, decay=config.decay, floor=config.lr_floor,
            )  # fmt: skip
            score, norm = self._update(lr)
            now = time.monotonic()
            taken, age, unsaved, stopped = self.world.most(
                now - begun, now - self.started, now - saved_at, self.stopped.is_set()
            )
            self.step += 1
            self.tokens += config.batch_rows * config.row_tokens
            self.seconds += taken
            if self._due(config.log_every):
                self._report(score, norm, lr, since=reported)
                reported = (self.step, self.seconds)
            if self.eval_rows is not None and self._due(config.eval_every):
                self._validate(self.eval_rows)
            if self.problems and self._due(config.exec_every):
                self._try_kernels()
            if self.progress < 1.0 and (stopped or age >= (config.stop_after_seconds or math.inf)):
                reason = (self.stopped.reason or TERMINATED) if stopped else "stop_after_seconds"
                break
            if self.step % config.checkpoint_every == 0 or unsaved >= config.checkpoint_seconds:
                self._save()
                saved_at, saved_step = time.monotonic(), self.step
        if saved_step != self.step:
            self._save()
        return self._finish(reason)

    def _due(self, every: int) -> bool:
        return self.step % every == 0 or self.progress >= 1.0

    @property
    def progress(self) -> float:
        return self._progress_at(self.step)

    def _progress_at(self, step: int) -> float:
        by_time = self.seconds / self.config.max_seconds if self.config.max_seconds else 0.0
        return min(1.0, max(step / self.max_steps, by_time))

    def _update(self, lr: float) -> tuple[Score, float]:
        config = self.config
        order = batch_rows(self.step, config.batch_rows, len(self.rows), config.seed)
        batch = self.rows.take(torch.from_numpy(order).to(self.device))
        noise = self._corrupt(batch, "train", self.step)
        score = self._backward(batch, noise)
        norm = self.weights.clip(config.clip)
        if not (math.isfinite(score.loss) and math.isfinite(norm)):
            raise TrainingError(
                f"Stopped at step {self.step + 1}: the loss ({score.loss}) or its gradient norm ({norm}) is not a "
                f"finite number; earlier checkpoints are kept, try a lower lr."
            )
        self.weights.update(lr, self.step)
        return score, norm

    def _backward(self, batch: Rows, noise: Corruption) -> Score:
        """Add the gradient of the batch's loss to the weights, micro-batch by micro-batch."""
        trained = int(batch.trainable.sum())
        sums = torch.zeros(3, device=self.device)
        for micro, part in deal(self._parts(batch, noise), self.world):
            total, found = weighted_loss(self.engine, self.weights.model, micro, part, self.mask_id)
            (total / trained).backward()
            self.weights.collect()
            sums += found
        return _score(self.world.sum(sums), trained, int(noise.masked.sum()))

    def _parts(self, batch: Rows, noise: Corruption) -> list[Part]:
        return list(zip(batch.split(self.micro_rows), split_noise(noise, self.micro_rows), strict=True))

    def _validate(self, rows: Rows) -> None:
        """Score held-out rows, always the same ones under the same noise, with the weights that would be exported."""
        sums = torch.zeros(3, device=self.device)
        trained = masked = 0
        parts: list[Part] = []
        count = min(len(rows), self.config.eval_rows)
        for start in range(0, count, self.config.micro_rows):
            batch = _filled(rows, start, min(count, start + self.config.micro_rows), self.config.micro_rows)
            noise = self._corrupt(batch, "eval", start)
            trained, masked = trained + int(batch.trainable.sum()), masked + int(noise.masked.sum())
            parts += self._parts(batch, noise)
        with self.weights.averaged():
            for micro, part in deal(parts, self.world):
                # With gradients on, although unused: without, compiled blocks would be compiled a second time.
                _, found = weighted_loss(self.engine, self.weights.model, micro, part, self.mask_id)
                sums += found
        score = _score(self.world.sum(sums), trained, masked)
        self.log.metrics(step=self.step, val_loss=score.loss, val_nll=score.nll, val_accuracy=score.accuracy)
        accuracy = f"accuracy at hidden tokens {score.accuracy:.1%}"
        self.log.say(f"step {self.step:,}: validation loss {score.loss:.4f}, {accuracy}")

    def _try_kernels(self) -> None:
        """Exec on the problems of `exec_data`, each process writing and verifying its share."""
        config, world = self.config, self.world
        alone = world.size == 1
        cores = len(os.sched_getaffinity(0))
        with self.weights.averaged():
            verdicts = exec_verdicts(
                self.weights.whole(), self.tokenizer, self.problems[world.rank :: world.size],
                backend=self.exec_backend, prompt=PROMPTS[self.prompt],
                max_new_tokens=config.exec_max_new_tokens, max_active=config.exec_batch,
                workers=None if alone else max(1, cores // world.local_size),
                devices=None if alone or self.exec_backend != "cuda" else [visible_gpus()[world.local_rank]],
            )  # fmt: skip
        about = [verdict.correct for verdict in verdicts if verdict.about_kernel]
        found = torch.tensor([sum(about), len(about)], dtype=torch.float64)
        correct, judged = (int(value) for value in world.sum(found).tolist())
        if judged:
            self.log.metrics(step=self.step, val_exec=correct / judged, exec_judged=judged)
        self.log.say(f"step {self.step:,}: {correct} of {judged} kernels right")

    def _corrupt(self, batch: Rows, purpose: str, index: int) -> Corruption:
        config = self.config
        if self.causal:
            return all_of(batch.trainable)
        return corrupt(
            batch.trainable, batch.documents, self.block_size, config.noise,
            step_generator(config.seed, purpose, index, self.device),
            t_min=config.t_min, t_max=config.t_max, stratified=config.stratified,
        )  # fmt: skip

    def _report(self, score: Score, norm: float, lr: float, since: tuple[int, float]) -> None:
        steps, seconds = self.step - since[0], self.seconds - since[1]
        rate = steps * self.config.batch_rows * self.config.row_tokens / seconds
        left = self.seconds / self.progress * (1.0 - self.progress)
        self.log.metrics(
            step=self.step, loss=score.loss, nll=score.nll, accuracy=score.accuracy, lr=lr, grad_norm=norm,
            tokens=self.tokens, tokens_per_s=rate, seconds=self.seconds,
        )  # fmt: skip
        text = f"step {self.step:,}/{self.max_steps:,}  loss {score.loss:.4f}  acc {score.accuracy:.1%}  lr {lr:.2e}"
        self.log.show(self.progress, f"{text}  norm {norm:.2f}  {rate:,.0f} tok/s  ETA {duration(left)}")

    def _rows(self, path: Path | None) -> tuple[Rows, str]:
        """The pairs of `path`, and the form of most of their prompts."""
        assert path is not None
        pairs = read_pairs(path)
        documents = tokenize(pairs, self.tokenizer, self.config.response_prefix)
        rows = pack(
            documents, row_tokens=self.config.row_tokens, block_size=self.block_size, pad_id=self.tokenizer.pad_id,
            max_tokens=self.config.max_sample_tokens, train_tail=self.config.train_tail,
        )  # fmt: skip
        shortly = sum(is_compact(pair.messages[-1]["content"]) for pair in pairs)
        return replace(rows, causal=self.causal), "compact" if 2 * shortly > len(pairs) else "one-shot"

    def _problems(self, path: Path, model: SDARConfig) -> list[Problem]:
        config = self.config
        if config.exec_max_new_tokens + model.block_size >= model.max_position_embeddings:
            reach = model.max_position_embeddings
            raise UserError(f"exec_max_new_tokens {config.exec_max_new_tokens} leaves no prompt of {reach} positions.")
        self.exec_backend = self.world.once(lambda: resolve_backend(config.exec_backend))
        return self.world.once(lambda: read_problems([path])[: config.exec_problems])

    def _engine(self, dtype: torch.dtype) -> Engine:
        compiled = self.device.type == "cuda" if self.config.compile is None else self.config.compile
        probe = _filled(self.rows, 0, min(len(self.rows), self.micro_rows), self.micro_rows)
        return pick_engine(
            self.weights.model, probe, self.block_size, self.mask_id,
            attention=self.config.attention, compiled=compiled, say=self.log.say,
            recompute=self.config.activation_checkpointing == "block", dtype=dtype,
        )  # fmt: skip

    def _identity(self) -> dict[str, Any]:
        """What must be the same for a resumed run to be the same run."""
        digest = hashlib.sha256(self.rows.tokens.cpu().numpy().tobytes())
        digest.update(self.rows.trainable.cpu().numpy().tobytes())
        config = self.config
        size = sum(weight.numel() for weight in self.weights.params)
        values = (digest.hexdigest(), config.row_tokens, config.batch_rows, self.block_size, config.seed, size)
        return dict(zip(IDENTITY, values, strict=True))

    def _save(self) -> None:
        manifest = {"identity": self.identity, "seconds": self.seconds, "tokens": self.tokens}
        self.checkpoints.save(self.step, self.weights.tensors(), manifest)

    def _resume(self) -> None:
        tensors = self.weights.tensors()
        restored, notes = self.checkpoints.load(tensors, self._same_run)
        for note in notes:
            self.log.say(note)
        if restored is None:
            return
        self.step, self.seconds, self.tokens = (restored.manifest[name] for name in ("step", "seconds", "tokens"))
        self.weights.load({name: tensors[name] for name in restored.names}, self.step)
        self.log.say(f"Resuming after step {self.step:,}.")

    def _same_run(self, manifest: dict[str, Any]) -> None:
        check_identity(self.folder, manifest, self.identity)

    def _finish(self, reason: str) -> SFTResult:
        path = self.folder / "model"
        dtype = getattr(torch, self.config.export_dtype)
        self.checkpoints.settle()
        state = self.weights.export(self.world.leads)
        self.world.once(lambda: save_model(state, self.model_config, path, self.tokenizer_folder, dtype=dtype))
        self.log.say(f"{reason} after step {self.step:,} ({duration(self.seconds)} of training); model in {path}")
        return SFTResult(self.step, self.progress >= 1.0, reason, path)


def weighted_loss(engine: Engine, model: SDAR, batch: Rows, noise: Corruption, mask_id: int) -> tuple[Tensor, Tensor]:
    """(sum of weighted losses, differentiable; [3] that sum, plain sum of losses, correct guesses, all detached).

    The caller divides by the trainable tokens of the whole batch. Only what predicts a hidden token goes through the
    output head: the token's own place, or in a family that shifts the place before it.
    """
    noisy = torch.where(noise.masked, mask_id, batch.tokens)
    hidden = engine(noisy, batch)
    row, column = noise.masked.nonzero(as_tuple=True)
    place = row * hidden.shape[1] + column - int(model.config.traits.shift)
    states = hidden.flatten(0, 1).index_select(0, place)
    labels, weights = batch.tokens[row, column], noise.weight[row, column]
    loss = masked_cross_entropy(states, model.lm_head.weight, labels, weights)
    return loss.total, torch.stack((loss.total.detach(), loss.nll.sum(), loss.hit.sum())).float()


def micro_rows(config: SFTConfig, processes: int) -> int:
    """Rows in a micro-batch: the most that divide the batch, stay within `micro_rows` and leave each process a share.

    Raises `UserError` when there are more processes than rows.
    """
    if processes > config.batch_rows:
        raise UserError(f"A batch of {config.batch_rows} rows cannot be dealt over {processes} processes.")
    limit = min(config.micro_rows, -(-config.batch_rows // processes))
    return next(size for size in range(limit, 0, -1) if config.batch_rows % size == 0)


def deal(parts: Sequence[Part], world: World) -> Iterator[Part]:
    """This process's micro-batches. All processes get as many, because the gathering of weights takes all of them: in
    the last round some may get one that they need not train on, with nothing hidden and so no gradient."""
    for first in range(0, len(parts), world.size):
        index = first + world.rank
        if index < len(parts):
            yield parts[index]
        else:
            rows, noise = parts[0]
            yield rows, Corruption(torch.zeros_like(noise.masked), torch.zeros_like(noise.weight))


def split_noise(noise: Corruption, size: int) -> Iterator[Corruption]:
    for masked, weight in zip(noise.masked.split(size), noise.weight.split(size), strict=True):
        yield Corruption(masked, weight)


def new_model_config(shape: ModelShape, tokenizer: Tokenizer, block_size: int) -> SDARConfig:
    """The configuration of a fresh model for `tokenizer`; the vocabulary is rounded up for the matrix units."""
    causal = FAMILIES[shape.family].kind == "autoregressive"
    return SDARConfig(
        vocab_size=-(-tokenizer.vocab_size // 64) * 64,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_hidden_layers,
        num_attention_heads=shape.num_attention_heads,
        num_key_value_heads=shape.num_key_value_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=shape.max_position_embeddings,
        rope_theta=shape.rope_theta,
        family=shape.family,
        block_size=1 if causal else block_size,
        mask_token_id=NO_MASK if causal else tokenizer.mask_id,
        eos_token_id=tuple(sorted(tokenizer.stop_ids, reverse=True)),
        pad_token_id=tokenizer.pad_id,
    )


def _score(sums: Tensor, trained: int, masked: int) -> Score:
    weighted, nll, hits = sums.tolist()
    return Score(weighted / max(1, trained), nll / max(1, masked), hits / max(1, masked))


def _filled(rows: Rows, start: int, end: int, size: int) -> Rows:
    """Rows start..end-1 as a batch of exactly `size` rows; the repeated ones train nothing."""
    index = torch.arange(start, start + size, device=rows.tokens.device)
    batch = rows.take(index.clamp(max=end - 1))
    batch.trainable[end - start :] = False
    return batch
