"""What keeps a candidate out, one function a rule.

A rule looks at the candidates that earlier rules left and says which go, and why: position -> a few words. Rules that
look at one candidate at a time are written as functions of that one and lifted by `each`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from dice.data.cuke.candidates import Candidate, CurationSettings
from dice.data.decontaminate import Index, fingerprint, kernel_shingles
from dice.data.near_duplicates import Neighbours, jaccard
from dice.data.outcomes import lower_bound

Gone = dict[int, str]
Rule = Callable[[Sequence[Candidate], CurationSettings], Gone]
FASTER = 1.0  # speed-up over eager PyTorch above which a kernel is faster


def each(why: Callable[[Candidate, CurationSettings], str], *, spares: bool = True) -> Rule:
    """The rule that asks `why` of every candidate; "" keeps it. `spares`: it is not asked of those kept as they are."""

    def rule(candidates: Sequence[Candidate], settings: CurationSettings) -> Gone:
        asked = (pair for pair in enumerate(candidates) if not (spares and pair[1].spared(settings)))
        found = ((number, why(candidate, settings)) for number, candidate in asked)
        return {number: text for number, text in found if text}

    return rule


# -- one candidate ---------------------------------------------------------------------------------------------------


def incomplete(candidate: Candidate, settings: CurationSettings) -> str:
    """One that is kept as it is needs only something to train on: a question and an answer."""
    sample = candidate.sample
    missing = [name for name in ("problem", "kernel") if not getattr(sample, name)]
    if candidate.spared(settings) and (sample.prompt or sample.problem) and (sample.response or sample.kernel):
        return ""
    return f"no {' and no '.join(missing)}" if missing else ""


def unmeasured(candidate: Candidate, settings: CurationSettings) -> str:
    """Nothing is known of it: a failure of the measuring, which is none of the sample's."""
    verdict = candidate.sample.verdict
    if verdict is None:
        return "never measured"
    return verdict.outcome if verdict.outcome == "infra_error" else ""


def unsupported(candidate: Candidate, settings: CurationSettings) -> str:
    """Its problem could not be run where it was measured; `dice data measure` counts it by the same name."""
    verdict = candidate.sample.verdict
    assert verdict
    return "" if verdict.about_kernel else verdict.message or verdict.outcome


def deceptive(candidate: Candidate, settings: CurationSettings) -> str:
    verdict = candidate.sample.verdict
    assert verdict
    if verdict.outcome == "deceptive":
        return ", ".join(verdict.deceptions) or "deceptive"
    return ""


def incorrect(candidate: Candidate, settings: CurationSettings) -> str:
    verdict = candidate.sample.verdict
    assert verdict
    return "" if verdict.correct else verdict.outcome


def lowers_precision(candidate: Candidate, settings: CurationSettings) -> str:
    """It computes in less than the reference's precision, so that its speed cannot be compared."""
    verdict = candidate.sample.verdict
    assert verdict
    return next((label for label in verdict.labels if label.startswith("precision_downgrade")), "")


def untimed(candidate: Candidate, settings: CurationSettings) -> str:
    needs_speed = candidate.part != "base" or settings.concise
    verdict = candidate.sample.verdict
    assert verdict
    return (verdict.no_timing or "not timed") if needs_speed and verdict.timing is None else ""


def too_slow(candidate: Candidate, settings: CurationSettings) -> str:
    """Paper section 3: pairs outside the base set must exceed the threshold."""
    speedup = candidate.speedup(settings)
    if candidate.part != "fast" or speedup is None or speedup > settings.min_speedup:
        return ""
    return f"{speedup:.2f}x"


def unconfirmed(candidate: Candidate, settings: CurationSettings) -> str:
    """Paper section 3: a structural sample must show a confirmed speed-up, so its whole interval must."""
    low = lower_bound(candidate.sample.verdict)
    if candidate.part != "structural" or low is None or low > FASTER:
        return ""
    return f"{low:.2f}x at least"


# -- candidates beside each other ------------------------------------------------------------------------------------


