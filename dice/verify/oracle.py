"""The trusted child: runs the problem's reference, draws secret inputs, and judges what the candidate hands back.

Expected outputs stay in this process's memory. Commands on its channel: `trial` (draw inputs, run the reference),
`judge` (compare the candidate's output files), `time`.
"""

from __future__ import annotations

import copy
import hashlib
import socket
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from dice.verify import compare, execution, inputs, scale, timing, wire
from dice.verify.channel import Channel
from dice.verify.execution import Device

OUTPUT_SLACK_BYTES = 1 << 20


class ReferenceFailed(Exception):
    """The problem itself cannot be run; the message says why."""


def main(link: socket.socket) -> None:
    channel = Channel(link)
    try:
        _Oracle(channel, channel.receive()).run()
    except (ReferenceFailed, wire.WireError, scale.TooLarge) as error:
        channel.send("failed", message=str(error))


class _Oracle:
    def __init__(self, channel: Channel, spec: dict[str, Any]):
        self.channel = channel
        self.spec = spec
        self.device = Device(spec["backend"])
        self.folder, self.outputs = Path(spec["inputs"]), Path(spec["outputs"])
        self.expected: Any = None
        self.exact: Any = None
        self.changed: list[int] = []

    def run(self) -> None:
        self.device.prepare(self.spec["threads"])
        source = self.spec["source"]
        shrunk: dict[str, Any] = {}
        if self.device.emulated:
            source, shrunk = scale.fit(source, Path.cwd(), self.spec["scale"], self.spec["limit_s"])
        with _blame("the file"), self.device.active():
            self.problem = execution.exec_file(source, Path.cwd(), "problem")
        self._construct()
        self.channel.send("prepared", scale=shrunk)
        actions = {"trial": self._trial, "judge": self._judge, "time": self._time}
        for command in self.channel:
            actions[command["do"]](command)

    def _construct(self) -> None:
        with _blame("get_init_inputs()"), self.device.active():
            execution.seed_everything(self.spec["seed"])
            arguments = self.problem.get_init_inputs()
        wire.write(arguments, self.folder, "init")
        with _blame("Model(...)"), self.device.active():
            execution.seed_everything(self.spec["seed"])
            model = self.problem.Model(*arguments)
        state = {name: value for name, value in model.state_dict().items() if isinstance(value, torch.Tensor)}
        wire.write(state, self.folder, "state")
        self.model = self.device.place(model)
        self.exact_model = copy.deepcopy(self.model)

    def _trial(self, command: dict[str, Any]) -> None:
        name, family = command["inputs"], command["family"]
        seed = _derive(self.spec["secret"], name)
        if not self._try_family(name, family, seed):
            family = "given"
            self._try_family(name, family, seed)
        size = sum(tensor.nbytes for tensor in wire.tensors(self.expected))
        self.max_bytes = 2 * size + OUTPUT_SLACK_BYTES
        self.device.release()
        self.channel.send("drawn", family=family, seed=_derive(self.spec["secret"], f"{name} forward"))

    def _try_family(self, name: str, family: str, seed: int) -> bool:
        """Draw inputs, run the reference on them and write them; False where a changed draw does not suit it."""
        drawn = self._draw(family, seed)
        before = copy.deepcopy(self.model.state_dict()) if family != "given" else None
        try:
            expected = self._reference(drawn, _derive(self.spec["secret"], f"{name} forward"))
        except ReferenceFailed:
            if family == "given":
                raise
            expected = None
        suits = family == "given" or (expected is not None and _is_finite(expected))
        if not suits:
            assert before is not None
            self.model.load_state_dict(before)
            return False
        self.expected = expected
        self.exact = self._exact(drawn, _derive(self.spec["secret"], f"{name} forward"))
        wire.write(wire.map_tensors(lambda tensor: tensor.cpu(), drawn), self.folder, name)
        return True

    def _draw(self, family: str, seed: int) -> Any:
        with _blame("get_inputs()"), self.device.active():
            execution.seed_everything(seed)
            drawn = self.problem.get_inputs()
        if not isinstance(drawn, list | tuple):
            raise ReferenceFailed(f"get_inputs() returned a {type(drawn).__name__}, not a list")
        return inputs.vary(drawn, family)

    def _reference(self, drawn: Any, seed: int) -> Any:
        with _blame("forward"):
            placed = self.device.place(copy.deepcopy(drawn) if self.device.emulated else drawn)
            output = execution.forward(self.model, placed, seed, self.device)
            pairs = enumerate(zip(wire.tensors(placed), wire.tensors(drawn), strict=True))
            self.changed = [index for index, (used, kept) in pairs if not compare.same_values(used.cpu(), kept)]
            return wire.map_tensors(lambda tensor: tensor.detach().cpu().clone(), output)

    def _exact(self, drawn: Any, seed: int) -> Any:
        """The same forward in float64, to know how exact the reference is; None where it cannot be had."""
        if self.spec["protocol"] != "dice" or self.exact_model is None:
            return None
        widened = wire.map_tensors(lambda t: t.double() if t.is_floating_point() else t.clone(), drawn)
        try:
            model = self.exact_model.double()
            output = execution.forward(model, self.device.place(widened), seed, self.device)
        except (RuntimeError, TypeError, ValueError):  # written for one dtype, or too large in float64
            self.exact_model = None
            return None
        finally:
            self.device.release()
        return wire.map_tensors(lambda tensor: tensor.detach().cpu(), output)

    def _judge(self, command: dict[str, Any]) -> None:
        try:
            actual = wire.read(self.outputs, command["output"], self.max_bytes)
        except wire.WireError as error:
            self.channel.send("judged", equal=False, message=f"The output could not be read: {error}.", errors=[])
            return
        values = (self.device.place(value) for value in (self.expected, actual, self._matching_exact()))
        expected, actual, exact = values
        result = compare.compare(expected, actual, self.spec["protocol"], exact)
        report = asdict(result)
        unasked = sorted(set(command["changed"]) - set(self.changed))
        if result.equal and unasked:
            report["equal"] = False
            report["message"] = f"forward changed input {unasked[0]} in place; the reference leaves it as it is."
            report["errors"] = [report["message"]]
        self.channel.send("judged", **report)

    def _matching_exact(self) -> Any:
        same = self.exact is not None and _shape_of(self.exact) == _shape_of(self.expected)
        return self.exact if same else None

    def _time(self, command: dict[str, Any]) -> None:
        placed = self.device.place(wire.read(self.folder, command["inputs"]))
        with _blame("forward"), torch.no_grad():
            times = timing.measure(lambda: self.model(*placed))
        self.device.release()
        self.channel.send("timed", ms=times)


class _blame:  # noqa: N801 - reads as a statement
    """Any exception from the problem's own code becomes `ReferenceFailed`."""

    def __init__(self, part: str):
        self.part = part

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is not None and not isinstance(error, ReferenceFailed | wire.WireError):
            raise ReferenceFailed(f"{self.part} raised {type(error).__name__}: {str(error)[:500]}") from error


def _is_finite(value: Any) -> bool:
    return all(bool(t.isfinite().all()) for t in wire.tensors(value) if t.is_floating_point() or t.is_complex())


def _shape_of(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _shape_of(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_shape_of(item) for item in value]
    return tuple(value.shape) if isinstance(value, torch.Tensor) else None


def _derive(secret: int, purpose: str) -> int:
    """A seed of its own for each purpose; none tells another, or the secret."""
    digest = hashlib.sha256(f"{secret} {purpose}".encode()).digest()
    return int.from_bytes(digest[:7], "little")
