"""Supervised fine-tuning by block diffusion, the paper's Equation 2, or of the next token: pairs to a checkpoint.

    batch of packed rows -> noise -> gradient of the loss -> update; now and then a report, a trial, a checkpoint

The loss is in `sft_objective.py`. Everything random is a function of (seed, step), so a run that is killed and resumed
goes on as if nothing had happened. Under torchrun every process holds all rows and draws the noise of the whole batch;
each then trains on its share of the micro-batches, and FSDP adds up the gradients.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from dice.errors import MachineError, UserError
from dice.files import JsonObject
from dice.model.checkpoint import resolve_model, save_model
from dice.model.config import PROMPT_KEY
from dice.model.sdar import SDARConfig
from dice.model.tokenizer import Tokenizer
from dice.train.blocks import shard
from dice.train.config import SFTConfig
from dice.train.engine import pick_engine
from dice.train.exec_eval import ExecTrial
from dice.train.initial_model import initial_model, write_adapted
from dice.train.lora import add_adapters
from dice.train.optimizer import lr_scale
from dice.train.packing import batch_rows
from dice.train.plan.choose import choose_recompute
from dice.train.plan.disk import DiskNeed, check_disk
from dice.train.run import RunContext, check_identity, run_context
from dice.train.runlog import duration
from dice.train.session import TERMINATED, TrainingError, compute_dtype
from dice.train.sft_data import SFTData, load_data
from dice.train.sft_objective import Score, SFTObjective, micro_rows
from dice.train.weights import Weights, stored_bytes, without_moments
from dice.train.world import joined


@dataclass(frozen=True, slots=True)
class SFTResult:
    """How a call ended: steps done in all, whether the run is complete, and why it stopped."""

    step: int
    finished: bool
    reason: str
    model: Path


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
    with run_context(folder, "sft", config.device, config.keep_checkpoints) as context:
        try:
            return _Run(config, context, _prepare(config, context)).train()
        except torch.OutOfMemoryError:
            message = f"The GPU's memory ran out with micro_rows {config.micro_rows}; halve micro_rows"
            less = "" if config.activation_checkpointing == "block" else ", or set activation_checkpointing=block"
            raise MachineError(f"{message}{less}; `dice plan` says what fits.") from None


def train_adapted(config: SFTConfig) -> SFTResult:
    """Make `config.model`, an autoregressive one, a block-diffusion model, and train that as `train_sft` does.

    Raises `UserError`, too, for a model that cannot be adapted; see `dice.model.adapt`.
    """
    config.check()
    with joined(config.device) as world:
        initial = world.broadcast_from_leader(lambda: write_adapted(config))
        return train_sft(replace(config, model=str(initial), tokenizer=None))


@dataclass
class Progress:
    """How far a run has come: steps done, seconds they took over all calls, tokens trained on."""

    step: int = 0
    seconds: float = 0.0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class _Setup:
    """What a run works with. `identity`: what must be the same for a resumed run to be the same run."""

    tokenizer_folder: Path
    model_config: SDARConfig  # of the exported model
    data: SFTData
    trial: ExecTrial | None
    weights: Weights
    objective: SFTObjective
    identity: JsonObject
    progress: Progress


def _prepare(config: SFTConfig, context: RunContext) -> _Setup:
    """Load model and data, and go on from the newest checkpoint. Raises `UserError` for what cannot be used."""
    world, log = context.world, context.log
    size = micro_rows(config, world.size)
    dtype = compute_dtype(config.precision, world.device)
    tokenizer_folder = Path(config.tokenizer) if config.tokenizer else resolve_model(str(config.model))
    tokenizer = Tokenizer.from_folder(tokenizer_folder)
    model = initial_model(config, tokenizer, world.device)
    data = load_data(config, tokenizer, model.config, world)
    trial = ExecTrial.read(config, tokenizer, model.config, data.prompt_form, world)
    # Whoever asks the exported model then asks in the form that it was taught.
    extra = model.config.extra | {PROMPT_KEY: data.prompt_form}
    model_config = replace(model.config, block_size=data.block_size, extra=extra)
    if config.lora_rank is not None:
        add_adapters(model, config.lora_rank, config.lora_alpha, dtype)
    shard(model, world, dtype, reshard=config.reshard, by_host=config.sharding == "host")
    weights = Weights(model, config, dtype, config.ema)
    identity = _identity(config, data, weights)
    max_steps = _max_steps(config, data)
    need = disk_need(config, weights, max_steps)
    world.broadcast_from_leader(lambda: check_disk(need, log.folder, log.say))
    progress = _resume(context, weights, identity, lambda reached: _share_done(config, reached, max_steps) >= 1.0)
    log.begin(config.to_json() | {"max_steps": max_steps, **identity}, progress.step, world.device)
    recompute = choose_recompute(
        config, model.config, world, tokens=size * config.row_tokens * (1 if data.rows.causal else 2),
        moments=config.moments, average=config.ema is not None, gathered=not config.reshard, dtype=dtype, say=log.say,
    )  # fmt: skip
    engine = pick_engine(
        weights.model, data.rows.filled(0, min(len(data.rows), size), size), data.block_size,
        model_config.mask_token_id,
        attention=config.attention, compiled=world.device.type == "cuda" if config.compile is None else config.compile,
        say=log.say, recompute=recompute, dtype=dtype,
    )  # fmt: skip
    log.say(
        f"{identity['parameters'] / 1e6:.1f}M parameters, {world}, "
        f"{str(dtype).removeprefix('torch.')}, {engine.name} attention; {data.rows.describe()}; "
        f"steps {progress.step:,} to {max_steps:,} of {config.batch_rows * config.row_tokens:,} tokens"
    )
    objective = SFTObjective(config, weights, engine, world)
    return _Setup(tokenizer_folder, model_config, data, trial, weights, objective, identity, progress)


def _max_steps(config: SFTConfig, data: SFTData) -> int:
    return config.max_steps or math.ceil((config.epochs or 0) * len(data.rows) / config.batch_rows)


def _identity(config: SFTConfig, data: SFTData, weights: Weights) -> JsonObject:
    digest = hashlib.sha256(data.rows.tokens.cpu().numpy().tobytes())
    digest.update(data.rows.trainable.cpu().numpy().tobytes())
    return {
        "data_sha256": digest.hexdigest(),
        "row_tokens": config.row_tokens,
        "batch_rows": config.batch_rows,
        "block_size": data.block_size,
        "seed": config.seed,
        "parameters": sum(weight.numel() for weight in weights.params),
    }


def disk_need(config: SFTConfig, weights: Weights, steps: int) -> DiskNeed:
    tensors = weights.tensors()
    final = tensors if config.final_checkpoint == "full" else without_moments(tensors)
    model = sum(weight.numel() for weight in weights.master.parameters())
    exported = model * getattr(torch, config.export_dtype).itemsize
    return DiskNeed(
        stored_bytes(tensors),
        stored_bytes(final),
        exported,
        config.keep_checkpoints,
        (steps - 1) // config.checkpoint_every,
    )


def _share_done(config: SFTConfig, progress: Progress, max_steps: int) -> float:
    """Of the run: by steps or by training time, whichever is further, at most 1."""
    by_time = progress.seconds / config.max_seconds if config.max_seconds else 0.0
    return min(1.0, max(progress.step / max_steps, by_time))


def _resume(
    context: RunContext, weights: Weights, identity: JsonObject, finished: Callable[[Progress], bool]
) -> Progress:
    """Fill `weights` from the newest checkpoint, where there is one. Raises `UserError` for another run's, and where
    training is to go on from a last checkpoint without moments."""
    folder, log = context.log.folder, context.log
    tensors = weights.tensors()
    restored, notes = context.checkpoints.load(tensors, lambda manifest: check_identity(folder, manifest, identity))
    for note in notes:
        log.say(note)
    if restored is None:
        return Progress()
    progress = Progress(*(restored.manifest[name] for name in ("step", "seconds", "tokens")))
    kept = {name: tensors[name] for name in restored.names}
    if not finished(progress) and without_moments(kept).keys() == kept.keys():
        raise UserError(
            f"The run in {folder} ended with a checkpoint without moments (final_checkpoint=weights), so it cannot be "
            f"made longer; start another one with model={folder / 'model'}."
        )
    weights.load(kept, progress.step)
    log.say(f"Resuming after step {progress.step:,}.")
    return progress


class _Run:
    """The loop, and what is due now and then."""

    def __init__(self, config: SFTConfig, context: RunContext, setup: _Setup) -> None:
        self.config, self.setup = config, setup
        self.world, self.log, self.checkpoints, self.stopped, self.started = context
        self.weights, self.objective, self.progress = setup.weights, setup.objective, setup.progress
        self.max_steps = _max_steps(config, setup.data)

    def train(self) -> SFTResult:
        """One batch, one update, then whatever is due."""
        config, progress = self.config, self.progress
        saved_at, saved_step = time.monotonic(), progress.step
        reported = replace(progress)
        reason = "finished"
        while self.share_done(progress.step) < 1.0:
            begun = time.monotonic()
            lr = self._learning_rate()
            score, norm = self._update(lr)
            now = time.monotonic()
            taken, age, unsaved, stopped = self.world.all_reduce_max(
                now - begun, now - self.started, now - saved_at, self.stopped.is_set()
            )
            progress.step += 1
            progress.tokens += config.batch_rows * config.row_tokens
            progress.seconds += taken
            if self._due(config.log_every):
                self._report(score, norm, lr, since=reported)
                reported = replace(progress)
            if self._due(config.eval_every):
                self._validate()
            if self._due(config.exec_every):
                self._try_kernels()
            unfinished = self.share_done(progress.step) < 1.0
            if unfinished and (stopped or age >= (config.stop_after_seconds or math.inf)):
                reason = (self.stopped.reason or TERMINATED) if stopped else "stop_after_seconds"
                break
            if progress.step % config.checkpoint_every == 0 or unsaved >= config.checkpoint_seconds:
                self._save()
                saved_at, saved_step = time.monotonic(), progress.step
        if saved_step != progress.step:
            self._save()
        return self._finish(reason)

    def share_done(self, step: int) -> float:
        """Of the run after `step` steps: by steps or by training time, whichever is further, at most 1."""
        return _share_done(self.config, replace(self.progress, step=step), self.max_steps)

    def _due(self, every: int) -> bool:
        return self.progress.step % every == 0 or self.share_done(self.progress.step) >= 1.0

    def _learning_rate(self) -> float:
        config = self.config
        share = self.share_done(self.progress.step + 1)
        return config.lr * lr_scale(share, config.schedule, warmup=config.warmup, floor=config.lr_floor)

    def _update(self, lr: float) -> tuple[Score, float]:
        """One optimiser step; the batch's score and the norm of its gradient."""
        config, rows, step = self.config, self.setup.data.rows, self.progress.step
        order = batch_rows(step, config.batch_rows, len(rows), config.seed)
        score = self.objective.backward(rows.take(torch.from_numpy(order).to(self.world.device)), step)
        norm = self.weights.clip(config.clip)
        if not (math.isfinite(score.loss) and math.isfinite(norm)):
            raise TrainingError(
                f"Stopped at step {step + 1}: the loss ({score.loss}) or its gradient norm ({norm}) is not a "
                f"finite number; earlier checkpoints are kept, try a lower lr."
            )
        self.weights.update(lr, step)
        return score, norm

    def _report(self, score: Score, norm: float, lr: float, since: Progress) -> None:
        now, share = self.progress, self.share_done(self.progress.step)
        rate = (now.tokens - since.tokens) / (now.seconds - since.seconds)
        left = now.seconds / share * (1.0 - share)
        self.log.metrics(
            step=now.step, loss=score.loss, nll=score.nll, accuracy=score.accuracy, lr=lr, grad_norm=norm,
            tokens=now.tokens, tokens_per_s=rate, seconds=now.seconds,
        )  # fmt: skip
        text = f"step {now.step:,}/{self.max_steps:,}  loss {score.loss:.4f}  acc {score.accuracy:.1%}  lr {lr:.2e}"
        self.log.show(share, f"{text}  norm {norm:.2f}  {rate:,.0f} tok/s  ETA {duration(left)}")

    def _validate(self) -> None:
        if self.setup.data.eval_rows is None:
            return
        score, step = self.objective.score(self.setup.data.eval_rows), self.progress.step
        self.log.metrics(step=step, val_loss=score.loss, val_nll=score.nll, val_accuracy=score.accuracy)
        accuracy = f"accuracy at hidden tokens {score.accuracy:.1%}"
        self.log.say(f"step {step:,}: validation loss {score.loss:.4f}, {accuracy}")

    def _try_kernels(self) -> None:
        """Exec on the problems of `exec_data`."""
        if self.setup.trial is None:
            return
        with self.weights.averaged():
            correct, judged = self.setup.trial.run(self.weights.whole())
        if judged:
            self.log.metrics(step=self.progress.step, val_exec=correct / judged, exec_judged=judged)
        self.log.say(f"step {self.progress.step:,}: {correct} of {judged} kernels right")

    def _save(self) -> None:
        manifest = {"identity": self.setup.identity} | asdict(self.progress)
        tensors = self.weights.tensors()
        if self.config.final_checkpoint == "weights" and self.share_done(self.progress.step) >= 1.0:
            tensors = without_moments(tensors)
        self.checkpoints.save(self.progress.step, tensors, manifest)

    def _finish(self, reason: str) -> SFTResult:
        path, setup, progress = self.log.folder / "model", self.setup, self.progress
        dtype = getattr(torch, self.config.export_dtype)
        state = self.weights.export(self.world.leads)  # while the last checkpoint is being written
        self.world.broadcast_from_leader(
            lambda: save_model(state, setup.model_config, path, setup.tokenizer_folder, dtype=dtype)
        )
        self.world.all_gather(self.checkpoints.settle)
        self.log.say(
            f"{reason} after step {progress.step:,} ({duration(progress.seconds)} of training); model in {path}"
        )
        return SFTResult(progress.step, self.share_done(progress.step) >= 1.0, reason, path)
