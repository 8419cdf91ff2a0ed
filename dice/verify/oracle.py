"""The trusted child: runs references, draws secret inputs, and judges what candidates hand back.

Expected outputs stay in this process's memory. It serves many groups (one problem under one secret each) in turn: a
command loop over `Reference`. Commands name their group; each has one answer:
`open` (how large it is), `construct` (make the model), `plan` (the trials), `trial` (draw inputs, run the reference),
`judge` (compare a candidate's output files), `time`, and `close`, whose answer comes when the group's memory is free.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from dice.verify import evidence, lending, scale, shortage, stopwatch, wire, workload
from dice.verify.channel import Channel
from dice.verify.endings import NO_MEMORY
from dice.verify.execution import Device
from dice.verify.inputs import Step
from dice.verify.reference import Reference
from dice.verify.scratch import remove
from dice.verify.trial import ReferenceFailed, Trial

Message = dict[str, Any]

OUTPUT_SLACK_BYTES = 1 << 20
SHAREABLE_BYTES = 32 << 20  # of one trial; all trials of a smaller problem are kept, of a larger one the last
PAGE = os.sysconf("SC_PAGE_SIZE")


def main(link: socket.socket) -> None:
    channel = Channel(link)
    device = Device(channel.receive()["backend"])
    device.prepare(1)
    device.open()
    workload.prepare()
    channel.send("ready")
    groups: dict[int, _Group] = {}
    usual = _Settings.now()
    for command in channel:
        number = command["group"]
        if command["do"] not in ("time", "close"):  # while one is timed, others may come to their end
            for one in groups.values():
                one.reference.end_timing()
        if command["do"] == "close":
            if number in groups:  # it may have ended before it was opened
                groups.pop(number).close()
                device.release()
            channel.send("closed")
            continue
        before = shortage.met()
        names = command.get("files", ())
        files = dict(zip(names, channel.take_descriptors(len(names)), strict=True))
        try:
            if command["do"] == "open":
                usual.apply()
                groups[number] = _Group(command, device)
            answer = groups[number].answer(command | {"files": files})
        except (ReferenceFailed, wire.WireError, scale.TooLarge) as error:
            answer = {"event": "failed", "message": str(error)}
        except OSError as error:  # of ours, on this machine: a full disk
            answer = {"event": "failed", "message": f"the oracle met {error}", "machine": True}
        except RuntimeError as error:
            if shortage.is_shortage(error):
                shortage.note(error)
                answer = {"event": "failed", "message": NO_MEMORY}
            elif device.is_broken():
                answer = {"event": "failed", "message": f"the GPU reported: {str(error).splitlines()[0]}"}
            else:
                raise
        finally:
            for descriptor in files.values():
                os.close(descriptor)
        group = groups.get(number)
        if group is not None and group.shares:
            group.spoiled |= shortage.met() > before
            if group.spoiled:  # it made do with less than it needs, and may have kept that
                answer = {"event": "failed", "message": NO_MEMORY}
        if device.is_broken():  # also where the error was met in a mere attempt, and the command has an answer
            channel.send("failed", message=answer.get("message", "it made an error on the GPU"), broken=True)
            return
        device.trim()
        held = group.held_bytes if group is not None else 0
        channel.send(**answer, held_bytes=held, memory_mb=_memory_mb())


@dataclass(frozen=True, slots=True)
class _Settings:
    """What a problem's file may change for the whole process."""

    dtype: torch.dtype
    precision: str
    deterministic: bool
    threads: int

    @classmethod
    def now(cls) -> _Settings:
        return cls(
            torch.get_default_dtype(),
            torch.get_float32_matmul_precision(),
            torch.are_deterministic_algorithms_enabled(),
            torch.get_num_threads(),
        )

    def apply(self) -> None:
        torch.set_default_dtype(self.dtype)
        torch.set_float32_matmul_precision(self.precision)
        if torch.are_deterministic_algorithms_enabled() != self.deterministic:
            # Only then: it imports inductor, which wants to write to a folder that is read-only here.
            torch.use_deterministic_algorithms(self.deterministic)
        torch.set_num_threads(self.threads)
        torch.set_grad_enabled(True)


