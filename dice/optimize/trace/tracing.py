"""In a jailed process of its own: runs a module's file and describes what `forward` computes as a graph.

`torch.export` follows the module on tensors without data, in its plain form and, where that fails, by PyTorch's
bytecode compiler (`strict`). A module that cannot be had whole, because its control flow depends on values or its code
is opaque, is had in parts: the largest submodules that can be. What was found leaves as JSON and is checked by
`graph.py`; a module's own code could say anything here, and nothing of it is executed elsewhere before it is checked.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from dice.optimize.trace.capture_graph import access, export_graph, is_number
from dice.optimize.trace.functional import NotTraced
from dice.optimize.trace.messages import Refused, Stage, Traced, TraceModule
from dice.optimize.trace.trees import register_dataclasses
from dice.optimize.unit import Unit
from dice.verify.execution import running
from dice.verify.execution.running import Device
from dice.verify.ipc.channel import Channel
from dice.verify.reference.subject import Subject
from dice.verify.reference.trial import ReferenceFailed, derive
from dice.verify.tensors import near, transport

LARGEST_PART = 200  # submodules tried
MOST_NAMED = 6  # parts that a report names
MOST_FLAGS = 3  # truth values among the inputs, of which each doubles the work
OTHERS = (-1.0, 100.0, 0.0)  # times the inputs


def main(link: socket.socket) -> None:
    channel = Channel(link)
    order = channel.expect(TraceModule)
    device = Device(order.backend)
    device.prepare(order.threads)
    try:
        channel.send(_trace(order, device, lambda stage: channel.send(Stage(stage))))
    except (ReferenceFailed, NotTraced, transport.WireError) as error:
        channel.send(Refused(str(error)))
    except SystemExit as ended:
        channel.send(Refused(f"its code ends the process, with exit code {ended.code}"))
    except Exception as error:  # noqa: BLE001 - PyTorch's own, of modules that it did not foresee
        first = next((line for line in str(error).splitlines() if line.strip()), "")
        channel.send(Refused(f"it cannot be followed: {type(error).__name__}: {first[:200]}"))
    os._exit(0)


def _trace(order: TraceModule, device: Device, at: Callable[[str], None]) -> Traced:
    at("making the module")
    subject = Subject(order.source, device, Path.cwd(), limit_s=float("inf"))
    subject.choose_arguments(derive(order.seed, "arguments"))
    model = device.place(subject.new_model(derive(order.seed, "parameters")))
    at("drawing its inputs")
    inputs = tuple(device.place(subject.draw(derive(order.seed, "inputs"))))
    register_dataclasses(inputs)
    at("following forward")
    warnings.simplefilter("ignore")  # of PyTorch's own about what it traces
    count = sum(parameter.numel() for parameter in model.parameters())
    kept = _Attributes(model)
    output = _seeded(model, inputs, device)
    rebound = kept.rebound()
    register_dataclasses(output)
    if unknown := _unknown(output):
        raise NotTraced(
            f"its forward returns a {unknown}; what can be followed is tensors, and tuples, lists and dicts"
        )
    total = _milliseconds(lambda: _seeded(model, inputs, device), device) if order.measure else 0.0

    def export(module: torch.nn.Module, args: Any, kwargs: Any, path: str = "") -> Unit:
        kept.restore()  # whatever ran before has filled caches
        return export_graph(
            module,
            args,
            kwargs,
            device,
            own_file=subject.module.__name__,
            path=path,
            measure=order.measure,
            take_apart=order.take_apart,
        )

    try:
        if rebound:  # a graph has no such effect
            raise NotTraced(f"it keeps a tensor for its next call, as {rebound[0]}")
        whole = [export(model, chosen, {}) for chosen in _choices(inputs)]
        return Traced([unit.to_json() for unit in whole], True, "", total, count)
    except NotTraced as failed:
        if failed.final:
            raise
        reason = str(failed)
        if any(map(is_number, pytree.tree_leaves(inputs))):
            reason += "; a plain number among its inputs can only be computed with"
    at("following its parts")
    left: list[str] = []
    units = list(_parts(model, inputs, device, export, rebound, left))
    if not units:
        raise NotTraced(f"it cannot be followed: {reason}")
    if left:
        more = f" and {len(left) - MOST_NAMED} more" if len(left) > MOST_NAMED else ""
        reason += f"; left to PyTorch: {', '.join(left[:MOST_NAMED])}{more}"
    return Traced([unit.to_json() for unit in _merged(units)], False, reason, total, count)


def _choices(inputs: Any) -> Iterator[Any]:
    """The inputs with each choice of the truth values among them, since each may take another way through forward; as
    they were drawn first."""
    leaves, form = pytree.tree_flatten(inputs)
    flags = [place for place, leaf in enumerate(leaves) if isinstance(leaf, bool)]
    if len(flags) > MOST_FLAGS:
        raise NotTraced(f"{len(flags)} truth values are among its inputs; give some to the constructor", final=True)
    for flipped in itertools.product((False, True), repeat=len(flags)):
        chosen = list(leaves)
        for place, flip in zip(flags, flipped, strict=True):
            chosen[place] = leaves[place] ^ flip
        yield pytree.tree_unflatten(chosen, form)


def _seeded(model: Any, inputs: Any, device: Device) -> Any:
    """The output as it is made: `running.forward` gives plain containers in the place of the module's own."""
    copies = transport.map_tensors(torch.clone, inputs)
    made = []
    running.forward(lambda *given: made.append(model(*given)), copies, 0, device)
    return made[0]


