"""One forward of a candidate under each of compute-sanitizer's tools, on the GPU.

Two processes. The jailed child (`main`) runs the tools, one after the other, and reports what they say; each tool
starts a fresh interpreter (`dice.verify.candidate.sanitized FILE`), because it has to be there before CUDA is: no fork
of the zygote can be looked at. That interpreter goes through the candidate's own steps, with the libraries that were
built for it before, and tells nobody anything.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dice.launch import python_command, safe_environment
from dice.verify.build import compute_sanitizer
from dice.verify.build.sources import Sources
from dice.verify.ipc.channel import Channel
from dice.verify.ipc.encoding import Raw, read, to_json
from dice.verify.ipc.messages import Build, BuildAnswer, Sanitize, Sanitized, Target

MAX_LOG_BYTES = 1 << 20


def main(link: socket.socket) -> None:
    """What the zygote runs: answers `Sanitize`."""
    channel = Channel(link)
    order = channel.expect(Sanitize)
    folder = Path(order.folder)
    Path(order.target.file.outputs).mkdir(exist_ok=True)  # nobody could make it here from outside
    target = folder / "target.json"
    target.write_text(json.dumps(to_json(order.target)))
    findings, failed = [], {}
    deadline = time.monotonic() + order.limit_s
    for tool in compute_sanitizer.TOOLS:
        log, printed = _run(Path(order.program), tool, folder, target, deadline - time.monotonic())
        findings += compute_sanitizer.read(log, tool, order.kernels)
        if not compute_sanitizer.finished(log):
            failed[tool] = _last_words(log, printed)
    channel.send(Sanitized(findings, failed))
    channel.receive()


def _run(program: Path, tool: str, folder: Path, target: Path, limit_s: float) -> tuple[str, str]:
    """The tool's log, and what it and its target printed; what there is of it when the time is up."""
    log, printed = folder / f"{tool}.log", folder / f"{tool}.printed"
    command = compute_sanitizer.command(program, tool, log, python_command(__spec__.name, str(target)))
    # Without PyTorch's cache every tensor is an allocation of its own, with an end that memcheck knows.
    more = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONSAFEPATH": "1"}
    with printed.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=safe_environment(os.environ | more),
            start_new_session=True,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        process.wait(timeout=max(1.0, limit_s))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return _text_of(log), _text_of(printed)


def _text_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(MAX_LOG_BYTES).decode(errors="replace")
    except FileNotFoundError:
        return ""


def _last_words(log: str, printed: str) -> str:
    lines = [line.strip() for line in (*printed.splitlines(), *log.splitlines()) if line.strip(" =")]
    return " | ".join(lines[-3:])[:500] or "it said nothing"


class _Script:
    """In place of a channel: hands out the commands, answers builds from what was built, and hears nothing."""

    descriptor = -1

    def __init__(self, target: Target):
        self.commands = [to_json(target.construct), to_json(target.trial)]
        self.builds = [(Sources.from_json(build.sources), build.answer) for build in target.builds]

    def __iter__(self) -> Iterator[Raw]:
        return iter(self.commands)

    def send(self, message: object) -> None:
        pass

    def request(self, message: Build) -> Raw:
        wanted = Sources.from_json(json.loads(json.dumps(message.sources)))
        missing = BuildAnswer(0, "compile_error", message="not built before")
        return to_json(next((answer for sources, answer in self.builds if sources == wanted), missing))


def replay(file: Path) -> None:
    """What the interpreter under a tool does."""
    from dice.verify.candidate.kernel_file import KernelFile

    target = read(json.loads(file.read_text()), Target)
    script: Any = _Script(target)
    KernelFile(script, target.file).run()


if __name__ == "__main__":
    replay(Path(sys.argv[1]))