class _Group:
    """One problem under one secret."""

    def __init__(self, spec: Message, device: Device):
        self.spec, self.shares = spec, spec["shares"]
        self.spoiled = False  # by a lack of memory that others caused
        self.folder = Path(spec["inputs"])
        self.own = Path.cwd() / str(spec["group"])
        self.own.mkdir(exist_ok=True)  # opened once more where memory was short at first
        self.trials: dict[str, Trial | None] = {}
        self.lent: dict[str, Lent] = {}  # of the trials whose inputs are in no file
        self.held_bytes = 0
        torch.set_num_threads(spec["threads"])
        self.reference = Reference(
            spec["source"],
            device,
            self.own,
            protocol=spec["protocol"],
            shrink=spec["scale"],
            limit_s=spec["limit_s"],
            large_bytes=spec["large_bytes"],
        )
        self.settings = _Settings.now()

    def answer(self, command: Message) -> Message:
        actions = {
            "open": self._open,
            "construct": self._construct,
            "plan": self._plan,
            "trial": self._trial,
            "judge": self._judge,
            "judge muted": self._judge_muted,
            "time": self._time,
        }
        with self._own_settings():
            return actions[command["do"]](command)

    @contextlib.contextmanager
    def _own_settings(self) -> Iterator[None]:
        self.settings.apply()
        try:
            yield
        finally:
            self.settings = _Settings.now()

    def close(self) -> None:
        self.reference.end_timing()
        self._forget_trials()
        for folder in (self.own, self.folder):
            remove(folder, str(self.spec["group"]))

    def _open(self, spec: Message) -> Message:
        return {"event": "opened", "scale": self.reference.scale, "needed": self.reference.sizes.needed}

    def _construct(self, command: Message) -> Message:
        arguments, state = self.reference.construct(self.spec["seed"])
        self.reference.construct_fresh(self.spec["fresh_seed"])
        self._show(arguments, "init")
        self._show(state, "state")
        return {"event": "constructed"}

    def _show(self, value: Any, name: str) -> None:
        """Write a value where candidates read it."""
        wire.write(value, self.folder, name)
        self.held_bytes += _size(value)

    def _plan(self, command: Message) -> Message:
        spec = self.spec
        steps = self.reference.plan(spec["secret"], spec["trials"], spec["vary"], spec["families"])
        fresh = self.reference.fresh_states
        if any(step.fresh for step in steps) and fresh is not None:
            self._show(fresh[False], "fresh state")
            self._show(fresh[True], "fresh state varied")
        return {"event": "planned", "plan": [step.to_json() for step in steps], "labels": self.reference.labels}

    def _trial(self, command: Message) -> Message:
        """Answers with the family that was drawn, "" for none that suits. `inputs` is the name of the trial."""
        name, step = command["inputs"], Step(**command["step"])
        if name not in self.trials:
            self._draw(name, step, command["loadable"])
        trial = self.trials[name]
        if trial is None:
            return {"event": "drawn", "family": "", "shareable": True}
        lent = self.lent.get(name)
        shareable = _trial_size(trial) <= SHAREABLE_BYTES and lent is None
        return {
            "descriptors": lent.descriptors if lent else [],
            "lent": lent.sizes if lent else [],
            "event": "drawn",
            "family": trial.family,
            "seed": trial.seed,
            "rng": bool(trial.rng),
            "shareable": shareable,
            "work": trial.work.to_json(),
            "input_elements": sum(tensor.numel() for tensor in wire.tensors(trial.inputs)),
            "sizes": sorted({tensor.numel() for tensor in wire.tensors(trial.expected)}),
        }

    def _draw(self, name: str, step: Step, loadable: bool) -> None:
        last = next(reversed(self.trials.values()), None)
        if last is not None and _trial_size(last) > SHAREABLE_BYTES:
            self._forget_trials()
        trial = self.trials[name] = self.reference.trial(self.spec["secret"], step, loadable)
        if trial is None:
            return
        if _size(trial.inputs) + _size(trial.expected) >= self.spec["large_bytes"]:
            self._lend(name, trial)
        wire.write(trial.inputs, self.folder, name, self.lent[name].inputs if name in self.lent else None)
        if trial.rng:
            wire.write(trial.rng, self.folder, f"{name} rng")
        self.held_bytes += _trial_size(trial)

    def _lend(self, name: str, trial: Trial) -> None:
        """Make memory for the trial, which else goes by file. Where only others are in the way, it does not: that takes
        minutes."""
        try:
            self.lent[name] = Lent(trial, not self.reference.device.emulated)
        except lending.CannotLend as error:
            if shortage.is_shortage(error) and self.shares:
                raise

    def _forget_trials(self) -> None:
        for lent in self.lent.values():
            lent.close()
        self.lent.clear()
        for name, trial in self.trials.items():
            self.held_bytes -= _trial_size(trial) if trial is not None else 0
            for path in (self.folder / f"{name}.bin", self.folder / f"{name}.json"):
                path.unlink(missing_ok=True)
        self.trials.clear()

    def _judge(self, command: Message) -> Message:
        trial = self.trials[command["inputs"]]
        assert trial is not None
        return self._compare(trial, command)

    def _judge_muted(self, command: Message) -> Message:
        """What a forward with the candidate's kernels turned off shows; see `Reference.judge_muted`."""
        trial = self.trials[command["inputs"]]
        assert trial is not None
        max_bytes = 2 * trial.output_bytes + OUTPUT_SLACK_BYTES
        witnesses, actual = [], None
        with contextlib.suppress(wire.WireError):
            witnesses = wire.tensors(wire.read(command["files"], command["witnesses"], OUTPUT_SLACK_BYTES))
        with contextlib.suppress(wire.WireError):
            actual = self._output(command, max_bytes) if command["wrote"] else None
        told = [tensor.double() for tensor in witnesses if not tensor.is_complex()]
        samples = [evidence.Sample(*pair) for pair in zip(told[::2], told[1::2], strict=False)]
        try:
            kind = self.reference.judge_muted(trial, actual, samples, command["sample_seed"], command["filled"])
        except Exception as error:
            _raise_ours(error, actual, trial.expected)
            kind = f"ended: {type(error).__name__}"
        return {"event": "judged", "kind": kind}

    def _compare(self, trial: Trial, command: Message) -> Message:
        max_bytes = 2 * trial.output_bytes + OUTPUT_SLACK_BYTES
        try:
            actual = self._output(command, max_bytes)
        except wire.WireError as error:
            return _refusal(f"The output could not be read: {error}.")
        if "checksum" in command and int(stopwatch.checksum(actual)) != command["checksum"]:
            return _refusal("The output shown is not the one that was timed.")
        claims = {name: command.get(name, ()) for name in ("changed", "aliased", "written", "on_cpu")}
        try:
            result = self.reference.judge(trial, actual, **claims)
        except Exception as error:
            _raise_ours(error, actual, trial.expected)
            return _refusal(f"The output could not be compared: {type(error).__name__}: {str(error)[:500]}.")
        labels = list(result.labels)
        if "precision" in command and (command["precision"] or not result.equal):  # it may tell why
            labels += filter(None, [self.reference.precision_label(trial, actual)])
        return asdict(result) | {"event": "judged", "labels": labels}

    def _output(self, command: Message, max_bytes: int) -> Any:
        """What the candidate handed back, in memory of our own. Raises `WireError`."""
        lent = self.lent.get(command["inputs"])
        memory = lent.outputs if lent is not None else None
        return wire.read(command["files"], command["output"], max_bytes, memory)

    def _time(self, command: Message) -> Message:
        step = command["step"]
        if step == "check":
            trial = self.reference.timed_trial(command["seed"], command["call"])
            answer = self._compare(trial, command | {"changed": []})
            if not answer["equal"] and (other := self.reference.as_timed(trial)) is not None:
                answer = self._compare(other, command | {"changed": []})
            return answer
        if step == "start":
            timed = self.trials[command["inputs"]]
            assert timed is not None
            if command["inputs"] in self.lent:  # what it made of them takes memory, and is not asked for again
                self.trials[command["inputs"]] = replace(timed, expected=None, exact=None)
            return {"event": "timed"} | self.reference.start_timing(timed.inputs, command["warm_up_s"])
        answer = self.reference.time(step, command.get("seed", 0), command.get("calls", 0))
        return {"event": "timed"} | answer


