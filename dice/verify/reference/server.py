"""The trusted child: runs references, draws secret inputs, and judges what candidates hand back.

Expected outputs stay in this process's memory. It serves many groups (one problem under one secret each) in turn: a
command loop over `Reference`. What it may be asked, and what it answers, stands in `ipc/messages.py`.
"""

from __future__ import annotations

import copy
import os
import socket
import tempfile
from pathlib import Path

import torch

from dice.prompts import EXAMPLE_PROBLEM
from dice.verify.execution import dispatch, running
from dice.verify.execution.running import Device
from dice.verify.ipc import messages as m
from dice.verify.ipc import out_of_memory
from dice.verify.ipc.channel import Channel
from dice.verify.ipc.encoding import EVENT, name_of, read
from dice.verify.ipc.encoding import to_json as tagged
from dice.verify.reference import scale
from dice.verify.reference.group import COMMANDS, TIMING, Group
from dice.verify.reference.process_settings import ProcessSettings
from dice.verify.reference.trial import ReferenceFailed
from dice.verify.tensors import transport

_KINDS = {name_of(kind): kind for kind in (*COMMANDS, *TIMING, m.CloseGroup)}
PAGE = os.sysconf("SC_PAGE_SIZE")
_NO_MEMORY = m.ReferenceFault("a trial of it needs more memory than the GPU has left", lacks_memory=True, spoiled=True)


def warm_up() -> None:
    """Draw, copy and run a small model once: PyTorch loads large parts of itself at first use."""
    torch.set_num_threads(1)  # a fork must not lose worker threads
    dispatch.spare_compiler()
    running.seed_everything(0)
    model = torch.nn.Linear(2, 2)
    model.load_state_dict(copy.deepcopy(model).state_dict())
    with torch.no_grad():
        copy.deepcopy(model).double()(torch.rand(3, 2).double()).sum()
    with tempfile.TemporaryDirectory() as folder:
        scale.fit(EXAMPLE_PROBLEM, Path(folder), None, 1.0)


def main(link: socket.socket) -> None:
    channel = Channel(link)
    device = Device(channel.expect(m.OpenDeviceAs).backend)
    device.prepare(1)
    device.open()
    channel.send(m.Ready())
    groups: dict[int, Group] = {}
    usual = ProcessSettings.now()
    for raw in channel:
        request = read(raw, m.Request)
        kind = _KINDS[str(request.command[EVENT])]  # type: ignore[index]
        if kind is m.CloseGroup:
            if request.group in groups:  # it may have ended before it was opened
                groups.pop(request.group).close()
                device.release()
            channel.send(m.GroupClosed())
            continue
        if kind not in TIMING:  # while one is timed, others may come to their end
            for one in groups.values():
                one.end_timing()
        lacks_before = out_of_memory.met()
        files = dict(zip(request.files, channel.take_descriptors(len(request.files)), strict=True))
        try:
            command = read(request.command, kind)
            if isinstance(command, m.OpenGroup):
                usual.apply()
                groups[request.group] = Group(command, request.group, device)
            answer, descriptors = groups[request.group].answer(command, files)
        except Exception as error:
            answer, descriptors = _fault(error, device), []
        finally:
            for descriptor in files.values():
                os.close(descriptor)
        group = groups.get(request.group)
        if group is not None and group.shares:
            group.spoiled = group.spoiled or out_of_memory.met() > lacks_before
            if group.spoiled:  # it made do with less than it needs, and may have kept that
                answer, descriptors = _NO_MEMORY, []
        if device.is_broken():  # also where the error was met in a mere attempt, and the command has an answer
            said = answer.message if isinstance(answer, m.ReferenceFault) else "it made an error on the GPU"
            channel.send(m.Answer(tagged(m.ReferenceFault(said, broken=True)), 0, 0))
            return
        device.trim()
        held = group.held_bytes if group is not None else 0
        channel.send(m.Answer(tagged(answer), held, _memory_mb()), descriptors)


def _fault(error: Exception, device: Device) -> m.ReferenceFault:
    """What an exception means for the supervisor. Raises what is a bug of ours, which ends the process."""
    if isinstance(error, ReferenceFailed | transport.WireError | scale.TooLarge):
        lacks = out_of_memory.is_shortage(error.__cause__) or out_of_memory.is_named(str(error))
        own = not lacks and not isinstance(error, scale.TooLarge)
        return m.ReferenceFault(str(error), lacks_memory=lacks, own=own)
    if isinstance(error, OSError):  # of ours, on this machine: a full disk
        return m.ReferenceFault(f"the reference's process met {error}", machine=True)
    if isinstance(error, RuntimeError) and out_of_memory.is_shortage(error):
        out_of_memory.note(error)
        return _NO_MEMORY
    if isinstance(error, RuntimeError) and device.is_broken():
        return m.ReferenceFault(f"the GPU reported: {str(error).splitlines()[0]}")
    raise error


def _memory_mb() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE >> 20
