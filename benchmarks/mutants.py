"""Candidates for benchmarks of the verifier: right, wrong and broken ones, made by seeded edits of right kernels."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dice import synth
from dice.kernel import Kernel
from dice.problem import Problem

CASES = Path(__file__).parent.parent / "tests" / "cases"
# They attack or stall the process that judges them; KernelBench's evaluator has no defence that could be compared.
HOSTILE = re.compile(r"fork_bomb|memory_hog|hang_|daemon|flood|forged|sys_exit|reference_broken")
Edit = Callable[[str, random.Random], str | None]


@dataclass(frozen=True)
class Candidate:
    """`kind` is `right`, the edit that was made, or the hand-written case."""

    name: str
    kind: str
    problem: Problem
    kernel: Kernel


def candidates(seed: int, right: int, mutants: int) -> Iterator[Candidate]:
    """Right pairs, then mutants of other pairs with the edits in turn, then the hand-written cases. All distinct."""
    seen: set[str] = set()
    index = 0
    while right > 0:
        pair = synth.generate(seed, index)
        index += 1
        if pair.kernel.id not in seen:
            seen.add(pair.kernel.id)
            right -= 1
            yield Candidate(pair.kernel.name, "right", pair.check_problem, pair.kernel)
    rng = random.Random(seed)
    while mutants > 0:
        pair = synth.generate(seed, index)
        index += 1
        kinds = [*EDITS]
        start = mutants % len(kinds)
        for kind in (*kinds[start:], *kinds[:start]):
            source = EDITS[kind](pair.kernel.source, rng)
            if source is not None and source != pair.kernel.source and source not in seen:
                seen.add(source)
                mutants -= 1
                name = f"{pair.kernel.name}_{kind}"
                yield Candidate(name, kind, pair.check_problem, Kernel(source, name))
                break
    yield from hand_written()


def hand_written() -> Iterator[Candidate]:
    """The cases of the test suite, without those that attack the process they run in."""
    for path in sorted(CASES.glob("*.py")):
        kernel = Kernel.from_file(path)
        problem = re.search(r"^# problem: (\w+)", kernel.source, re.MULTILINE)
        if problem is not None and not HOSTILE.search(path.stem):
            yield Candidate(path.stem, "case", Problem.from_file(CASES / "problems" / f"{problem[1]}.py"), kernel)


def _replaced(pattern: str, new: str | Callable[[re.Match[str]], str]) -> Edit:
    """Replace one of the places where `pattern` matches, drawn by chance; None where it matches nowhere."""

    def edit(source: str, rng: random.Random) -> str | None:
        places = list(re.finditer(pattern, source))
        if not places:
            return None
        place = rng.choice(places)
        return source[: place.start()] + (new if isinstance(new, str) else new(place)) + source[place.end() :]

    return edit


EDITS: dict[str, Edit] = {
    "wrong_constant": _replaced(r"(?<![\w.])[01]\.\d+f", lambda found: f"{float(found[0][:-1]) + 0.37:.2f}f"),
    "off_by_one": _replaced(r"< (n|N|cols|size|K|D|C|rows|M)\b", lambda found: f"< {found[1]} - 1"),
    "missing_sync": _replaced(r"\n\s*__syncthreads\(\);", ""),
    "wrong_dtype": _replaced(r"data_ptr<float>\(\)", "data_ptr<double>()"),
    "syntax_error": _replaced(r";\n", "\n"),
    "missing_symbol": _replaced(r"functions=\[\"", 'functions=["no_such_'),
    "undeclared": _replaced(r"(?<=    )return out;", "return result_that_is_not_there;"),
    "unwritten": _replaced(r"\n\s*out\[[^=\n]*\] = [^\n]*;", "\n;"),
    "wrong_operator": _replaced(r" \* ", " + "),
    "half_grid": _replaced(r"<<<([^,>]+),", lambda found: f"<<<({found[1]}) / 2,"),
    "transposed_shape": _replaced(r"(?<=    )return out;", "return out.reshape({-1});"),
    "raises": _replaced(r"def forward\(self[^)]*\):\n", lambda found: f'{found[0]}        raise ValueError("no")\n'),
    "no_model": _replaced(r"class ModelNew", "class Model2"),
    "no_launch": _replaced(r"\n\s*\w+<<<[^\n]*\n", "\n"),
}
