"""Rollouts on the GPUs of a cluster: one process a GPU decodes a share of the prompts, with weights sent to it.

Weights have a number, the version, and so does every trace. They go from the trainer's GPU to those of all others at a
time or, where that cannot be, through the object store, where each machine has them once for all of its GPUs.

What a lost process had not written is written again, and it is replaced; what a silent one has not is written by
others, too, once they have nothing else to do. A prompt's randomness is its seed's, so that the answer is the one that
it would have been.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import ray
import torch
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from dice.cluster.connect import connect, first_line, nodes
from dice.cluster.peer import CONTROL, Peer, kill_actor
from dice.cluster.pulse import JOIN_S, Pulses
from dice.cluster.rounds import POLL_S, Round, Work
from dice.cluster.weights import HAND_S, Channel, Plan, packed, plan_of, room_for, unpacked
from dice.decode.generate import DecodeConfig, StepEvent, generate
from dice.decode.trace import Trace
from dice.errors import MachineError
from dice.launch import leave_working_directory
from dice.model.sdar import SDAR, SDARConfig

log = logging.getLogger(__name__)

REPLACEMENTS = 8  # processes that may be lost in one call, before it is given up


class _Unwanted(Exception):
    """Nobody waits for what is being written."""


class Engine:
    """A model on one GPU. `device`: cuda or cpu."""

    def __init__(self, config: SDARConfig, device: str) -> None:
        leave_working_directory()
        torch.set_num_threads(1)
        with torch.device("meta"):
            self._model = SDAR(config)
        self._device = torch.device(device)
        self._version: int | None = None
        self._plan: Plan = {}
        self._channel: Channel | None = None
        self._wanted = 0  # the first round that is not over

    def where(self) -> str:
        """The node's id."""
        return str(ray.get_runtime_context().get_node_id())

    def pulse(self) -> None:
        """A sign of life."""

    def leave(self, number: int) -> None:
        """Stop what is written for rounds up to this one."""
        self._wanted = number + 1

    def load(self, version: int, weights: dict[str, Any]) -> None:
        """Take these weights (arrays, see `packed`), and be of this version."""
        self._take({name: unpacked(one).to(self._device, copy=True) for name, one in weights.items()})
        self._version = version

    def meet(self, rank: int, size: int, address: str, port: int) -> None:
        """Be one of those that weights are handed over to."""
        self._channel = Channel(self._device, rank, size, address, port)
        self._channel.join()

    def receive(self, version: int, plan: Plan) -> None:
        """Take what is handed over, and be of this version."""
        assert self._channel is not None
        self._version = None
        if self._plan != plan:
            self._take(room_for(plan, self._device))
        state = self._model.state_dict()
        self._channel.hand_over(state[name] for name in plan)
        self._version = version

    def _take(self, state: dict[str, torch.Tensor]) -> None:
        self._plan = plan_of(state)
        if self._model.config.tied:
            state["lm_head.weight"] = state["model.embed_tokens.weight"]
        fresh = self._model.lm_head.weight.is_meta
        self._model.load_state_dict(state, assign=True)
        self._model.tie()
        if fresh:
            self._model.init_rope(self._device)

    def write(
        self,
        number: int,
        version: int,
        prompts: Sequence[Sequence[int]],
        config: DecodeConfig,
        seeds: Sequence[int],
    ) -> Iterator[tuple[int, Trace]]:
        """(place, trace) of each prompt, as soon as its text ends. `number`: of the round that this is for."""
        assert version == self._version, f"weights {version} were asked for, and these are {self._version}"
        ended: queue.SimpleQueue[tuple[int, Trace] | BaseException | None] = queue.SimpleQueue()

        def check(event: StepEvent) -> None:
            if number < self._wanted:
                raise _Unwanted

        def work() -> None:
            try:
                generate(self._model, prompts, config, check, seeds, lambda place, trace: ended.put((place, trace)))
                ended.put(None)
            except _Unwanted:
                ended.put(None)
            except BaseException as error:  # noqa: B036 - raised in the thread of Ray's
                ended.put(error)

        if number >= self._wanted:
            threading.Thread(target=work, daemon=True).start()
            while (one := ended.get()) is not None:
                if isinstance(one, BaseException):
                    raise one
                yield one[0], replace(one[1], weights=version)