class Lent:
    """The memory of one trial: its inputs, and room for an output like the reference's."""

    def __init__(self, trial: Trial, on_gpu: bool):
        self.inputs = lending.lend(wire.room(trial.inputs), on_gpu)
        try:
            self.outputs = lending.lend(wire.room(trial.expected) + OUTPUT_SLACK_BYTES, on_gpu)
        except lending.CannotLend:
            self.inputs.close()
            raise
        self.sizes = [self.inputs.size, self.outputs.size]
        self.descriptors = [self.inputs.descriptor, self.outputs.descriptor]

    def close(self) -> None:
        self.inputs.close()
        self.outputs.close()


def _raise_ours(error: Exception, actual: Any, expected: Any) -> None:
    """Raise what was met in judging again, unless it is the candidate's: it chose values of other types or shapes than
    the reference's, which no code of ours is made for."""
    alike = [(one.dtype, one.shape) for one in wire.tensors(actual)] == [
        (one.dtype, one.shape) for one in wire.tensors(expected)
    ]
    if alike or shortage.is_shortage(error) or isinstance(error, ReferenceFailed | OSError):
        raise error


def _refusal(message: str) -> Message:
    return {"event": "judged", "equal": False, "message": message, "errors": []}


def _size(value: Any) -> int:
    return sum(tensor.nbytes for tensor in wire.tensors(value))


def _trial_size(trial: Trial) -> int:
    """Bytes that keeping the trial costs: inputs in memory and in a file."""
    return 2 * _size(trial.inputs) + _size(trial.expected) + _size(trial.exact)


def _memory_mb() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE >> 20
