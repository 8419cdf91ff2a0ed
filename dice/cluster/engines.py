"""Rollouts on the GPUs of a cluster: one process a GPU decodes a share of the prompts, with weights sent to it.

Weights have a number, the version, and so does every trace. They cross the object store, where each machine has them
once for all of its GPUs. A process that is lost is replaced, and what it had not written is written again: a prompt's
randomness is its seed's, so the answer is the one that it would have been.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray
import torch
from ray.exceptions import RayError, RayTaskError

from dice.cluster.connect import connect, nodes
from dice.cluster.job import kill_actor
from dice.decode.generate import DecodeConfig, generate
from dice.decode.trace import Trace
from dice.errors import MachineError
from dice.launch import leave_working_directory
from dice.model.sdar import SDAR, SDARConfig

READY_S = 300.0  # seconds for a process to start on its GPU
REPLACEMENTS = 8  # processes that may be lost in one call, before it is given up
POLL_S = 0.5  # seconds between two looks at whether the caller wants to stop


class Engine:
    """A model on one GPU. `device`: cuda or cpu."""

    def __init__(self, config: SDARConfig, device: str) -> None:
        leave_working_directory()
        torch.set_num_threads(1)
        with torch.device("meta"):
            self._model = SDAR(config)
        self._device = torch.device(device)
        self._version: int | None = None

    def where(self) -> str:
        """The node's id."""
        return str(ray.get_runtime_context().get_node_id())

    def load(self, version: int, weights: dict[str, Any]) -> None:
        """Take these weights (arrays, see `packed`), and be of this version."""
        state = {name: _unpacked(one).to(self._device, copy=True) for name, one in weights.items()}
        if self._model.config.tied:
            state["lm_head.weight"] = state["model.embed_tokens.weight"]
        self._model.load_state_dict(state, assign=True)
        self._model.tie()
        if self._version is None:
            self._model.init_rope(self._device)
        self._version = version

    def write(
        self, version: int, prompts: Sequence[Sequence[int]], config: DecodeConfig, seeds: Sequence[int]
    ) -> Iterator[tuple[int, Trace]]:
        """(place, trace) of each prompt, as soon as its text ends."""
        assert version == self._version, f"weights {version} were asked for, and these are {self._version}"
        ended: queue.SimpleQueue[tuple[int, Trace] | BaseException | None] = queue.SimpleQueue()

        def work() -> None:
            try:
                generate(self._model, prompts, config, None, seeds, lambda place, trace: ended.put((place, trace)))
                ended.put(None)
            except BaseException as error:  # noqa: B036 - raised in the thread of Ray's
                ended.put(error)

        threading.Thread(target=work, daemon=True).start()
        while (one := ended.get()) is not None:
            if isinstance(one, BaseException):
                raise one
            yield one[0], replace(one[1], weights=version)


@dataclass(eq=False)
class _Share:
    """What one engine is to write: places of prompts, and those that came back."""

    engine: Any
    places: list[int]
    done: set[int]


class Engines:
    """`count` processes that decode, each with a GPU of its own where `device` is cuda. Closed, they give it back.

    Raises `MachineError` where the cluster has too few GPUs.
    """

    def __init__(self, address: str, config: SDARConfig, count: int, device: str = "cuda") -> None:
        connect(address)
        self._config, self._device = config, device
        gpus = sum(node.gpus for node in nodes())
        if device == "cuda" and gpus < count:
            raise MachineError(f"{count} engines need a GPU each, and the cluster has {gpus}.")
        self._version: int | None = None
        self._weights: Any = None
        self._engines: list[Any] = []
        self.lost = 0
        self._engines = [self._start() for _ in range(count)]
        places = ray.get([engine.where.remote() for engine in self._engines], timeout=READY_S)
        self.gpus_taken = {node: places.count(node) if device == "cuda" else 0 for node in places}

    def close(self) -> None:
        for engine in self._engines:
            kill_actor(engine)
        self._engines.clear()

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
        left = list(range(len(prompts)))
        for _ in range(REPLACEMENTS):
            done = self._round(version, left, prompts, config, seeds, check, on_trace)
            left = [place for place in left if place not in done]
            if not left:
                return
        raise MachineError(f"Processes that decode were lost {REPLACEMENTS} times; the same command goes on.")

    def _round(
        self,
        version: int,
        left: Sequence[int],
        prompts: Sequence[Sequence[int]],
        config: DecodeConfig,
        seeds: Sequence[int],
        check: Callable[[], None],
        on_trace: Callable[[int, Trace], None],
    ) -> set[int]:
        """Have all that is left written, each engine its share; the places that were. A lost engine is replaced."""
        shares: dict[Any, _Share] = {}
        for number, engine in enumerate(self._engines):
            if places := list(left[number :: len(self._engines)]):
                asked = [prompts[place] for place in places], config, [seeds[place] for place in places]
                answers = engine.write.options(num_returns="streaming").remote(version, *asked)
                shares[answers] = _Share(engine, places, set())
        done: set[int] = set()
        try:
            while shares:
                check()
                ready, _ = ray.wait(list(shares), num_returns=1, timeout=POLL_S)
                for answers in ready:
                    self._take(answers, shares, done, on_trace)
        except BaseException:
            for share in shares.values():  # what they write is nobody's
                self._replace(share.engine)
            raise
        return done

    def _take(
        self, answers: Any, shares: dict[Any, _Share], done: set[int], on_trace: Callable[[int, Trace], None]
    ) -> None:
        """The next answer of one engine, or its end."""
        share = shares[answers]
        try:
            place, trace = ray.get(next(answers))
        except StopIteration:
            del shares[answers]
        except RayTaskError as error:
            raise error.cause from None
        except RayError:
            del shares[answers]
            self.lost += 1
            self._replace(share.engine)
        else:
            done.add(share.places[place])
            on_trace(share.places[place], trace)

    def send(self, model: SDAR, version: int) -> None:
        """Weights of another version go to all engines."""
        if version != self._version:
            state = {name: _packed(one) for name, one in model.state_dict().items()}
            self._version, self._weights = version, ray.put(state)
            ray.get([engine.load.remote(version, self._weights) for engine in self._engines], timeout=READY_S)

    def _start(self) -> Any:
        actor_class: Any = ray.remote
        there = actor_class(num_cpus=0, num_gpus=1 if self._device == "cuda" else 0, scheduling_strategy="SPREAD")
        engine = there(Engine).remote(self._config, self._device)
        if self._version is not None:
            engine.load.remote(self._version, self._weights)
        return engine

    def _replace(self, engine: Any) -> None:
        kill_actor(engine)
        if engine in self._engines:
            self._engines[self._engines.index(engine)] = self._start()


def _packed(tensor: torch.Tensor) -> tuple[str, Any]:
    """As an array of bits, which the object store shares between processes without a copy; NumPy has no bfloat16."""
    tensor = tensor.detach().cpu().contiguous()
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return str(tensor.dtype).removeprefix("torch."), tensor.view(bits).numpy()


def _unpacked(packed: tuple[str, Any]) -> torch.Tensor:
    dtype, bits = packed
    return torch.from_numpy(bits.copy() if not bits.flags.writeable else bits).view(getattr(torch, dtype))
