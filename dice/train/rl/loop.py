"""BiC-RL (paper section 4.2): a step samples kernels, verifies them, and moves the policy towards the better ones.

    pick problems -> roll out -> rewards -> advantages -> policy.update -> episodes, metrics, checkpoint

Everything random is a function of (seed, step), so a run that is killed and resumed goes on as if nothing had happened.
Under torchrun every process has a GPU of its own: it writes and verifies a share of the responses, then all know all of
them, and FSDP adds up the gradients of each one's share of an update.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from dice.decode.generate import DecodeConfig, sample_seeds
from dice.decode.trace import Trace
from dice.errors import MachineError, UserError
from dice.model.checkpoint import load_model, resolve_model, save_model
from dice.model.family import SDAR_FAMILY
from dice.model.sdar import SDAR
from dice.model.tokenizer import Tokenizer
from dice.train.noise import step_generator
from dice.train.rl.config import RLConfig
from dice.train.rl.curriculum import Curriculum
from dice.train.rl.episode import Episode, write_episodes
from dice.train.rl.held_out import HeldOut
from dice.train.rl.judge import Judge
from dice.train.rl.measures import measure
from dice.train.rl.policy import Policy
from dice.train.rl.request import Desk
from dice.train.rl.reward import advantages, reward
from dice.train.rl.rollout import Batch, Rollouts
from dice.train.run import check_identity, surroundings
from dice.train.runlog import RunLog, duration
from dice.train.session import TERMINATED, Interrupted, Stop, compute_dtype
from dice.train.state import Checkpoints
from dice.train.world import World
from dice.verdict import Verdict

ROW = 128  # rows are in whole tiles of this many tokens, for FlexAttention
IDENTITY = (
    "tasks_sha256", "infill_steps", "generate_steps", "problems", "responses", "order", "infill_form", "seed",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RLResult:
    """How a call ended: steps done in all, whether the run is complete, and why it stopped."""

    step: int
    finished: bool
    reason: str
    model: Path


def train_rl(config: RLConfig) -> RLResult:
    """Train, or go on training, the run in `config.out`; export the model to `out/model` at the end of every call.

    Raises `UserError` for unusable settings or data and for an update that is not a number, `MachineError` when memory
    or disk run out or the verifier stays broken. Checkpoints written before stay usable, and the same call goes on.
    SIGTERM and Ctrl-C give up the step under way and end the call with a checkpoint of the last whole one.
    Torchrun's processes all call this; a signal to one of them, or an error in one, ends it in all.
    """
    config.check()
    assert config.out is not None
    folder = Path(config.out)
    with surroundings(folder, "rl", config.device, config.keep_checkpoints) as given:
        try:
            run = _Run(config, *given)
            with given.world.opened(Judge.open(config, given.world, given.stopped, given.log.say)) as judge:
                return run.train(judge)
        except torch.OutOfMemoryError:
            raise MachineError(
                f"The GPU's memory ran out; lower max_active ({config.max_active}) if it was in decoding, or the "
                f"policy's micro-batch if it was in the update."
            ) from None
        except OSError as error:
            raise MachineError(f"Cannot write to {folder}: {error.strerror or error}; checkpoints are kept.") from None


class _Run:
    def __init__(self, config: RLConfig, world: World, log: RunLog, checkpoints: Checkpoints, stopped: Stop) -> None:
        self.started = time.monotonic()
        self.config, self.world, self.log, self.checkpoints, self.stopped = config, world, log, checkpoints, stopped
        self.folder, self.device = log.folder, world.device
        self.model_folder = resolve_model(str(config.model))
        tokenizer = Tokenizer.from_folder(self.model_folder)
        torch.manual_seed(config.seed)
        model = load_model(self.model_folder, dtype=torch.float32, device=self.device)
        if model.config.family != SDAR_FAMILY.name:
            raise UserError(f"{config.model} is no SDAR model (its family is {model.config.family}): not trainable.")
        self.model_config = model.config
        self.parameters = sum(weight.numel() for weight in model.parameters())
        compact = (model.config.prompt if config.prompt == "auto" else config.prompt) == "compact"
        scaffolded = config.infill_form == "scaffold"
        desk = self.desk = Desk(
            tokenizer, compact=compact, scaffolded=scaffolded, response_prefix=config.response_prefix
        )
        room = model.config.max_position_embeddings - config.max_new_tokens - model.config.block_size
        self.curriculum = Curriculum(config, desk, room, log.say)
        self.policy = self._policy(model, tokenizer.vocab_size)
        self.decoding = DecodeConfig(
            max_new_tokens=config.max_new_tokens, confidence_threshold=config.confidence_threshold,
            temperature=config.temperature, top_p=config.top_p, top_k=config.top_k, max_active=config.max_active,
            stop_ids=tokenizer.stop_ids, vocab_limit=tokenizer.vocab_size,
        )  # fmt: skip
        self.held_out = HeldOut.read(config, desk, room, log.say)
        self.identity = {name: getattr(config, name, self.curriculum.digest) for name in IDENTITY}
        self.step, self.seconds, self.begun = 0, 0.0, time.monotonic()
        self.parts: defaultdict[str, float] = defaultdict(float)
        self.saved_step: int | None = None
        self.evaluated: int | None = None
        self.pending: dict[int, _Rollout] = {}

    def _policy(self, model: SDAR, vocab_limit: int) -> Policy:
        """Told how responses are decoded, and with rows that hold the longest response, all its rounds replayed."""
        config, block_size = self.config, model.config.block_size
        copies = 1 + -(-block_size // config.policy.shrink)
        longest = self.curriculum.longest_prompt + copies * (config.max_new_tokens + block_size)
        settings = replace(
            config.policy, max_new_tokens=config.max_new_tokens, temperature=config.temperature,
            vocab_limit=vocab_limit, row_tokens=max(config.policy.row_tokens, -(-longest // ROW) * ROW),
        )  # fmt: skip
        return Policy(
            model, settings, world=self.world, compute_dtype=compute_dtype(config.precision, self.device),
            say=self.log.say,
            reference=load_model(self.model_folder, device=self.device) if config.reference == "initial" else None,
        )  # fmt: skip

    def train(self, judge: Judge) -> RLResult:
        """The loop: one step, then whatever is due."""
        self._begin(judge)
        config, reason = self.config, "finished"
        try:
            self._evaluate()
            while self.step < config.steps:
                batch = self._rollout()
                episodes = self._judge(batch)
                stats = self._update(episodes)
                self.curriculum.learn(episodes)
                del self.pending[self.step]
                self.step += 1
                self._report(episodes, stats)
                self._evaluate()
                age, stopped = self.world.most(time.monotonic() - self.started, self.stopped.is_set())
                if self.step < config.steps and (stopped or age >= (config.stop_after_seconds or math.inf)):
                    reason = (self.stopped.reason or TERMINATED) if stopped else "stop_after_seconds"
                    break
                if self.step % config.checkpoint_every == 0:
                    self._save()
        except Interrupted as interrupted:  # the step under way is given up
            reason = str(interrupted)
        finally:
            for rollout in self.pending.values():
                rollout.batch.judging.call_off()
        if self.saved_step != self.step:
            self._save()
        return self._finish(reason)

    def _begin(self, judge: Judge) -> None:
        self.judge = judge
        self.rollouts = Rollouts(
            lambda: self.policy.sampler, self.desk, judge, self.decoding, self.stopped, self.world
        )  # fmt: skip
        self._resume()
        kept = -1 if self.saved_step is None else self.step
        self.log.begin(self.config.to_json() | self.identity, kept, self.device)
        counts = ", ".join(f"{len(tasks):,} problems to {stage}" for stage, tasks in self.curriculum.tasks.items())
        self.log.say(
            f"{self.parameters / 1e6:.1f}M parameters, {self.world}; {counts}; kernels verified on the "
            f"{judge.verifier.backend} backend; steps {self.step:,} to {self.config.steps:,}"
        )
        self.begun = time.monotonic()

    def _rollout(self) -> Batch:
        """This step's responses. With staleness the next step's are decoded too, before this one's update."""
        for step in range(self.step, min(self.step + self.config.staleness + 1, self.config.steps)):
            if step not in self.pending:
                picks = self.curriculum.picks(step)
                requests = self.curriculum.requests(step, picks)
                with self._part("decode"):
                    batch = self.rollouts.decode(requests, self._seeds("rollout", step, len(requests)))
                self.pending[step] = _Rollout(picks, batch)
        return self.pending[self.step].batch

    def _judge(self, batch: Batch) -> list[Episode]:
        """The batch's episodes, and those of the turns that mend them."""
        episodes: list[Episode] = []
        for turn in range(self.config.repair_turns + 1):
            with self._part("verify"):
                verdicts = self.rollouts.verdicts(batch)
            new = self._episodes(batch, verdicts)
            episodes += new
            requests = self.curriculum.mend(new, batch.requests) if turn < self.config.repair_turns else []
            if not requests:
                break
            with self._part("decode"):
                batch = self.rollouts.decode(requests, self._seeds(f"mend {turn}", self.step, len(requests)))
        return episodes

    def _episodes(self, batch: Batch, verdicts: Sequence[Verdict]) -> list[Episode]:
        """With rewards, normalised within each problem's answers of the same turn."""
        rewards = [reward(verdict, self.config) for verdict in verdicts]
        groups = defaultdict(list)
        for index, request in enumerate(batch.requests):
            groups[request.group].append(index)
        scores: dict[int, float | None] = {}
        for group in groups.values():
            scores |= zip(group, advantages([rewards[index] for index in group]), strict=True)
        return [
            Episode(
                self.step + 1, self.config.stage(self.step), request.group, request.sample, request.turn,
                request.problem, batch.traces[index], batch.kernels[index], verdicts[index], rewards[index],
                scores[index],
            )
            for index, request in enumerate(batch.requests)
        ]  # fmt: skip

    def _update(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """Move the policy; without a group that differs in itself there is nothing to move it by."""
        by_problem = sorted(episodes, key=lambda one: one.group)  # neighbours share their prompt's row
        learnt = [(one.trace, one.advantage) for one in by_problem if one.advantage is not None]
        if not learnt:
            self.log.say(f"step {self.step + 1:,}: no update, the rewards of every group are all equal.")
            return {}
        with self._part("update"):
            stats = self.policy.update(learnt)
        return {name: value for name, value in asdict(stats).items() if value is not None}

    def _report(self, episodes: Sequence[Episode], stats: dict[str, float]) -> None:
        """Episodes and metrics of the step that has just been done."""
        self.world.once(lambda: write_episodes(self.folder / "episodes", self.step, episodes))
        measured, stage = measure(episodes), self.config.stage(self.step - 1)
        parts = {f"{name}_s": round(value, 3) for name, value in self.parts.items()}
        seconds = time.monotonic() - self.begun
        self.begun = time.monotonic()
        self.parts.clear()
        faults = int(self.world.sum(torch.tensor(self.judge.faults)))
        self.judge.faults = 0
        self.seconds += seconds
        self.log.metrics(
            step=self.step, stage=stage, **measured, **stats, faults=faults, **parts, step_s=seconds,
            seconds=self.seconds,
        )  # fmt: skip
        left = self.seconds / self.step * (self.config.steps - self.step)
        spent = ", ".join(f"{name.removesuffix('_s')} {duration(value)}" for name, value in parts.items())
        self.log.show(
            self.step / self.config.steps,
            f"step {self.step:,}/{self.config.steps:,} {stage}  reward {measured['reward']:.3f}  "
            f"exec {measured['exec']:.1%}  deceptive {measured['deceptive']:.1%}  "
            f"{measured['flat_groups']:.0f} of {measured['groups']:.0f} groups flat  {duration(seconds)} ({spent})  "
            f"ETA {duration(left)}",
        )

    def _evaluate(self) -> None:
        """Exec on held-out problems, where it is due and not known yet."""
        due = self.step % self.config.eval_every == 0 or self.step == self.config.steps
        if self.held_out is None or not due or self.evaluated == self.step:
            return
        begun = time.monotonic()
        seeds = self._seeds("held out", self.step, len(self.held_out.requests))
        found = self.held_out.measure(self.rollouts, seeds)
        self.log.metrics(step=self.step, **found, eval_s=time.monotonic() - begun)
        self.evaluated = self.step
        self.log.say(f"step {self.step:,}: Exec on {len(seeds)} held-out problems {found['eval_exec']:.1%}")
        self.begun = time.monotonic()

    def _seeds(self, purpose: str, step: int, count: int) -> list[int]:
        return sample_seeds(step_generator(self.config.seed, purpose, step, "cpu").initial_seed(), count)

    @contextmanager
    def _part(self, name: str) -> Iterator[None]:
        """Seconds of the step, by what they go to."""
        begun = time.monotonic()
        yield
        self.parts[name] += time.monotonic() - begun

    def _save(self) -> None:
        manifest: dict[str, Any] = {
            "identity": self.identity, "seconds": self.seconds, "evaluated": self.evaluated,
            "curriculum": self.curriculum.state(),
            "pending": {step: rollout.to_json() for step, rollout in self.pending.items()},
        }  # fmt: skip
        with self._part("save"):  # counted in the next step, whose metrics are still to be written
            self.checkpoints.save(self.step, self.policy.tensors(), manifest)
            self.world.each(self.checkpoints.settle)
        self.saved_step = self.step

    def _resume(self) -> None:
        tensors = self.policy.tensors()
        state, notes = self.checkpoints.load(tensors, self._same_run)
        for note in notes:
            self.log.say(note)
        if state is None:
            return
        self.step, self.seconds = state.manifest["step"], state.manifest["seconds"]
        self.saved_step, self.evaluated = self.step, state.manifest["evaluated"]
        self.policy.load({name: tensors[name] for name in state.names})
        self.curriculum.restore(state.manifest["curriculum"])
        for step, held in state.manifest["pending"].items():
            traces = [Trace.from_json(trace) for trace in held["traces"]]
            requests = self.curriculum.recall(int(step), held["picks"], traces)
            self.pending[int(step)] = _Rollout(held["picks"], self.rollouts.recall(requests, traces))
        self.log.say(f"Resuming after step {self.step:,}.")

    def _same_run(self, manifest: dict[str, Any]) -> None:
        check_identity(self.folder, manifest, self.identity)

    def _finish(self, reason: str) -> RLResult:
        path = self.folder / "model"
        dtype = getattr(torch, self.config.export_dtype)
        state = self.policy.weights.export(self.world.leads)
        self.world.once(lambda: save_model(state, self.model_config, path, self.model_folder, dtype=dtype))
        self.log.say(f"{reason} after step {self.step:,} ({duration(self.seconds)} of training); model in {path}")
        return RLResult(self.step, self.step == self.config.steps, reason, path)


@dataclass
class _Rollout:
    """A step's tasks, and the responses to them."""

    picks: list[int]
    batch: Batch

    def to_json(self) -> dict[str, Any]:
        traces = [trace.to_json(compact=True) for _, trace in sorted(self.batch.traces.items())]
        return {"picks": self.picks, "traces": traces}
