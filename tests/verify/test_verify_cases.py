"""Every hand-written case gets the verdict its header states, on the emulator and, where there is one, on a GPU.

A case is a kernel file in `tests/cases` whose first lines are `# key: value`: `problem`; `expect`, the outcome and
stage (`expect-emulated` where only one backend can tell); `deceptions`, kinds that must be among the labels; `message`,
a pattern; `limits`, fields of `Options`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from dice.commands.verdict_view import verdict_rows
from dice.kernel import Kernel
from dice.problem import Problem
from dice.verdict import OUTCOMES, STAGES, Verdict
from dice.verify import Options, Verifier

# Run beside one another, one case would be taken for what another has left behind.
pytestmark = pytest.mark.xdist_group("cases")
CASES = Path(__file__).parent.parent / "cases"
KEYS = {"problem", "expect", "expect-emulated", "expect-cuda", "deceptions", "message", "limits"}


@dataclass(frozen=True)
class Case:
    kernel: Kernel
    problem: Problem
    expected: dict[str, str]
    deceptions: set[str] = field(default_factory=set)
    message: str = ""
    limits: dict[str, int] = field(default_factory=dict)


def read_case(path: Path) -> Case:
    kernel = Kernel.from_file(path)
    header: dict[str, str] = {}
    for line in kernel.source.splitlines():
        match = re.fullmatch(r"# ([\w-]+): (.*)", line)
        if match is None:
            break
        header[match[1]] = match[2]
    assert set(header) <= KEYS, f"{path.name}: unknown keys {set(header) - KEYS}"
    expected = {backend: header.get(f"expect-{backend}", header.get("expect", "")) for backend in ("emulated", "cuda")}
    limits = dict(item.split("=") for item in header.get("limits", "").split())
    return Case(
        kernel,
        Problem.from_file(CASES / "problems" / f"{header['problem']}.py"),
        expected,
        set(header.get("deceptions", "").split()),
        header.get("message", ""),
        {name: int(value) for name, value in limits.items()},
    )


ALL = {path.stem: read_case(path) for path in sorted(CASES.glob("*.py"))}


@pytest.fixture(scope="module")
def cuda() -> Iterator[Verifier]:
    with Verifier(backend="cuda", options=Options(run_timeout_s=30)) as verifier:
        yield verifier


def check(case: Case, verifier: Verifier) -> Verdict:
    verdict = verifier.verify(case.problem, case.kernel, replace(verifier.options, **case.limits))
    said = f"{verdict.message} {' '.join(verdict.errors)}"
    assert f"{verdict.outcome} {verdict.stage}" == case.expected[verifier.backend], said
    assert case.deceptions <= set(verdict.deceptions)
    assert verdict.outcome != "compile_error" or "torch_only" not in verdict.deceptions
    assert re.search(case.message, said), said
    assert verdict.backend == verifier.backend
    assert Verdict.from_json(verdict.to_json()) == verdict
    return verdict


def test_the_cases_share_one_worker(request: pytest.FixtureRequest) -> None:
    if os.environ.get("PYTEST_XDIST_WORKER") and request.config.getoption("loadgroup"):
        assert request.node.nodeid.endswith("@cases")


def test_headers_name_real_outcomes() -> None:
    for name, case in ALL.items():
        for expected in filter(None, case.expected.values()):
            outcome, stage = expected.split()
            assert outcome in OUTCOMES and stage in STAGES, name
        assert any(case.expected.values()), name


# Slow: most of what `tests/exploits` has in other forms, and of what a fault before it shows in the same way.
SLOW = {
    *(
        "deceptive_build_fallback",
        "deceptive_inherits_reference",
        "deceptive_mimics_example",
        "deceptive_never_invoked",
    ),
    *("deceptive_not_in_forward", "deceptive_try_fallback", "returns_input", "constant_output", "identity_on_positive"),
    *("fault_fills_tmp", "fault_floods_messages", "fault_many_files", "fault_ignores_signals", "fork_bomb_large"),
    *(
        "fork_bomb",
        "hang_compile",
    ),  # test_faults.py has them beside others
    *("forged_exit", "hang_import", "right_linear_own_names", "right_row_sum_shared", "wrong_type", "wrong_shape"),
}
assert set(ALL) >= SLOW
EMULATED = [
    pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name
    for name, case in ALL.items()
    if case.expected["emulated"]
]


@pytest.mark.parametrize("name", EMULATED)
def test_emulated(name: str, emulated: Verifier) -> None:
    verdict = check(ALL[name], emulated)
    assert verdict.timing is None
    if verdict.correct:
        assert verdict.tolerance and dict(verdict_rows(verdict))["largest error"].endswith(
            f"(allowed: {verdict.tolerance})"
        )
        assert verdict.launches and verdict.trials_passed == verdict.trials == 5 and verdict.no_timing
    assert not processes_named("dice-daemon")


@pytest.mark.gpu
@pytest.mark.parametrize("name", [name for name, case in ALL.items() if case.expected["cuda"]])
def test_cuda(name: str, cuda: Verifier) -> None:
    verdict = check(ALL[name], cuda)
    assert (verdict.timing is not None) == verdict.correct
    assert not processes_named("dice-daemon")


def processes_named(name: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/comm"):
        try:
            if path.read_text().strip() == name:
                found.append(path.parent.name)
        except OSError:
            continue
    return found
