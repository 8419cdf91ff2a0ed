"""Chat templates: Jinja text from a model folder, rendered by a process of its own (`render.py`), within limits."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dice.errors import MachineError, UserError
from dice.files import JsonObject

# Seconds that one conversation may take to render; the templates of published models take a millisecond.
LIMIT_S = 20.0
# Seconds that a process may take to end after it has closed its pipes.
END_S = 5.0
# Bytes of a line of JSON from the process; more than `render.LONGEST` characters can take.
LONGEST_ANSWER = 1 << 30


class ChatTemplateError(UserError):
    """The chat template is missing, faulty, or refuses the conversation; one sentence for the user."""


class ChatTemplate:
    """A template in the dialect that `transformers` renders: trimmed blocks, `tojson`, `raise_exception`.

    Jinja's sandbox keeps it from Python and from files, but neither from endless loops nor from texts of any length:
    hence the process, which is started once and ends with this object. May be used from any thread.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0  # the id of the process that started it; a fork of ours has to start its own
        answer = self._ask(None)
        if "error" in answer:
            raise ChatTemplateError(f"The chat template is not valid Jinja: {_sentence(answer['error'])}")

    def render(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool, **options: Any) -> str:
        """The conversation as text. Raises `ChatTemplateError` when the template refuses it, or takes too much."""
        try:
            variables = {"messages": list(messages), "add_generation_prompt": add_generation_prompt, **options}
            line = json.dumps(variables).encode() + b"\n"
        except (TypeError, ValueError, RecursionError) as error:
            raise ChatTemplateError(f"The conversation is no JSON: {error}.") from None
        answer = self._ask(line)
        if "error" in answer:
            raise ChatTemplateError(f"The chat template refuses this conversation: {_sentence(answer['error'])}")
        return str(answer["text"])

    def __reduce__(self) -> tuple[type[ChatTemplate], tuple[str]]:
        return ChatTemplate, (self._source,)

    def _ask(self, line: bytes | None) -> JsonObject:
        """What the process answers to a line, or, without one, to the template."""
        with self._lock:
            deadline = time.monotonic() + LIMIT_S
            try:
                if self._process is None or self._owner != os.getpid():
                    self._process, self._owner = _start(self), os.getpid()
                    answer = _exchange(self._process, json.dumps(self._source).encode() + b"\n", deadline)
                    if line is None or "error" in answer:
                        return answer
                return _exchange(self._process, line or b"\n", deadline)
            except _Ended as ended:
                if self._process is not None:
                    _end(self._process, self._owner)
                self._process = None
                return {"error": str(ended)}


class _Ended(Exception):
    """The process gave no answer; the message says why."""


def _start(owner: ChatTemplate) -> subprocess.Popen[bytes]:
    # -P: the folder of the file is not searched for modules, and neither is that which the user is in.
    command = [sys.executable, "-P", str(Path(__file__).with_name("render.py"))]
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,  # so that Ctrl-C ends us and not the process
        )
    except OSError as error:
        raise MachineError(f"Cannot start a process to render the chat template: {error.strerror}.") from None
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        os.set_blocking(pipe.fileno(), False)
    weakref.finalize(owner, _end, process, os.getpid())
    return process


def _end(process: subprocess.Popen[bytes], owner: int) -> None:
    """Also called when an interpreter ends; in one that was forked from `owner` it does nothing."""
    if os.getpid() != owner:
        return
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    process.kill()
    process.wait()


def _exchange(process: subprocess.Popen[bytes], line: bytes, deadline: float) -> JsonObject:
    """Write a line and read one, both within the time: neither side waits for the other for ever."""
    assert process.stdin is not None and process.stdout is not None
    left, answer = memoryview(line), bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdin, selectors.EVENT_WRITE)
        selector.register(process.stdout, selectors.EVENT_READ)
        while not answer.endswith(b"\n"):
            events = selector.select(max(0.0, deadline - time.monotonic()))
            if not events:
                raise _Ended(f"it takes more than {LIMIT_S:g} s")
            for key, _ in events:
                if key.fileobj is process.stdin:
                    left = _written(process, left)
                    if not left:
                        selector.unregister(process.stdin)
                elif part := process.stdout.read(1 << 20):
                    answer += part
                    if len(answer) > LONGEST_ANSWER:
                        raise _Ended("it writes too much")
                else:
                    raise _ended(process)
    found: JsonObject = json.loads(answer)
    return found


def _written(process: subprocess.Popen[bytes], left: memoryview) -> memoryview:
    assert process.stdin is not None
    try:
        return left[process.stdin.write(left) or 0 :]
    except BrokenPipeError:
        raise _ended(process) from None


def _ended(process: subprocess.Popen[bytes]) -> Exception:
    """Why a process that has closed its pipes did so: a limit ends it by a signal, trouble of its own by a code."""
    try:
        code = process.wait(END_S)
    except subprocess.TimeoutExpired:
        code = -signal.SIGKILL
    if code < 0:
        return _Ended("it takes too much memory or time")
    return MachineError(f"The process that renders chat templates ended with exit code {code}.")


def _sentence(text: str) -> str:
    return " ".join(text.split()).rstrip(".")[:300] + "."