def not_concise(candidates: Sequence[Candidate], settings: CurationSettings) -> Gone:
    """ConCuR's criterion: of a problem's answers, the one that is correct, fast, and has the shortest reasoning."""
    if not settings.concise:
        return {}
    gone: Gone = {}
    answers: dict[str, list[int]] = defaultdict(list)
    for number, candidate in enumerate(candidates):
        speedup = candidate.speedup(settings)
        if candidate.part == "base" and speedup is not None and speedup <= FASTER:
            gone[number] = f"{speedup:.2f}x: not fast"
        elif candidate.part == "base":
            answers[_text(candidate.sample.problem)].append(number)
    for numbers in answers.values():
        best = min(numbers, key=lambda number: (_reasoning(candidates[number]), candidates[number].rank))
        length = _reasoning(candidates[best])
        gone |= {n: f"an answer to the same problem takes {length} characters" for n in numbers if n != best}
    return gone


def exact_duplicates(candidates: Sequence[Candidate], settings: CurationSettings) -> Gone:
    """The same problem and kernel but for white space, whatever was said around them."""
    twins: dict[tuple[str, str], list[int]] = defaultdict(list)
    for number, candidate in enumerate(candidates):
        twins[_text(candidate.sample.problem), _text(candidate.sample.kernel)].append(number)
    gone: Gone = {}
    for numbers in twins.values():
        best = min(numbers, key=lambda number: candidates[number].rank)
        twin = f"the same as {_name(candidates[best])}"
        gone |= {n: twin for n in numbers if n != best and not candidates[n].spared(settings)}
    return gone


def near_duplicates(candidates: Sequence[Candidate], settings: CurationSettings) -> Gone:
    """The same problem and the same kernel but for names, numbers, comments, and a few words."""
    problems = [fingerprint(candidate.sample.as_problem()).shingles for candidate in candidates]
    kernels = [kernel_shingles(candidate.sample.as_kernel()) for candidate in candidates]
    neighbours = Neighbours(settings.near_duplicate, problems)
    kept: list[int] = []
    gone: Gone = {}
    for number in sorted(range(len(candidates)), key=lambda number: candidates[number].rank):
        near = (kept[one.number] for one in neighbours.find(problems[number]))
        alike = ((jaccard(kernels[number], kernels[other]), other) for other in near)
        twin = next((pair for pair in alike if pair[0] >= settings.near_duplicate), None)
        if twin and not candidates[number].spared(settings):
            gone[number] = f"{twin[0]:.0%} the kernel of {_name(candidates[twin[1]])}"
        else:
            neighbours.add(problems[number])
            kept.append(number)
    return gone


def in_benchmark(index: Index | None) -> Rule:
    """The problem is one of a benchmark's, or nearly."""

    def why(candidate: Candidate, settings: CurationSettings) -> str:
        match = index.find(candidate.sample.as_problem()) if index else None
        return f"{match.kind} of {match.benchmark}, {match.similarity:.0%}" if match else ""

    return each(why, spares=False)


def rules(index: Index | None) -> dict[str, tuple[str, Rule]]:
    """Every rule by name, in the order in which they apply, with what it keeps out. A row counts for the first."""
    return {
        "incomplete": ("lacks its problem or its kernel", each(incomplete, spares=False)),
        "unmeasured": ("has no verdict", each(unmeasured)),
        "unsupported": ("could not be checked where it was measured", each(unsupported)),
        "deceptive": ("does not do its work in its own CUDA kernels", each(deceptive)),
        "incorrect": ("fails verification", each(incorrect)),
        "lowers_precision": ("computes in a lower precision than the reference", each(lowers_precision)),
        "untimed": ("has no measured speed-up", each(untimed)),
        "too_slow": ("does not exceed the speed-up threshold", each(too_slow)),
        "unconfirmed": ("is a structural sample without a confirmed speed-up", each(unconfirmed)),
        "in_benchmark": ("has a benchmark's problem, or nearly", in_benchmark(index)),
        "not_concise": ("is not a base problem's fast answer with the shortest reasoning", not_concise),
        "exact_duplicate": ("repeats another sample's problem and kernel", exact_duplicates),
        "near_duplicate": ("nearly repeats another sample's problem and kernel", near_duplicates),
    }


def _text(source: str) -> str:
    return " ".join(source.split())


def _reasoning(candidate: Candidate) -> int:
    return len(candidate.sample.reasoning or candidate.sample.response)


def _name(candidate: Candidate) -> str:
    sample = candidate.sample
    return f"{sample.name or sample.id} ({sample.source} {sample.origin})".replace(" )", ")")
