"""Whatever a candidate sends, the supervisor lives, the verdict is about the candidate, and others get their own."""

from __future__ import annotations

import base64
import json
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import message_mutants
import pytest

from dice.verdict import OUTCOMES, STAGES, Verdict
from dice.verify import BackendUnavailable, Options, Verifier
from dice.verify.build.sources import Sources
from dice.verify.ipc import messages as m
from dice.verify.ipc import untrusted
from dice.verify.ipc.encoding import claim
from dice.verify.probes import files
from dice.verify.sandbox.process import Child, ChildEnded, wait_for
from dice.verify.sandbox.roles import CANDIDATE
from dice.verify.supervisor import outcomes, timing
from dice.verify.supervisor.deception import DeceptionEvidence
from dice.verify.supervisor.feedback import Feedback
from dice.verify.supervisor.record import Record, VerdictReached
from tests.conftest import PATIENCE_S

SEED = 2026
MUTANTS, A_CHILD = 2_500, 100  # so many in all, a third of them in `make test`; so many from one candidate
JOBS, A_JOB = 30, 25  # lines of a real candidate
END = {"event": "the end of a line of tests"}
WORK = {"elements": {"relu": 1600}, "calls": {"relu": 1}, "host": 0}
DRAWN = m.Drawn("given", True, work=WORK, input_elements=1600)


@contextmanager
def child() -> Iterator[tuple[Child, socket.socket]]:
    """The supervisor's end of a candidate, and the candidate's own."""
    (ours, theirs), (control, warden) = socket.socketpair(), socket.socketpair()
    log, their_log = os.pipe()
    with theirs:
        theirs.settimeout(PATIENCE_S)
        made = Child(CANDIDATE, ours, control, log)
        try:
            yield made, theirs
        finally:
            warden.close()
            os.close(their_log)
            with made:
                pass


@pytest.mark.parametrize(
    "seed",
    [pytest.param(SEED + turn, marks=pytest.mark.slow if turn % 3 else ()) for turn in range(MUTANTS // A_CHILD)],
)
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
                    message = wait_for(candidate, (), time.monotonic() + PATIENCE_S)
                except ChildEnded as ended:
                    raise AssertionError(f"ended by {line[:200]!r}: {ended}") from None
                if message == END:
                    break
                read_as_a_job_does(message)
        sender.join(PATIENCE_S)


def send(link: socket.socket, lines: list[bytes]) -> None:
    with suppress(OSError):  # the test has failed, and the other end is gone
        for line in lines:
            link.sendall(line)


CLAIMS = (
    *(m.Started, m.Loaded, m.DeviceOpened, m.MemoryMapped, m.MemoryReleased, m.Constructed, m.Ran, m.Muted),
    *(m.Profiled, m.OutputShown, m.Failed, m.Fault, m.Noticed, m.Build, m.TimingStarted, m.RoundTimed, m.BlockTimed),
)


def read_as_a_job_does(raw: Mapping[str, object]) -> None:
    for kind in CLAIMS:  # whatever is expected, and whatever it says it is
        assert isinstance(claim(raw, kind), kind)
    record, feedback, evidence = Record("emulated", "dice", ()), Feedback("x = 1"), DeceptionEvidence()
    stops = [outcomes.reported(claim(raw, m.Failed), "run")]
    fault = claim(raw, m.Fault)
    stops.append(outcomes.fault(fault.fault[:40], fault.message, True))
    with suppress(ValueError):
        sources = Sources.from_json(claim(raw, m.Build).sources)
        assert len(sources.key("compiler")) == 32 and sources.size >= 0
        assert Sources.from_json(json.loads(json.dumps(sources.to_json()))) == sources
        feedback.note_build(sources, "library")
    ran = claim(raw, m.Ran)
    record.note_launches(ran.launches, True, [1600])
    feedback.note_findings(ran.findings)
    evidence.note(raw)
    evidence.note_trial(DRAWN, ran, ("contraction",))
    evidence.kind()
    record.profile = untrusted.gpu_times(claim(raw, m.Profiled).times)
    assert all(type(number) is int for number in (*ran.changed, *ran.aliased, *ran.on_cpu))
    with suppress(timing.Malformed, timing.Implausible):
        timing.check_report(claim(raw, m.RoundTimed), m.TimeRound(0, 2, 10))
    stops.append(
        VerdictReached("runtime_error", "run", claim(raw, m.MemoryMapped).failed, (*ran.damaged, *ran.written))
    )
    record.evidence, record.findings = evidence, tuple(feedback.findings)
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
    kernel = files.right(f"forger {number}")
    silent = "\nos._exit(0)\n" if number % 3 == 0 else ""
    return type(kernel)(WRITER.format(lines=lines) + silent + kernel.source + LATER, f"forger {number}")


@pytest.mark.slow
def test_candidates_that_send_mutants_get_verdicts_and_others_their_own() -> None:
    problem = files.problem()
    pairs = []
    for number in range(JOBS):
        pairs += [(problem, forger(number)), (problem, files.right(str(number)))]
        pairs += [(problem, files.wrong(str(number)))] * (number % 5 == 0)
    try:
        verifier = Verifier(backend="emulated", options=Options(run_timeout_s=20, compile_timeout_s=PATIENCE_S))
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
