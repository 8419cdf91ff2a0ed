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
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch

from dice.decode.generate import DecodeConfig, sample_seeds
from dice.decode.trace import Trace
from dice.errors import MachineError, UserError
from dice.files import JsonObject
from dice.model.checkpoint import load_model, resolve_model, save_model
from dice.model.sdar import SDARConfig
from dice.model.tokenizer import Tokenizer
from dice.prompts import infill, infill_with_example
from dice.train.noise import step_generator
from dice.train.plan.disk import DiskNeed, check_disk
from dice.train.plan.gpus import peak_flops
from dice.train.rl.config import RLConfig
from dice.train.rl.curriculum import Curriculum
from dice.train.rl.episode import Episode, write_episodes
from dice.train.rl.evaluation import HeldOut, measure
from dice.train.rl.policy import Policy, PolicyConfig
from dice.train.rl.released import released_infill
from dice.train.rl.replay import Floats
from dice.train.rl.requests import InfillPrompt, PromptBuilder
from dice.train.rl.reward import advantages, reward
from dice.train.rl.rollout import Batch, Rollouts, Write, write_here
from dice.train.rl.verification import VerifierPool
from dice.train.run import RunContext, check_identity, run_context
from dice.train.runlog import duration
from dice.train.session import TERMINATED, Interrupted, compute_dtype
from dice.train.weights import stored_bytes
from dice.train.world import World
from dice.verify import Verifier

# FlexAttention computes in tiles of this many tokens, so a row of the update is made of whole tiles.
TILE_TOKENS = 128
# The settings that must be the same for a resumed run to be the same run.
IDENTITY = (
    "infill_steps", "generate_steps", "problems", "responses", "order", "infill_form", "infill_prompt", "protocol",
    "seed",
)  # fmt: skip


OpenEngines = Callable[[SDARConfig], AbstractContextManager[Write]]
"""Starts what writes responses with models of a configuration, for the time of a context."""


@dataclass(frozen=True, slots=True)
class RLResult:
    """How a call ended: steps done in all, whether the run is complete, and why it stopped."""

    step: int
    finished: bool
    reason: str
    model: Path


def train_rl(
    config: RLConfig, make_verifier: Callable[..., Verifier] | None = None, open_engines: OpenEngines | None = None
) -> RLResult:
    """Train, or go on training, the run in `config.out`; export the model to `out/model` at the end of every call.

    Raises `UserError` for unusable settings or data and for an update that is not a number, `MachineError` when memory
    or disk run out or the verifier stays broken. Checkpoints written before stay usable, and the same call goes on.
    SIGTERM and Ctrl-C give up the step under way and end the call with a checkpoint of the last whole one.
    Torchrun's processes all call this; a signal to one of them, or an error in one, ends it in all. `make_verifier`:
    see `VerifierPool.open`. `open_engines`: has responses written elsewhere.
    """
    config.check()
    assert config.out is not None
    folder = Path(config.out)
    with run_context(folder, "rl", config.device, config.keep_checkpoints) as context:
        try:
            setup = _prepare(config, context)
            opening = VerifierPool.open(config, context.world, context.stopped, context.log.say, make_verifier)
            here = partial(write_here, engine={"auto": None, "on": True, "off": False}[config.engine])
            writing = open_engines(setup.model_config) if open_engines is not None else nullcontext(here)
            with writing as write, context.world.opened(opening) as pool:
                return _Run(config, context, setup, pool, write).train()
        except torch.OutOfMemoryError:
            raise MachineError(
                f"The GPU's memory ran out; lower max_active ({config.max_active}) if it was in decoding, or the "
                f"policy's micro-batch if it was in the update."
            ) from None
        except OSError as error:
            raise MachineError(f"Cannot write to {folder}: {error.strerror or error}; checkpoints are kept.") from None


@dataclass(frozen=True, slots=True)
class _Setup:
    """What a run works with, from its model's folder and its data."""

    model_folder: Path
    model_config: SDARConfig
    parameters: int
    prompt_builder: PromptBuilder
    curriculum: Curriculum
    held_out: HeldOut | None
    decoding: DecodeConfig
    policy: Policy


