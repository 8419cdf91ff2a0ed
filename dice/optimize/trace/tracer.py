"""Asks a jailed process for a module's graph: the module's own code runs there, and never in this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dice.errors import MachineError, UserError
from dice.optimize.graph import Malformed
from dice.optimize.trace.messages import Refused, Stage, Traced, TraceModule
from dice.optimize.unit import Unit
from dice.problem import Problem
from dice.verify.ipc.encoding import is_a
from dice.verify.options import default_cache_dir
from dice.verify.sandbox.cancel import Cancellation, Spawner
from dice.verify.sandbox.jail import OWN_FAULT, Limits
from dice.verify.sandbox.process import ChildEnded, DeadlineExceeded, Zygote, wait_for
from dice.verify.sandbox.roles import Role
from dice.verify.sandbox.scratch import Scratch
from dice.verify.sandbox.visible_paths import candidate_view

TRACER = Role("tracer", "dice.optimize.trace.tracing")
# PyTorch imports its compiler when something is exported: seconds, once for all modules of a process.
WARM = ("torch._dynamo", "torch.export", TRACER.module)
FILES_MB = 1024
MOST_DETAIL = 300


@dataclass(frozen=True, slots=True)
class Trace:
    """`units`: the module, or the parts of it that could be followed; `reason`: why it was not all of it. `total_ms`:
    one forward, measured where `device` says; 0 where nothing was measured."""

    units: tuple[Unit, ...]
    whole: bool
    reason: str
    total_ms: float
    parameters: int


class Tracer:
    """Traces modules, each in a process of its own. Thread-safe."""

    def __init__(self, backend: str, memory_mb: int = 32768, limit_s: float = 300.0, threads: int = 2):
        self.backend, self.memory_mb, self.limit_s, self.threads = backend, memory_mb, limit_s, threads
        self._zygote: Zygote | None = None
        self._starting = threading.Lock()

    def __enter__(self) -> Tracer:
        return self

    def __exit__(self, *_: object) -> None:
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None

    def trace(
        self,
        problem: Problem,
        *,
        measure: bool = True,
        take_apart: bool = False,
        gpu: str = "",
        at: Callable[[str], None] = lambda stage: None,
        cancellation: Cancellation | None = None,
    ) -> Trace:
        """`take_apart`: operators without a rule, for who writes by rule. `gpu`: the one to use, as
        CUDA_VISIBLE_DEVICES has it. Raises `UserError` with one sentence for a module that
        cannot be followed, `MachineError` for our own, `Cancelled` once it is called off."""
        order = TraceModule(problem.source, self.backend, 0, measure, take_apart, self.threads)
        raw = self.ask(TRACER, order, problem, gpu=gpu, at=at, cancellation=cancellation)
        if is_a(raw, Refused):
            raise UserError(f"{problem.name} cannot be optimised: {str(raw.get('message'))[:MOST_DETAIL].rstrip('.')}.")
        return _read(problem, raw)

    def ask(
        self,
        role: Role,
        order: object,
        problem: Problem,
        *,
        gpu: str = "",
        at: Callable[[str], None] = lambda stage: None,
        cancellation: Cancellation | None = None,
    ) -> Any:
        """What a process of this role answers to an order; `at` is told the stages before. Raises as `trace` does."""
        off = cancellation or Cancellation(single=True)
        with self._starting:
            if self._zygote is None or not self._zygote.alive:
                self._zygote = Zygote(WARM)
            zygote = self._zygote
        view, stage = candidate_view(default_cache_dir()), "starting"
        with Scratch() as scratch:
            limits = Limits(
                self.memory_mb,
                str(scratch.root / "reference"),
                visible=view,
                tmp_mb=FILES_MB,
                files_mb=FILES_MB,
                gpu=gpu,
                one_queue=True,
                own_files=True,
            )
            with Spawner(zygote, off).spawn(role, limits) as child:
                child.send(order)
                deadline = time.monotonic() + self.limit_s
                try:
                    while is_a(raw := wait_for(child, (), deadline), Stage):
                        stage = str(raw.get("stage"))[:100]
                        at(stage)
                except DeadlineExceeded:
                    raise UserError(
                        f"{problem.name} had not been followed after {self.limit_s:g} s ({stage})."
                    ) from None
                except ChildEnded as end:
                    off.check()
                    raise _ended(problem, end, child.log, stage, self.memory_mb) from None
        return raw


def _ended(problem: Problem, end: ChildEnded, log: bytes, stage: str, memory_mb: int) -> Exception:
    if end.ended.reason == "memory":
        return UserError(f"{problem.name} takes more than {memory_mb} MiB of memory ({stage}).")
    last = (log.decode(errors="replace").strip().splitlines() or [""])[-1][:MOST_DETAIL]
    if end.ended.code == OWN_FAULT:
        return MachineError(f"Following {problem.name} failed ({stage}): {last}")
    return UserError(f"{problem.name} ends its process ({end.ended.reason or end.ended.describe()}), in: {stage}.")


def _read(problem: Problem, raw: object) -> Trace:
    try:
        if not is_a(raw, Traced) or not isinstance(raw, dict):
            raise Malformed("no answer")
        units = tuple(map(Unit.from_json, raw["units"]))
        total, count = float(raw["total_ms"]), int(raw["parameters"])
        return Trace(units, bool(raw["whole"]), str(raw["reason"])[:MOST_DETAIL], total, count)
    except (Malformed, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{problem.name} cannot be optimised: its process sent {error}.") from None
