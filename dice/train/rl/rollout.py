"""Rollouts: responses are decoded, and each is verified as soon as it is written, while others still are being.

Several processes write and verify a share each, and then know all of it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

import torch

from dice.decode.generate import DecodeConfig, StepEvent, generate
from dice.decode.trace import Trace
from dice.kernel import Kernel
from dice.model.sdar import SDAR
from dice.prompts import NO_KERNEL
from dice.train.rl.requests import KernelRequest, PromptBuilder
from dice.train.rl.verification import PendingVerdicts, VerifierPool
from dice.train.session import StopSignal, TrainingError
from dice.train.world import World
from dice.verdict import Verdict

Answer = tuple[Kernel | None, Trace]
Write = Callable[
    [SDAR, int, Sequence[Sequence[int]], DecodeConfig, Sequence[int], Callable[[], None], Callable[[int, Trace], None]],
    None,
]
"""Writes answers with a model whose weights are of a version: to prompts, with their seeds; calls a check now and then,
which may raise, and hands each trace over with its prompt's place. See `write_here`."""


def write_here(
    model: SDAR,
    version: int,
    prompts: Sequence[Sequence[int]],
    config: DecodeConfig,
    seeds: Sequence[int],
    check: Callable[[], None],
    on_trace: Callable[[int, Trace], None],
    engine: bool | None = None,
) -> None:
    """In this process. `engine`: whether it decodes, see `generate`."""

    def on_step(event: StepEvent) -> None:
        check()

    def ended(place: int, trace: Trace) -> None:
        on_trace(place, replace(trace, weights=version))

    generate(model, prompts, config, on_step, seeds, ended, engine=engine)


@dataclass
class Batch:
    """Requests, with what came of them so far. Only this process's share is in `pending`."""

    requests: list[KernelRequest]
    pending: PendingVerdicts
    traces: dict[int, Trace] = field(default_factory=dict)
    kernels: dict[int, Kernel | None] = field(default_factory=dict)

    def groups(self) -> list[list[int]]:
        """The places of the requests of each problem, problem after problem."""
        found: defaultdict[int, list[int]] = defaultdict(list)
        for index, request in enumerate(self.requests):
            found[request.group].append(index)
        return [found[group] for group in sorted(found)]

    def take(self, index: int, answer: Answer) -> None:
        self.kernels[index], self.traces[index] = answer

    def verify(self, index: int, kernel: Kernel | None) -> None:
        """Hand the kernel of response `index`, if there is one, to the verifier."""
        if kernel is not None:
            self.pending.put(index, self.requests[index].problem, kernel)


class Rollouts:
    """The sampler and the verifier side by side.

    `sampler()` is the model with the newest weights and `version()` says after how many updates; `config` says how
    responses are decoded, and `write` does it, here or elsewhere. All processes of `world` call the same methods with
    the same arguments, and what one of them raises is raised in all.
    """

    def __init__(
        self,
        sampler: Callable[[], SDAR],
        prompt_builder: PromptBuilder,
        pool: VerifierPool,
        config: DecodeConfig,
        stopped: StopSignal,
        world: World,
        version: Callable[[], int],
        write: Write = write_here,
    ) -> None:
        self.version, self.write = version, write
        self.sampler, self.prompt_builder, self.pool, self.config = sampler, prompt_builder, pool, config
        self.stopped, self.world = stopped, world
        self._scaffold_stops = prompt_builder.stop_ids()

    def decode(
        self, requests: Sequence[KernelRequest], seeds: Sequence[int], *, temperature: float | None = None
    ) -> Batch:
        """Write all responses; verdicts on the first are under way by then. All requests have a scaffold, or none.

        `seeds` belong to requests, so that a response does not depend on which process writes it. Raises `Interrupted`,
        having called everything off.
        """
        stops = self.config.stop_ids or frozenset()
        scaffolded = any(request.scaffold for request in requests)
        config = replace(
            self.config,
            stop_ids=stops | self._scaffold_stops if scaffolded else stops,
            temperature=self.config.temperature if temperature is None else temperature,
        )
        batch, model = Batch(list(requests), self.pool.begin()), self.sampler()
        own = share(requests, self.world)
        try:
            for answers in self.world.all_gather(lambda: self._write(model, batch, own, config, seeds)):
                for index, answer in answers.items():
                    batch.take(index, answer)
        except BaseException:
            batch.pending.call_off()
            raise
        return batch

    def _write(
        self, model: SDAR, batch: Batch, own: Sequence[int], config: DecodeConfig, seeds: Sequence[int]
    ) -> dict[int, Answer]:
        """This process's share of the answers."""
        answers: dict[int, Answer] = {}

        def on_trace(place: int, trace: Trace) -> None:
            index = own[place]
            answers[index] = self.prompt_builder.parse(batch.requests[index], trace)
            batch.verify(index, answers[index][0])

        prompts = [batch.requests[index].prompt_ids for index in own]
        own_seeds = [seeds[index] for index in own]
        self.write(model, self.version(), prompts, config, own_seeds, self.stopped.check, on_trace)
        batch.pending.close()
        torch.cuda.empty_cache()  # for the kernels, which run in processes of their own
        if not all(math.isfinite(sum(trace.logprobs)) for _, trace in answers.values()):
            raise TrainingError(
                "Stopped: the policy's probabilities are not numbers any more; go back to an earlier checkpoint, or "
                "try a lower policy.lr."
            )
        return answers

    def restore(self, requests: Sequence[KernelRequest], traces: Sequence[Trace]) -> Batch:
        """The batch of responses that were decoded before a restart, and are verified now."""
        batch = Batch(list(requests), self.pool.begin())
        for index, (request, trace) in enumerate(zip(requests, traces, strict=True)):
            batch.take(index, self.prompt_builder.parse(request, trace))
        for index in share(requests, self.world):
            batch.verify(index, batch.kernels[index])
        batch.pending.close()
        return batch

    def verdicts(
        self, batch: Batch, places: Collection[int] | None = None, *, stops: bool = True
    ) -> dict[int, Verdict]:
        """Wait for the verdicts on these requests' responses (default: on all). Raises `Interrupted` (unless it is not
        to stop, as amid an update), `VerifierDown`."""
        places = range(len(batch.requests)) if places is None else places
        own = [index for index in places if index in batch.pending.pairs]
        stopped = self.stopped if stops else StopSignal()
        found: dict[int, Verdict] = {}
        for part in self.world.all_gather(lambda: self.pool.finish(batch.pending, own, stopped)):
            found |= part
        return {index: found.get(index, NO_KERNEL) for index in places}


def share(requests: Sequence[KernelRequest], world: World) -> list[int]:
    """The indices of this process's requests: as many as each other's, and whole groups as far as that allows.

    The kernels of a group are verified against one run of their reference. Groups come easy to hard, so they are dealt
    in turn.
    """
    order = sorted(range(len(requests)), key=lambda index: (requests[index].group % world.size, index))
    return order[len(order) * world.rank // world.size : len(order) * (world.rank + 1) // world.size]
