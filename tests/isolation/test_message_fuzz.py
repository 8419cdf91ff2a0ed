"""Whatever a candidate sends, the supervisor lives, the verdict is about the candidate, and others get their own."""

from __future__ import annotations

import base64
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import message_mutants
import pytest

from dice.verdict import OUTCOMES, STAGES, Verdict
from dice.verify import BackendUnavailable, Options, Verifier, claims, endings, probe_files
from dice.verify.feedback import Feedback
from dice.verify.honesty import Honesty
from dice.verify.process import Child, ChildEnded, wait_for
from dice.verify.record import Record, Stop
from dice.verify.sources import Sources
from dice.verify.work import Work

SEED = 2026
MUTANTS, A_CHILD = 5_000, 100  # so many in all, so many from one candidate
JOBS, A_JOB = 30, 25  # lines of a real candidate
END = {"event": "the end of a line of tests"}
DRAWN = {"work": {"elements": {"relu": 1600}, "calls": {"relu": 1}, "host": 0}, "input_elements": 1600}


@contextmanager
def child() -> Iterator[tuple[Child, socket.socket]]:
    """The supervisor's end of a candidate, and the candidate's own."""
    (ours, theirs), (control, warden) = socket.socketpair(), socket.socketpair()
    log, their_log = os.pipe()
    with theirs:
        theirs.settimeout(30)
        made = Child("candidate", ours, control, log)
        try:
            yield made, theirs
        finally:
            warden.close()
            os.close(their_log)
            with made:
                pass


@pytest.mark.parametrize("seed", range(SEED, SEED + MUTANTS // A_CHILD))
def test_messages_that_are_changed_at_random_are_read(seed: int) -> None:
    """Each as a job reads it. What comes out can be kept, and printed."""
    with child() as (candidate, link):
        sent = list(message_mutants.lines(seed, A_CHILD))
        end = b"\n" + json.dumps(END).encode() + b"\n"
        sender = threading.Thread(target=send, args=(link, [line + end for line in sent]), daemon=True)
        sender.start()
        for line in sent:
            while True:
                try:
                    message = wait_for(candidate, (), time.monotonic() + 30)
                except ChildEnded as ended:
                    raise AssertionError(f"ended by {line[:200]!r}: {ended}") from None
                if message == END:
                    break
                read_as_a_job_does(message)
        sender.join(30)


def send(link: socket.socket, lines: list[bytes]) -> None:
    with suppress(OSError):  # the test has failed, and the other end is gone
        for line in lines:
            link.sendall(line)


def read_as_a_job_does(message: dict[str, Any]) -> None:
    record, feedback, honesty = Record(), Feedback("x = 1"), Honesty()
    stops = [endings.reported(message, "run")]
    if "fault" in message:
        stops.append(endings.fault(claims.text(message["fault"], 40), claims.text(message.get("message", "")), True))
    with suppress(ValueError):
        sources = Sources.from_json(message.get("sources"))
        assert len(sources.key("compiler")) == 32 and sources.size >= 0
        assert Sources.from_json(json.loads(json.dumps(sources.to_json()))) == sources
        feedback.note_build(sources, "library")
    record.note_launches(claims.counts(message.get("launches")), True, [1600])
    feedback.note_findings(message.get("findings"))
    honesty.note(message)
    honesty.note_trial(DRAWN, message, ("contraction",))
    honesty.kind()
    Work.from_json(message.get("work"))
    record.values["profile"] = claims.gpu_times(message.get("times"))
    for name in ("changed", "aliased", "on_cpu"):
        assert all(type(number) is int for number in claims.integers(message.get(name)))
    damaged = (*claims.texts(message.get("damaged")), *claims.texts(message.get("written")))
    stops.append(Stop("runtime_error", "run", claims.text(message.get("failed", "")), damaged))
    record.honesty = honesty
    record.values |= {"findings": tuple(feedback.findings), "evidence": honesty.to_json()}
    for stop in stops:
        verdict = record.verdict(stop)
        assert verdict.outcome in OUTCOMES and verdict.stage in STAGES and verdict.outcome != "infra_error"
        text = json.dumps(verdict.to_json(), ensure_ascii=False)
        text.encode("utf-8")  # it can be written to a file
        assert Verdict.from_json(json.loads(text)) == verdict
        assert len(text) < 1 << 20
        shown = verdict.message + "".join(verdict.errors)
        assert all(c.isprintable() or c in "\n\t" for c in shown)


WRITER = """
import base64, os, stat
def channel():
    for number in range(3, 64):
        try:
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                return number
        except OSError:
            pass
def write(line):
    data = base64.b64decode(line) + b"\\n"
    while data:
        data = data[os.write(channel(), data):]
LINES = {lines!r}
for line in LINES[::2]:
    write(line)
"""
LATER = """
class Later(ModelNew):
    def forward(self, x):
        for line in LINES[1::2]:
            write(line)
        return super().forward(x)
ModelNew = Later
"""


def forger(number: int) -> Any:
    """A right kernel that sends mutants when it is loaded, and in its forward; every third answers nothing else."""
    lines = [base64.b64encode(line).decode() for line in message_mutants.lines(SEED * 1000 + number, A_JOB)]
    kernel = probe_files.right(f"forger {number}")
    silent = "\nos._exit(0)\n" if number % 3 == 0 else ""
    return type(kernel)(WRITER.format(lines=lines) + silent + kernel.source + LATER, f"forger {number}")


def test_candidates_that_send_mutants_get_verdicts_and_others_their_own() -> None:
    problem = probe_files.problem()
    pairs = []
    for number in range(JOBS):
        pairs += [(problem, forger(number)), (problem, probe_files.right(str(number)))]
        pairs += [(problem, probe_files.wrong(str(number)))] * (number % 5 == 0)
    try:
        verifier = Verifier(backend="emulated", options=Options(run_timeout_s=5, compile_timeout_s=30))
    except BackendUnavailable as error:
        pytest.skip(str(error))
    with verifier:
        found = dict(verifier.verify_many(pairs, workers=2))
    assert sorted(found) == list(range(len(pairs)))
    odd = []
    for (_, kernel), (_, verdict) in zip(pairs, sorted(found.items()), strict=True):
        kind = kernel.name.partition(" ")[0]
        allowed = {"right": {"correct"}, "wrong": {"wrong"}}.get(kind, set(OUTCOMES) - {"infra_error"})
        if verdict.outcome not in allowed:
            odd.append(f"{kernel.name}: {verdict.outcome}: {verdict.message[:200]}")
    assert not odd
