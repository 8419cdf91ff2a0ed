"""Forwards beside the trials, at the end of a job: they may be the end of the candidate's process.

Without the file's own kernels: what is computed then, somebody else does. And on what earns no more than a label
(`reference/remarks.py`).
"""

from __future__ import annotations

import secrets
from dataclasses import replace

from dice.verify.ipc import messages as m
from dice.verify.supervisor.attempt import LEFT, OUTPUT, Attempt
from dice.verify.supervisor.author import NotCaptured
from dice.verify.supervisor.record import ReferenceBroken, VerdictReached

MOSTLY = "mostly_right"  # what a muted forward shows where its kernels make a few elements
WITNESSES = "seen"  # the name of the samples that a candidate writes of what PyTorch computed
BESIDE = "with its output looked at on the current stream alone, beside other work of the GPU"
MUTED_S = 10.0  # for all muted forwards of a job
REMARKS_S = 5.0  # for all that a label is for
OFTEN_S = 60.0  # for many calls, of which the processor takes two seconds at most: others may be at work
CENTRED = m.Step("muted", "centred", core=False)
GIVEN = m.Step("muted given", "given")
BUSY = m.Step("beside other work", "given")
OFTEN = (m.Step("often", "given"), m.Step("often otherwise", "given"))
# One half of the one and one of the other: who remembers answers by a part of an input gives one that is over.
MIXED = tuple(
    m.Step(f"often mixed {number}", "mixed", core=False, mixes=pair)
    for number, pair in enumerate((("often", "often otherwise"), ("often otherwise", "often")))
)
# And the same values twice, in another order: who remembers them by a sum, an extreme or the ends of rows does so, too.
EVEN = m.Step("often even", "even", core=False)
REARRANGED = m.Step("often rearranged", "rearranged", core=False, mixes=(EVEN.name,))
# And the same values but for a few: who remembers them by a sample, wherever it is taken, gives the other answer.
SPARSE = m.Step("often but for a few", m.FEW, core=False, mixes=("often", "often otherwise"))
# And values that are near to them, or have their sum: who remembers them rounded, or by a sum of places, does so, too.
NEAR = m.Step("often near", "near", core=False, mixes=("often",))
OTHERS = tuple(m.Step(f"calls {family}", family, core=False) for family in ("scaled", "large"))  # to look at calls on


def intervene(attempt: Attempt, vary: bool) -> None:
    """Run the candidate muted on new inputs. Raises `VerdictReached` where that shows a deception."""
    if not attempt.assignment.protocol.ours:
        return
    record = attempt.record
    record.stage = "run"
    if attempt.assignment.backend == "cuda":
        _run_beside(attempt)
    drawn = attempt.set_up(CENTRED) if vary else None
    if drawn is None or not drawn.family:
        drawn = attempt.set_up(GIVEN)
    command = m.RunMuted(attempt.drawn, OUTPUT, WITNESSES, drawn.seed, secrets.randbits(31), drawn.sizes, filled=False)
    attempt.talk.run_left = min(attempt.talk.run_left, MUTED_S)
    shown = _mute(attempt, command)
    record.evidence.muted = "honest" if shown == MOSTLY else shown
    if shown == MOSTLY and record.evidence.computes_otherwise:
        record.evidence.muted = "decoy"
    again = record.evidence.computes_otherwise and not drawn.lent
    if again and _mute(attempt, replace(command, filled=True)) == "copies_inputs":
        record.evidence.muted = "copies_inputs"
    attempt.refuse_deception()
    late = attempt.talk.run_left <= 0  # and maybe busy for long
    if record.provenance == "construction" and record.evidence.computes_elsewhere and not drawn.lent and not late:
        _look_at_calls(attempt, drawn.seed, drawn.shareable)


def _run_beside(attempt: Attempt) -> None:
    """Raises `VerdictReached` where the output is not there yet for who looks at it on the current stream. On inputs of
    its own: who remembers answers by the values of inputs would know those of the muted forward from here."""
    drawn = attempt.set_up(BUSY)
    if drawn.evolves:
        return
    command = m.RunBeside(attempt.drawn, OUTPUT, drawn.seed, drawn.rng, drawn.asked_back, LEFT)
    with attempt.record.clock("run"):
        ran = attempt.talk.ask(command, m.RanBeside)
    if not ran.wrote:
        return
    judge = m.JudgeOutput(attempt.drawn, OUTPUT, ran.changed, left=LEFT)
    with attempt.record.clock("compare"):
        judged = attempt.ask_reference(judge, m.Judged, OUTPUT, LEFT)
    if not judged.equal:
        raise VerdictReached("wrong", "compare", f"{BESIDE}: {judged.message}", judged.errors)