def _prepare(config: RLConfig, context: RunContext) -> _Setup:
    """Raises `UserError` for a model or data that nothing can be trained with."""
    world, say = context.world, context.log.say
    model_folder = resolve_model(str(config.model))
    tokenizer = Tokenizer.from_folder(model_folder)
    torch.manual_seed(config.seed)
    model = load_model(model_folder, dtype=torch.float32, device=world.device)
    traits = model.config
    traits.to_json()  # raises now, before hours of training, where such a model could not be saved
    if traits.traits.kind != "block_diffusion":
        raise UserError(f"{config.model} does not write by block diffusion (its family is {traits.family}).")
    prompt_builder = PromptBuilder(
        tokenizer,
        compact=(traits.prompt if config.prompt == "auto" else config.prompt) == "compact",
        scaffolded=config.infill_form == "scaffold",
        response_prefix=config.response_prefix,
        infill=_infill_prompt(config),
    )
    room = traits.max_position_embeddings - config.max_new_tokens - traits.block_size
    curriculum = Curriculum(config, prompt_builder, room, say)
    decoding = DecodeConfig(
        max_new_tokens=config.max_new_tokens, confidence_threshold=config.confidence_threshold,
        temperature=config.temperature, top_p=config.top_p, top_k=config.top_k, max_active=config.max_active,
        stop_ids=tokenizer.stop_ids, vocab_limit=tokenizer.vocab_size,
    )  # fmt: skip
    parameters = sum(weight.numel() for weight in model.parameters())
    policy = Policy(
        model,
        _policy_config(config, traits.block_size, curriculum.longest_prompt, tokenizer.vocab_size),
        world=world,
        compute_dtype=compute_dtype(config.precision, world.device),
        say=say,
        reference=load_model(model_folder, device=world.device) if config.reference == "initial" else None,
    )
    need = _disk_need(config, policy, parameters)
    assert config.out is not None
    folder = Path(config.out)
    world.broadcast_from_leader(lambda: check_disk(need, folder, say))
    held_out = HeldOut.read(config, prompt_builder, room, say, curriculum.problem_ids)
    return _Setup(model_folder, traits, parameters, prompt_builder, curriculum, held_out, decoding, policy)


def _disk_need(config: RLConfig, policy: Policy, parameters: int) -> DiskNeed:
    """Episodes and kept verdicts not counted."""
    checkpoint = stored_bytes(policy.tensors())
    exported = parameters * getattr(torch, config.export_dtype).itemsize
    return DiskNeed(checkpoint, checkpoint, exported, config.keep_checkpoints)


def _infill_prompt(config: RLConfig) -> InfillPrompt:
    """Raises `UserError` where the released code's prompt is asked for and not found."""
    if config.infill_prompt == "released" and config.released_code is not None:
        return released_infill(config.released_code)
    return infill_with_example if config.infill_prompt == "with_example" else infill


