"""Rollouts: responses are decoded, and each is verified as soon as it is written, while others still are being."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from dice.decode.generate import DecodeConfig, StepEvent, generate
from dice.decode.trace import Trace
from dice.kernel import Kernel
from dice.model.sdar import SDAR
from dice.prompts import NO_KERNEL
from dice.train.rl.judge import Interrupted, Judge, Judging
from dice.train.rl.request import Desk, Request
from dice.train.session import Stop
from dice.train.sft import TrainingError
from dice.verdict import Verdict


@dataclass
class Batch:
    """Requests, with what came of them so far."""

    requests: list[Request]
    judging: Judging
    traces: dict[int, Trace] = field(default_factory=dict)
    kernels: dict[int, Kernel | None] = field(default_factory=dict)

    def take(self, index: int, kernel: Kernel | None, trace: Trace) -> None:
        self.traces[index], self.kernels[index] = trace, kernel
        if kernel is not None:
            self.judging.put(index, self.requests[index].problem, kernel)


class Rollouts:
    """The sampler and the verifier side by side.

    `sampler()` is the model with the weights of the moment; `config` says how responses are decoded.
    """

    def __init__(
        self, sampler: Callable[[], SDAR], desk: Desk, judge: Judge, config: DecodeConfig, stopped: Stop
    ) -> None:
        self.sampler, self.desk, self.judge, self.config, self.stopped = sampler, desk, judge, config, stopped
        self._scaffold_stops = desk.stop_ids()

    def decode(self, requests: Sequence[Request], seeds: Sequence[int], *, temperature: float | None = None) -> Batch:
        """Write all responses; verdicts on the first are under way by then. All requests have a scaffold, or none.

        Raises `Interrupted`, having called everything off.
        """
        stops = self.config.stop_ids or frozenset()
        scaffolded = any(request.scaffold for request in requests)
        config = replace(
            self.config,
            stop_ids=stops | self._scaffold_stops if scaffolded else stops,
            temperature=self.config.temperature if temperature is None else temperature,
        )
        batch = Batch(list(requests), self.judge.begin())

        def on_step(event: StepEvent) -> None:
            if self.stopped.is_set():
                raise Interrupted

        def on_trace(index: int, trace: Trace) -> None:
            batch.take(index, *self.desk.read(batch.requests[index], trace))

        try:
            prompts = [request.prompt_ids for request in requests]
            generate(self.sampler(), prompts, config, on_step, seeds, on_trace)
        except BaseException:
            batch.judging.call_off()
            raise
        batch.judging.close()
        if not all(math.isfinite(sum(trace.logprobs)) for trace in batch.traces.values()):
            batch.judging.call_off()
            raise TrainingError(
                "Stopped: the policy's probabilities are not numbers any more; go back to an earlier checkpoint, or "
                "try a lower policy.lr."
            )
        return batch

    def recall(self, requests: Sequence[Request], traces: Sequence[Trace]) -> Batch:
        """The batch of responses that were decoded before a restart, and are verified now."""
        batch = Batch(list(requests), self.judge.begin())
        for index, (request, trace) in enumerate(zip(requests, traces, strict=True)):
            batch.take(index, *self.desk.read(request, trace))
        batch.judging.close()
        return batch

    def verdicts(self, batch: Batch) -> list[Verdict]:
        """Wait for the last verdicts. Raises `Interrupted`, `VerifierDown`."""
        found = self.judge.finish(batch.judging)
        return [found.get(index, NO_KERNEL) for index in range(len(batch.requests))]