def _look_at_calls(attempt: Attempt, seed: int, shareable: bool) -> None:
    """PyTorch computes what it does not in the reference. Raises `VerdictReached` where the file's own functions only
    pass that on."""
    inputs, others = attempt.drawn, []
    for step in OTHERS if shareable else ():  # of large trials only one is kept
        other = attempt.draw(step)
        others += [attempt.drawn] if other.family and other.shareable else []
    attempt.talk.run_left = attempt.talk.run_timeout_s  # who only passes on is not to be let off for being slow at it
    try:
        evidence = attempt.record.evidence
        look = m.LookAtCalls(inputs, tuple(others), seed, evidence.leaves_bounds, copies=not evidence.computes_more)
        said = attempt.talk.ask(look, m.CallsLookedAt)
    except VerdictReached:  # other values do not suit its calls: they do more than pass them on
        return
    if said.only_pass:
        attempt.record.evidence.muted = "copies_result"
        attempt.refuse_deception()


def _mute(attempt: Attempt, command: m.RunMuted) -> str:
    """What one muted forward shows: a kind of deception, "honest", "tells_nothing", or how it ended."""
    try:
        attempt.talk.tell(command)
        with attempt.record.clock("run"):
            said = attempt.talk.hear(m.Muted)
    except VerdictReached as stop:
        return f"ended: {stop.message}"[:200]
    judge = m.JudgeMuted(
        command.inputs, command.output, command.witnesses, said.wrote, command.sample_seed, command.filled
    )
    return attempt.ask_reference(judge, m.MutedJudged, OUTPUT, WITNESSES).kind


def call_often(attempt: Attempt) -> None:
    """Call who keeps something from call to call, or may (a file whose Python runs), many times on several inputs,
    after all others and those that were timed. Raises `VerdictReached` where an answer is then wrong: one that is not
    the first on the same inputs, or the last. A process that ends meanwhile tells nothing."""
    kept = attempt.keeps or any(built.foreign.variable for built in attempt.files.shown)
    kept = kept or attempt.record.provenance == "evidence"
    if not attempt.assignment.protocol.ours or not kept:
        return
    names, seeds = [], []
    for step in (NEAR, EVEN, *OFTEN, *MIXED, REARRANGED, SPARSE):  # what is alike is far apart in the first round
        drawn = attempt.set_up(step)
        if not drawn.family:  # halves of two draws are none, or other values do not suit
            continue
        if not drawn.shareable or drawn.asked_back or drawn.rng or drawn.evolves:  # of large trials only one is kept
            return
        names.append(attempt.drawn)
        seeds.append(drawn.seed)
    attempt.talk.run_left = min(attempt.talk.run_timeout_s, OFTEN_S)  # whatever the muted forwards left
    try:
        with attempt.record.clock("run"):
            said = attempt.talk.ask(m.RunOften(tuple(names), OUTPUT, tuple(seeds)), m.RanOften)
    except VerdictReached:
        return
    what = f"call {said.other}, as the library counts them, and not the first on the same inputs"
    what = what if said.other else "called again after all other calls"
    for place in said.places[: len(names)]:
        if not 0 <= place < len(names):
            return
        output = f"{OUTPUT} {place}"
        judged = attempt.ask_reference(m.JudgeOutput(names[place], output), m.Judged, output)
        if not judged.equal:
            raise VerdictReached("wrong", "compare", f"{what}: {judged.message}", judged.errors)


def remark(attempt: Attempt) -> None:
    """Label what a right kernel does otherwise than the reference where nobody asked for it."""
    for step in attempt.remarks:
        if attempt.talk.run_left <= 0:  # it is late
            return
        attempt.talk.run_left = min(attempt.talk.run_left, REMARKS_S)
        try:
            differs = _differs(attempt, step)
        except (VerdictReached, ReferenceBroken, NotCaptured):  # it refuses what it was not made for
            return
        attempt.record.add_labels(step.remark if differs else "")


def _differs(attempt: Attempt, step: m.Step) -> bool:
    drawn = attempt.set_up(step)
    if not drawn.family or drawn.lent:
        return False
    asked = (drawn.asked_back, drawn.asked_kept)
    command = m.RunTrial(attempt.drawn, OUTPUT, drawn.seed, 0, False, drawn.rng, *asked, LEFT)
    with attempt.record.clock("run"):
        ran = attempt.talk.ask(command, m.Ran)
    told = (ran.changed, ran.aliased, ran.written, ran.kept, ran.on_cpu, ran.overlapping)
    with attempt.record.clock("compare"):
        judged = attempt.ask_reference(m.JudgeOutput(attempt.drawn, OUTPUT, *told, LEFT), m.Judged, OUTPUT, LEFT)
    return not judged.equal