def _policy_config(config: RLConfig, block_size: int, longest_prompt: int, vocab_limit: int) -> PolicyConfig:
    """Told how responses are decoded, and with rows that hold the longest response, all its rounds replayed."""
    copies = 1 + -(-block_size // config.policy.shrink)
    longest = longest_prompt + copies * (config.max_new_tokens + block_size)
    return replace(
        config.policy, max_new_tokens=config.max_new_tokens, temperature=config.temperature, vocab_limit=vocab_limit,
        row_tokens=max(config.policy.row_tokens, -(-longest // TILE_TOKENS) * TILE_TOKENS),
    )  # fmt: skip


Scores = dict[int, Floats]
"""By a request's place, the log-probabilities of its response's tokens before the update, see `Policy.score`."""


@dataclass
class _Rollout:
    """A step's tasks, and the responses to them."""

    picks: list[int]
    batch: Batch

    def to_json(self) -> dict[str, object]:
        traces = [trace.to_json(compact=True) for _, trace in sorted(self.batch.traces.items())]
        return {"picks": self.picks, "traces": traces}


class _Run:
    """A run and how far it has come: `step` steps are done, in `seconds` over all calls.

    `rollouts_ahead` holds the responses to steps that are not done yet.
    """

    def __init__(self, config: RLConfig, context: RunContext, setup: _Setup, pool: VerifierPool, write: Write) -> None:
        self.config, self.setup, self.pool = config, setup, pool
        self.world, self.log, self.checkpoints, self.stopped, self.started = context
        self.policy, self.curriculum = setup.policy, setup.curriculum
        self.rollouts = Rollouts(
            lambda: setup.policy.sampler, setup.prompt_builder, pool, setup.decoding, self.stopped, self.world,
            lambda: self.step, write,
        )  # fmt: skip
        self.identity = {"tasks_sha256": self.curriculum.digest} | {name: getattr(config, name) for name in IDENTITY}
        self.step, self.seconds = 0, 0.0
        self.step_begun = time.monotonic()
        self.part_seconds: defaultdict[str, float] = defaultdict(float)  # of this step, by what they went to
        self.rollouts_ahead: dict[int, _Rollout] = {}
        self.saved_step: int | None = None
        self.evaluated_step: int | None = None

    def train(self) -> RLResult:
        """The loop: one step, then whatever is due."""
        self._resume()
        self._begin()
        config, reason = self.config, "finished"
        try:
            self._evaluate()
            while self.step < config.steps:
                if self.step >= (config.stop_at_step or config.steps):
                    reason = "stop_at_step"
                    break
                batch = self._rollout()
                scores = self._score(batch)
                episodes, stats = self._learn(batch, scores)
                self.curriculum.record(episodes)
                del self.rollouts_ahead[self.step]
                self.step += 1
                self._report(episodes, stats)
                self._evaluate()
                age, stopped = self.world.all_reduce_max(time.monotonic() - self.started, self.stopped.is_set())
                if self.step < config.steps and (stopped or age >= (config.stop_after_seconds or math.inf)):
                    reason = (self.stopped.reason or TERMINATED) if stopped else "stop_after_seconds"
                    break
                if self.step % config.checkpoint_every == 0:
                    self._save()
        except Interrupted as interrupted:  # the step under way is given up
            reason = str(interrupted)
        finally:
            for rollout in self.rollouts_ahead.values():
                rollout.batch.pending.call_off()
        if self.saved_step != self.step:
            self._save()
        return self._finish(reason)

    def _begin(self) -> None:
        kept = -1 if self.saved_step is None else self.step
        self.log.begin(self.config.to_json() | self.identity, kept, self.world.device)
        counts = ", ".join(f"{len(tasks):,} problems to {stage}" for stage, tasks in self.curriculum.tasks.items())
        self.log.say(
            f"{self.setup.parameters / 1e6:.1f}M parameters, {self.world}; {counts}; kernels verified on the "
            f"{self.pool.verifier.backend} backend; steps {self.step:,} to {self.config.steps:,}"
        )
        self.step_begun = time.monotonic()

    def _rollout(self) -> Batch:
        """This step's responses. With staleness the next step's are decoded too, before this one's update."""
        for step in range(self.step, min(self.step + self.config.staleness + 1, self.config.steps)):
            if step not in self.rollouts_ahead:
                picks = self.curriculum.picks(step)
                requests = self.curriculum.requests(step, picks)
                with self._part("decode"):
                    batch = self.rollouts.decode(requests, self._seeds("rollout", step, len(requests)))
                self.rollouts_ahead[step] = _Rollout(picks, batch)
        return self.rollouts_ahead[self.step].batch

    def _score(self, batch: Batch) -> Scores | None:
        """Log-probabilities of the responses before the update, group by group while verdicts are still under way; None
        where the update asks for none. Not beside kernels that are timed on the policy's GPU."""
        traces = [batch.traces[index] for index in range(len(batch.requests))]
        with self._part("score"):
            if not self.policy.must_score(traces):
                return None
            scores: Scores = {}
            for group in batch.groups():
                waits = self.pool.at_once and batch.pending.under_way and not self.stopped.is_set()
                (waits_somewhere,) = self.world.all_reduce_max(waits)
                if not waits_somewhere:
                    break
                scores |= self._scores_of(group, batch)
            return scores

    def _scores_of(self, group: Sequence[int], batch: Batch) -> Scores:
        return dict(zip(group, self.policy.score([batch.traces[index] for index in group]), strict=True))

    def _learn(self, batch: Batch, scores: Scores | None) -> tuple[list[Episode], dict[str, float]]:
        """Move the policy, problem after problem, as their verdicts come; without a group that differs in itself there
        is nothing to move it by. Where samples are scored, or kernels timed on the policy's GPU, all verdicts come
        first. The update is the same."""
        episodes: dict[int, Episode] = {}
        updates = self.policy.updates

        def learnt() -> Iterator[int]:
            for group in batch.groups():  # neighbours share their prompt's row
                episodes.update(self._verified(batch, group, stops=self.policy.updates == updates))
                yield from (index for index in group if episodes[index].advantage is not None)

        def sample(index: int) -> tuple[Trace, float]:
            advantage = episodes[index].advantage
            assert advantage is not None
            return batch.traces[index], advantage

        stats = None
        if scores is None and self.pool.at_once:
            with self._part("update"):
                stats = self.policy.update_meanwhile(map(sample, learnt()))
        elif places := list(learnt()):
            old = None if scores is None else self._scores_for(places, batch, scores)
            with self._part("update"):
                stats = self.policy.update(list(map(sample, places)), old)
        if stats is None:
            self.log.say(f"step {self.step + 1:,}: no update, the rewards of every group are all equal.")
        (self.part_seconds["verify"],) = self.world.all_reduce_max(batch.pending.seconds)
        return [episodes[index] for index in sorted(episodes)], {} if stats is None else asdict(stats)

    def _verified(self, batch: Batch, group: Sequence[int], *, stops: bool) -> dict[int, Episode]:
        """The episodes of a problem's answers, with verdicts, rewards, and advantages normalised within them. `stops`:
        whether a signal ends the wait, as it may while the step can still be given up."""
        with self._part("wait"):
            verdicts = self.rollouts.verdicts(batch, group, stops=stops)
        rewards = [reward(verdicts[index], self.config) for index in group]
        return {
            index: Episode(
                self.step + 1, self.config.stage(self.step), request.group, request.sample, request.problem,
                batch.traces[index], batch.kernels[index], verdicts[index], worth, advantage,
            )
            for index, request, worth, advantage in zip(
                group, [batch.requests[index] for index in group], rewards, advantages(rewards), strict=True
            )
        }  # fmt: skip

    def _scores_for(self, places: Sequence[int], batch: Batch, scores: Scores) -> list[Floats]:
        """Those that are still missing are computed now."""
        with self._part("score"):
            for group in batch.groups():
                if set(places) & set(group) and group[0] not in scores:
                    scores |= self._scores_of(group, batch)
        return [scores[index] for index in places]

    def _report(self, episodes: Sequence[Episode], stats: dict[str, float]) -> None:
        """Episodes and metrics of the step that has just been done."""
        self.world.broadcast_from_leader(lambda: write_episodes(self.log.folder / "episodes", self.step, episodes))
        measured, stage = measure(episodes), self.config.stage(self.step - 1)
        parts = {f"{name}_s": round(value, 3) for name, value in self.part_seconds.items()}
        seconds = time.monotonic() - self.step_begun
        self.step_begun = time.monotonic()
        self.part_seconds.clear()
        faults = int(self.world.all_reduce_sum(torch.tensor(self.pool.faults)))
        self.pool.faults = 0
        self.seconds += seconds
        speed = _speed(stats, parts.get("update_s", 0.0), self.world)
        self.log.metrics(
            step=self.step, stage=stage, **measured, **stats, faults=faults, **parts, **speed, step_s=seconds,
            seconds=self.seconds,
        )  # fmt: skip
        left = self.seconds / self.step * (self.config.steps - self.step)
        spent = ", ".join(f"{name.removesuffix('_s')} {duration(value)}" for name, value in parts.items())
        if "mfu" in speed:
            spent += f"; MFU of the update {speed['mfu']:.1%}"
        self.log.show(
            self.step / self.config.steps,
            f"step {self.step:,}/{self.config.steps:,} {stage}  reward {measured['reward']:.3f}  "
            f"exec {measured['exec']:.1%}  deceptive {measured['deceptive']:.1%}  "
            f"{measured['flat_groups']:.0f} of {measured['groups']:.0f} groups flat  {duration(seconds)} ({spent})  "
            f"ETA {duration(left)}",
        )

    def _evaluate(self) -> None:
        """Exec on the problems of `eval_data`, where it is due and not known yet."""
        held_out = self.setup.held_out
        due = self.step % self.config.eval_every == 0 or self.step == self.config.steps
        if held_out is None or not due or self.evaluated_step == self.step:
            return
        begun = time.monotonic()
        seeds = self._seeds("held out", self.step, len(held_out.requests))
        found = held_out.measure(self.rollouts, seeds)
        self.log.metrics(step=self.step, **found, eval_s=time.monotonic() - begun)
        self.evaluated_step = self.step
        self.log.say(f"step {self.step:,}: Exec on {held_out.described} {found['eval_exec']:.1%}")
        self.step_begun = time.monotonic()

    def _seeds(self, purpose: str, step: int, count: int) -> list[int]:
        return sample_seeds(step_generator(self.config.seed, purpose, step, "cpu").initial_seed(), count)

    @contextmanager
    def _part(self, name: str) -> Iterator[None]:
        """Count the seconds of the block as this part of the step, but for those of parts inside it."""
        begun, others = time.monotonic(), sum(self.part_seconds.values())
        yield
        self.part_seconds[name] += time.monotonic() - begun - (sum(self.part_seconds.values()) - others)

    def _save(self) -> None:
        manifest: JsonObject = {
            "identity": self.identity, "seconds": self.seconds, "evaluated": self.evaluated_step,
            "curriculum": self.curriculum.state(),
            "pending": {step: rollout.to_json() for step, rollout in self.rollouts_ahead.items()},
        }  # fmt: skip
        with self._part("save"):  # counted in the next step, whose metrics are still to be written
            self.checkpoints.save(self.step, self.policy.tensors(), manifest)
            self.world.all_gather(self.checkpoints.settle)
        self.saved_step = self.step

    def _resume(self) -> None:
        """Go on from the newest checkpoint, where there is one."""
        tensors = self.policy.tensors()
        state, notes = self.checkpoints.load(tensors, self._same_run)
        for note in notes:
            self.log.say(note)
        if state is None:
            return
        self.step, self.seconds = state.manifest["step"], state.manifest["seconds"]
        self.saved_step, self.evaluated_step = self.step, state.manifest["evaluated"]
        self.policy.load({name: tensors[name] for name in state.names})
        self.curriculum.restore(state.manifest["curriculum"])
        for step, held in state.manifest["pending"].items():
            traces = [Trace.from_json(trace) for trace in held["traces"]]
            requests = self.curriculum.requests(int(step), held["picks"])
            self.rollouts_ahead[int(step)] = _Rollout(held["picks"], self.rollouts.restore(requests, traces))
        self.log.say(f"Resuming after step {self.step:,}.")

    def _same_run(self, manifest: JsonObject) -> None:
        check_identity(self.log.folder, manifest, self.identity)

    def _finish(self, reason: str) -> RLResult:
        path = self.log.folder / "model"
        dtype = getattr(torch, self.config.export_dtype)
        state = self.policy.weights.export(self.world.leads)
        self.world.broadcast_from_leader(
            lambda: save_model(state, self.setup.model_config, path, self.setup.model_folder, dtype=dtype)
        )
        self.log.say(f"{reason} after step {self.step:,} ({duration(self.seconds)} of training); model in {path}")
        return RLResult(self.step, self.step == self.config.steps, reason, path)


def _speed(stats: dict[str, float], seconds: float, world: World) -> dict[str, float]:
    """How fast the update computed, on each GPU or CPU: operations a second, and where the peak is known its share of
    that."""
    if not stats:
        return {}
    rate, peak = stats["work"] / max(seconds, 1e-3) / world.size, peak_flops(world.device)
    return {"update_flops_s": rate} | ({"mfu": rate / peak} if peak else {})
