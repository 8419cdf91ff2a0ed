"""In a jailed process of its own: runs one problem's reference and says what is remarkable about it.

The command carries the source; findings go out as soon as they are made, so that those of a problem that hangs or dies
are not lost. `audit` is the order of the day; `measures.py` holds the looks at outputs.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

import torch

from dice.verify.audit import measures, sizes
from dice.verify.audit.answers import Answers, find_answers
from dice.verify.audit.messages import AuditProblem, Done, Facts, Found, Passes, Stage
from dice.verify.audit.subject import AuditSubject, readable
from dice.verify.execution import running
from dice.verify.execution.running import Device
from dice.verify.ipc.channel import Channel
from dice.verify.reference.trial import ReferenceFailed, blame, unchanged
from dice.verify.tensors import near, transport

TIME_PART = 0.45  # of the time limit after which no further look is begun
MAX_PARAMETERS = 24  # looked at one by one


def main(link: socket.socket) -> None:
    channel = Channel(link)
    order = channel.expect(AuditProblem)
    device = Device(order.backend)
    device.prepare(1)
    probe = Probe(channel, order, device)
    try:
        probe.audit()
    except (ReferenceFailed, transport.WireError) as error:
        probe.find("broken", "reject", f"{error}.".replace("..", "."))
    except SystemExit as ended:
        probe.find("broken", "reject", f"Its code ends the process, with exit code {ended.code}.")
    probe.tell(cpu_s=round(time.process_time(), 3))
    channel.send(Done())
    os._exit(0)


class Probe:
    """One audit."""

    def __init__(self, channel: Channel, order: AuditProblem, device: Device):
        self.channel, self.device, self.folder = channel, device, Path.cwd()
        self.source: str = order.source
        self.seed: int = order.seed
        self.limit_s: float = order.limit_s
        self.memory_bytes: int = order.memory_mb << 20
        self.protocol: str = order.protocol
        self.depth: str = order.depth
        self.started = time.monotonic()
        self.full: sizes.Size | None = None  # its size as it is
        self.now: sizes.Size | None = None  # and as it was shrunk to
        self.subject: AuditSubject
        self.output: Any = None  # for the first inputs
        self.forward_s = 0.0

    def find(self, kind: str, severity: str, message: str) -> None:
        self.channel.send(Found(kind, severity, message))

    def tell(self, **facts: Any) -> None:
        self.channel.send(Facts(facts))

    def at(self, stage: str) -> None:
        """Say what is about to be done, for the message should it never end."""
        self.channel.send(Stage(stage))

    def audit(self) -> None:
        self.at("measuring its size")
        self.full = sizes.measure(self.source, self.folder, self.device)
        if self.full is not None:
            self._judge_size(self.full)
            if self.depth == "census":
                return
        source = self._fitting_source(self.limit_s)
        if source is None:
            return
        slowness = self._start(source)
        if slowness > 1 and (smaller := self._fitting_source(self.limit_s / slowness)) not in (source, None):
            source = smaller
            self._start(smaller)
        if self.depth == "census":
            self._measure_as_it_is()
            return
        self._note_scale(source)
        if not self._look_at_one_forward():
            return
        if self.full is None:
            self.full = self._measure_as_it_is()
        self.at("further inputs")
        answers = Answers.learn(self.subject, self.output)
        self._look_at_inputs()
        self.at("answers that do not do the work")
        if answers is None:
            self.find("unsupported_output", "note", "The shape of the output depends on the values of the inputs.")
        else:
            passes, found = find_answers(self.subject, answers, self.protocol)
            for one in found:
                self.channel.send(one)
            self.channel.send(Passes(passes))
            self.tell(effect=answers.effect)
        if self.depth == "quick":
            return
        self.at("inputs one by one")
        self._look_at_each_input()
        self.at("parameters one by one")
        self._look_at_each_parameter()

    def _has_time(self) -> bool:
        """Whether one more look fits into the limit with a good margin."""
        spent: float = time.monotonic() - self.started
        return spent + 6 * self.forward_s < TIME_PART * self.limit_s

    # -- size ----------------------------------------------------------------------------------------------------------

    def _fitting_source(self, seconds: float) -> str | None:
        """The source to audit: as it is, or shrunk to what this process may use; None for neither."""
        budget = sizes.Budget(seconds, self.memory_bytes, 0 if self.device.emulated else _gpu_bytes())
        if self.full is None or budget.fits(self.full):
            return self.source
        source, now = sizes.fit(self.source, self.full, budget, self._measure)
        self.now = now
        if not budget.holds(now):
            self.find("too_large", "warn", _too_large(now, budget))
            return None
        return source if now.shapes != self.full.shapes else self.source

    def _measure(self, source: str) -> sizes.Size | None:
        return sizes.measure(source, self.folder, self.device)

    def _start(self, source: str) -> float:
        """Make the model and its first inputs, and run it once; how many times too slow that was."""
        self.at("making the model")
        subject = self.subject = AuditSubject(source, self.device, self.folder, self.seed)
        self.at("get_inputs()")
        subject.drawn = subject.draw("first")
        self.at("forward")
        started = time.monotonic()
        subject.forward(subject.drawn)
        return sizes.FORWARDS * (time.monotonic() - started) / self.limit_s

    def _note_scale(self, source: str) -> None:
        """Say how the inputs shrank, if they did."""
        if self.full is None or self.now is None or source == self.source:
            return
        pairs = enumerate(zip(self.full.shapes, self.now.shapes, strict=True))
        changed = {f"input {index}": [list(old), list(new)] for index, (old, new) in pairs if old != new}
        self.tell(scale=changed)
        text = "; ".join(f"{name} {_by(old)} -> {_by(new)}" for name, (old, new) in changed.items())
        self.find("shrunk", "note", f"Audited at smaller sizes: {text}.")

    def _measure_as_it_is(self) -> sizes.Size:
        """The size of a problem that cannot be measured without data."""
        with blame("forward"), unchanged(self.subject.model):
            full = sizes.measure_run(
                self.subject.model, transport.map_tensors(torch.Tensor.clone, self.subject.drawn), self.device
            )
        self._judge_size(full)
        return full

    def _judge_size(self, full: sizes.Size) -> None:
        self.tell(full=full.to_json(), ceiling_us=round(full.ceiling_us, 3), shapes=full.shapes)
        self.tell(census=full.census.to_json())
        if full.work.flops == 0:
            self.find("no_work", "reject", "forward computes nothing: there is no work for a kernel.")
        elif full.ceiling_us < sizes.LAUNCH_US:
            moved = f"{full.work.bytes_moved:.2g} bytes and {full.work.flops:.2g} operations"
            message = f"{moved} take a large GPU {full.ceiling_us:.2g} us, less than a launch ({sizes.LAUNCH_US:g} us)."
            self.find("launch_bound", "warn", message)
        if full.gpu_bytes > sizes.GPU_BYTES:
            message = f"A verification at full size needs over {full.gpu_bytes / 1e9:.0f} GB of GPU memory."
            self.find("too_large", "warn", message)

    # -- looks ---------------------------------------------------------------------------------------------------------

    def _look_at_one_forward(self) -> bool:
        """Whether the output is one that further looks make sense for."""
        started = time.monotonic()
        copies = transport.map_tensors(torch.Tensor.clone, self.subject.drawn)
        with blame("forward"), unchanged(self.subject.model):
            output = running.forward(self.subject.model, copies, 0, self.device)
            changed = [
                index
                for index, pair in enumerate(
                    zip(transport.tensors(copies), transport.tensors(self.subject.drawn), strict=True)
                )
                if not near.same_values(*pair)
            ]
        self.forward_s = time.monotonic() - started
        self.output = transport.map_tensors(lambda tensor: readable(tensor).clone(), output)
        self.tell(forward_s=round(self.forward_s, 4), output=measures.describe(output))
        if changed:
            self.find("mutates_input", "note", f"forward writes to input {changed[0]}.")
        reason = measures.why_unsupported(output, self.folder)
        if reason:
            self.find("unsupported_output", "reject", f"forward returns {reason}.")
            return False
        if not isinstance(output, torch.Tensor):
            severity = "note" if self.protocol == "dice" else "reject"
            message = f"forward returns {measures.describe(output)}; KernelBench's protocols compare one tensor only."
            self.find("unsupported_output", severity, message)
        for kind, severity, message in measures.look_at_values(self.output, self.protocol):
            self.find(kind, severity, message)
        return self._is_repeatable()

    def _is_repeatable(self) -> bool:
        again = self.subject.forward(self.subject.drawn)
        if not measures.alike(self.output, again, "dice"):
            self.find("nondeterministic", "reject", "The same call with the same seed gives different outputs.")
            return False
        if not measures.identical(self.output, again):
            self.find("nondeterministic", "note", "The same call gives outputs that differ by rounding.")
        other = self.subject.forward(self.subject.drawn, seed=1)
        if not measures.alike(self.output, other, "dice"):
            message = "forward draws random numbers that change the output; a kernel has to leave that to PyTorch."
            self.find("random_forward", "warn", message)
        return True

    def _look_at_inputs(self) -> None:
        if measures.identical(self.subject.drawn, self.subject.draw("second")):
            what = (
                "gives the same values whatever the seed"
                if transport.tensors(self.subject.drawn)
                else "gives no tensor at all"
            )
            self.find("fixed_inputs", "warn", f"get_inputs() {what}: the answer can be written down.")

    def _look_at_each_input(self) -> None:
        tensors = transport.tensors(self.subject.drawn)
        for index in range(len(tensors)):
            if not self._has_time():
                break
            effect = measures.effect_of_input(self.subject, self.output, index)
            what = f"Input {index} ({_by(tensors[index].shape)})"
            if effect == "none":
                self.find(
                    "dead_input",
                    "warn",
                    f"{what} is without effect: no change of its values that was tried changes the output.",
                )
            elif effect == "unseen":
                message = f"{what} hardly matters: other values of it change the output by less than 1e-4."
                self.find("weak_input", "warn", message)

    def _look_at_each_parameter(self) -> None:
        if not isinstance(self.subject.model, torch.nn.Module):
            return
        found: dict[str, list[str]] = {"none": [], "unseen": []}
        named = list(self.subject.model.named_parameters())
        looked_at = 0
        for name, parameter in named[:MAX_PARAMETERS]:
            if not self._has_time():
                break
            found.setdefault(measures.effect_of_parameter(self.subject, self.output, name, parameter), []).append(name)
            looked_at += 1
        self.tell(parameters=[looked_at, len(named)])
        if found["none"]:
            message = f"No change of {_names(found['none'])} that was tried changes the output."
            self.find("dead_parameter", "warn", message)
        if found["unseen"]:
            message = f"Other values of {_names(found['unseen'])} change the output by less than 1e-4."
            self.find("weak_parameter", "note", message)


def _gpu_bytes() -> int:
    return int(torch.cuda.get_device_properties(0).total_memory)


def _too_large(size: sizes.Size, budget: sizes.Budget) -> str:
    need, have = size.peak_bytes / 2**30, (budget.gpu_bytes or budget.host_bytes) / 2**30
    return f"An audit needs about {need:.1f} GiB even at its smallest size, and the limit is {have:.1f} GiB."


def _by(shape: Any) -> str:
    return "x".join(map(str, shape)) or "scalar"


def _names(names: list[str]) -> str:
    shown = ", ".join(f"`{name}`" for name in names[:4])
    return f"the parameters {shown} and {len(names) - 4} more" if len(names) > 4 else f"the parameter {shown}"