def _unknown(output: Any) -> str:
    """The class of what an output holds that is neither a tensor nor a plain value, "" for nothing of the kind."""
    if output is None or isinstance(output, torch.Tensor | bool | int | float | str):
        return ""
    items = list(output.values()) if isinstance(output, Mapping) else transport.parts(output)
    return type(output).__name__ if items is None else next(filter(None, map(_unknown, items)), "")


def _milliseconds(run: Callable[[], object], device: Device) -> float:
    import time

    run()
    times = []
    for _ in range(3):
        device.synchronize()
        start = time.perf_counter()
        run()
        times.append(1e3 * (time.perf_counter() - start))
    return min(times)


class _Attributes:
    """What a model's parts have as plain attributes and as buffers, which forward may put others in the place of."""

    def __init__(self, model: torch.nn.Module):
        self._parts = [(path, part, dict(vars(part)), dict(part._buffers)) for path, part in model.named_modules()]

    def rebound(self) -> list[str]:
        """The tensor attributes that hold other values now, by their dotted paths: one that was only moved does not,
        one that was not there before is a cache, and one that PyTorch's hooks make of parameters, as `spectral_norm`
        does, is made again."""
        return [
            f"{path}.{name}".lstrip(".")
            for path, part, before, _ in self._parts
            for name, value in before.items()
            if isinstance(value, torch.Tensor)
            and name not in {getattr(hook, "name", "") for hook in part._forward_pre_hooks.values()}
            and not _same(value, getattr(part, name, None))
        ]

    def restore(self) -> None:
        """Also to no cache: the graph of a model whose caches are full would read what a new one does not have."""
        for _, part, before, buffers in self._parts:
            for name, value in list(vars(part).items()):
                if isinstance(value, torch.Tensor) and value is not before.get(name):
                    delattr(part, name)
            for name, value in before.items():
                if name not in vars(part) and name not in part._buffers:
                    setattr(part, name, value)
            part._buffers.clear()
            part._buffers.update(buffers)


def _same(one: torch.Tensor, other: Any) -> bool:
    if not isinstance(other, torch.Tensor):
        return False
    return one is other or near.same_values(one.detach().cpu(), other.detach().cpu())


def _parts(
    model: torch.nn.Module,
    inputs: Any,
    device: Device,
    export: Callable[..., Unit],
    rebound: Sequence[str],
    left: list[str],
) -> Iterator[Unit]:
    """The largest submodules that can be followed, with the arguments that they were called with. `rebound`: attributes
    that change from call to call; what holds one is not followed. `left`: told of the smallest that cannot be."""
    calls: dict[str, list[tuple[Any, Any]]] = {}
    hooks = []
    for path, module in model.named_modules():
        if path:
            note = calls.setdefault(path, [])
            hooks.append(
                module.register_forward_pre_hook(
                    lambda module, args, kwargs, note=note: note.append((args, kwargs)) if len(note) < 2 else None,
                    with_kwargs=True,
                )
            )
    try:
        _seeded(model, inputs, device)
        for factor in OTHERS:  # values by which other parts may be called
            with contextlib.suppress(Exception):
                _seeded(model, transport.map_tensors(partial(_scaled, factor), inputs), device)
    finally:
        for hook in hooks:
            hook.remove()
    tried = 0
    waiting = [(name, child) for name, child in model.named_children()]
    while waiting and tried < LARGEST_PART:
        path, module = waiting.pop(0)
        if calls.get(path) and not any(name.startswith(f"{path}.") for name in rebound):
            tried += 1
            args, kwargs = calls[path][0]
            with contextlib.suppress(NotTraced):
                yield export(module, args, kwargs, path=access(model, path))
                continue
        if calls.get(path) and not list(module.children()):
            left.append(f"{path} ({type(module).__name__})")
        waiting += [(f"{path}.{name}", child) for name, child in module.named_children()]


def _scaled(factor: float, tensor: torch.Tensor) -> torch.Tensor:
    return tensor * factor if tensor.is_floating_point() else tensor


def _merged(units: list[Unit]) -> list[Unit]:
    """Parts that do the same become one with several places: the layers of a network."""
    found: dict[str, Unit] = {}
    for unit in units:
        facts = unit.to_json()
        key = repr((facts["class_name"], facts["guards"], facts["modes"], _without_times(facts["graph"])))
        if key in found:
            known = found[key]
            found[key] = Unit(
                (*known.paths, *unit.paths),
                known.class_name,
                known.home,
                known.parameters,
                known.guards,
                known.modes,
                known.graph,
            )
        else:
            found[key] = unit
    return list(found.values())


def _without_times(graph: Any) -> Any:
    return [[{**node, "ms": 0} for node in graph["nodes"]], graph["output"]]