class Engines:
    """`count` processes that decode, each with a GPU of its own where `device` is cuda. Closed, they give it back.

    `direct`: weights are handed over past the object store; by default where `device` is cuda and the model is on
    a GPU, too. Raises `MachineError` where the cluster has too few GPUs, or they do not start.
    """

    def __init__(
        self, address: str, config: SDARConfig, count: int, device: str = "cuda", *, direct: bool | None = None
    ) -> None:
        connect(address)
        self._config, self._device = config, device
        gpus = sum(node.gpus for node in nodes())
        if device == "cuda" and gpus < count:
            raise MachineError(f"{count} engines need a GPU each, and the cluster has {gpus}.")
        self._version: int | None = None
        self._model: SDAR | None = None
        self._weights: Any = None  # in the object store, once anybody needs them there
        self._direct = device == "cuda" if direct is None else direct
        self._channel: Channel | None = None
        self._met: list[Peer] = []  # by the channel
        self._rounds = self.lost = 0
        self._engines = [self._start() for _ in range(count)]
        try:
            places = ray.get([engine.actor.where.remote() for engine in self._engines], timeout=JOIN_S)
        except (RayError, GetTimeoutError) as error:
            for engine in self._engines:
                kill_actor(engine.actor)
            raise MachineError(f"Processes that decode do not start: {first_line(error)}") from None
        for engine in self._engines:
            engine.is_heard()
        self._pulses = Pulses(lambda: list(self._engines), self._doubt, self._lose)
        self.gpus_taken = {node: places.count(node) if device == "cuda" else 0 for node in places}

    def close(self) -> None:
        self._pulses.close()
        for engine in self._engines:
            kill_actor(engine.actor)
        self._engines.clear()
        if self._channel is not None:
            self._channel.close()

    def __enter__(self) -> Engines:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(
        self,
        model: SDAR,
        version: int,
        prompts: Sequence[Sequence[int]],
        config: DecodeConfig,
        seeds: Sequence[int],
        check: Callable[[], None],
        on_trace: Callable[[int, Trace], None],
    ) -> None:
        """Answers of `model`, whose weights are of this version, as they come: `on_trace` gets (place, trace).

        `check` is called now and then, and may raise. Raises what decoding raises, `MachineError` where processes are
        lost again and again.
        """
        self.send(model, version)
        self._rounds += 1
        number, lost_before = self._rounds, self.lost
        answers = Round(number, Work(version, prompts, config, seeds), on_trace)
        try:
            while not answers.ended:
                check()
                for engine in self._replace_lost():
                    answers.forget(engine)
                if self.lost - lost_before >= REPLACEMENTS:
                    raise MachineError(
                        f"Processes that decode were lost {REPLACEMENTS} times; the same command goes on."
                    )
                answers.deal(self._engines)
                for engine, why in answers.take():
                    self._lose(engine, why)
        finally:
            for engine in answers.unheard():  # what they write is nobody's
                with contextlib.suppress(RayError):
                    engine.actor.leave.options(concurrency_group=CONTROL).remote(number)

    def send(self, model: SDAR, version: int) -> None:
        """Weights of another version go to all engines; those that are silent have them before they write again."""
        if version == self._version:
            return
        self._model, self._version, self._weights = model, version, None
        able = [engine for engine in self._engines if not (engine.silent or engine.lost)]
        have = self._hand_over(model, version, able) if self._direct and able else []
        others = [engine for engine in self._engines if engine not in have]
        loading = {engine.actor.load.remote(version, self._stored()): engine for engine in others}
        while loading := {one: engine for one, engine in loading.items() if not (engine.silent or engine.lost)}:
            for one in ray.wait(list(loading), num_returns=1, timeout=POLL_S)[0]:
                engine = loading.pop(one)
                try:
                    ray.get(one)
                    engine.is_heard()
                except RayTaskError as error:
                    raise error.cause from None
                except RayError as error:
                    self._lose(engine, first_line(error))

    def _hand_over(self, model: SDAR, version: int, engines: list[Peer]) -> list[Peer]:
        """Those that have the weights by now, from the model's own memory: all, or none where that does not go."""
        state = model.state_dict()
        if model.lm_head.weight.device.type != self._device:
            return []
        try:
            if self._channel is None or self._met != engines:
                self._meet(engines, model.lm_head.weight.device)
            assert self._channel is not None
            hearing = [engine.actor.receive.remote(version, plan_of(state)) for engine in engines]
            self._channel.hand_over(state.values())
            ray.get(hearing, timeout=HAND_S)
        except (RayError, GetTimeoutError, RuntimeError) as error:
            log.warning("Weights cross the object store, since they are not handed over: %s", first_line(error))
            if self._channel is not None:
                self._channel.close()
            self._channel = None
            self._direct = any(engine.silent or engine.lost for engine in engines)  # else it would fail again
            return []
        return engines

    def _meet(self, engines: list[Peer], device: torch.device) -> None:
        """Make the channel to these."""
        if self._channel is not None:
            self._channel.close()
        address, size = ray.util.get_node_ip_address(), 1 + len(engines)
        self._channel, self._met = Channel(device, 0, size, address), engines
        meeting = [
            engine.actor.meet.remote(rank, size, address, self._channel.port)
            for rank, engine in enumerate(engines, start=1)
        ]
        self._channel.join()
        ray.get(meeting, timeout=HAND_S)

    def _stored(self) -> Any:
        """The newest weights in the object store."""
        if self._weights is None and self._model is not None:
            self._weights = ray.put({name: packed(one) for name, one in self._model.state_dict().items()})
        return self._weights

    def _start(self) -> Peer:
        actor_class: Any = ray.remote
        there = actor_class(
            num_cpus=0, num_gpus=1 if self._device == "cuda" else 0, scheduling_strategy="SPREAD", max_restarts=0,
            max_task_retries=0, concurrency_groups={CONTROL: 1},
        )  # fmt: skip
        engine = there(Engine).remote(self._config, self._device)
        if self._version is not None:
            engine.load.remote(self._version, self._stored())
        return Peer(None, engine, joined=False)

    def _doubt(self, engine: Peer) -> None:
        engine.silent = True
        log.info("a process that decodes says nothing; others write what it has to, once they have nothing else to do")

    def _lose(self, engine: Peer, why: str) -> None:
        """Told by whoever hears of it first; it is replaced in the caller's thread."""
        if not engine.lost:
            engine.lost = True
            self.lost += 1
            log.info("lost a process that decodes: %s", why)

    def _replace_lost(self) -> list[Peer]:
        """Those that were lost since; others are in their places."""
        lost = [engine for engine in self._engines if engine.lost]
        for engine in lost:
            kill_actor(engine.actor)
            self._engines[self._engines.index(engine)] = self._start()
        return lost
