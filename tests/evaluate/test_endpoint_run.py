"""`dice eval` against an endpoint that misbehaves: nothing lost, nothing asked or paid for twice, the cost right."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dice.cli import main
from dice.evaluate.run_folder import RunFolder
from tests.conftest import ROOT
from tests.endpoint.server import Server, serving

pytest.importorskip("httpx", reason="the endpoint client needs httpx")

pytestmark = pytest.mark.usefixtures("one_verifier")
CASES = ROOT / "tests" / "cases"
KERNEL = (CASES / "right_relu.py").read_text()
PAID = 0.002  # one answer of the server, at the prices below
# What the server does with the question about each problem, the first time and from then on.
TROUBLE = {
    "1_Good": "ok",
    "2_Limited": "429:0.2,429,ok",
    "3_Down": "500,503,ok",
    "4_Truncated": "truncated,ok",
    "5_Slow": "slow,ok",  # beyond what the client waits
    "6_Cut": "cut,reset,ok",
    "7_Empty": "empty,empty,empty",
    "8_Long": "length",
    "9_Refused": "400",
    "10_Gone": "500,500,500,ok",  # gives up in the first run, answers in the second
}


def told(prompt: str) -> str:
    found = re.search(r"# trouble (\S+)", prompt)
    return TROUBLE[found[1]] if found else "ok"


@pytest.fixture
def server() -> Any:
    with serving(answer=lambda prompt: f"```python\n{KERNEL}```", told=told, slow_s=1.5) as found:
        yield found


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A problem for each trouble; and a client that does not wait as long as it would out there."""
    (tmp_path / "bench" / "level1").mkdir(parents=True)
    source = (CASES / "problems" / "relu.py").read_text()
    for name in TROUBLE:
        (tmp_path / "bench" / "level1" / f"{name}.py").write_text(f"{source}\n# trouble {name}\n")
    from dice.commands import endpoint_args

    known = endpoint_args.settings_of

    def impatient(*args: Any, **told: Any) -> Any:
        return replace(known(*args, **told), attempts=3, first_wait_s=0.05, longest_wait_s=0.2, read_s=0.7, total_s=5.0)

    monkeypatch.setattr(endpoint_args, "settings_of", impatient)
    return tmp_path


def run(bench: Path, server: Server, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, dict[str, Any], str]:
    given = ["--base-url", server.url, "--model", "m", "--price-in", "10", "--price-out", "20", "--concurrency", "4"]
    flags = ["--problems", str(bench / "bench"), "--out", str(bench / "run"), "--prompt", "compact", "--json"]
    status = main(["eval", *given, *flags, "--max-new-tokens", "200", "--backend", "emulated", "--trials", "1", *more])
    printed = capsys.readouterr()
    return status, json.loads(printed.out), printed.err


def asked(server: Server) -> Counter[str]:
    names = (re.search(r"# trouble (\S+)", prompt) for prompt in server.received)
    return Counter(name[1] for name in names if name)


def test_nothing_is_lost_and_the_next_run_asks_for_the_rest(
    bench: Path, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    status, found, said = run(bench, server, capsys)
    folder = RunFolder(bench / "run")
    assert status == 3 and "1 answers or verdicts are still lacking" in said
    stored = {one.task.removeprefix("level1/"): one for one in folder.generations()}
    assert set(stored) == set(TROUBLE) - {"10_Gone"} and found["untried"]
    outcomes = {one.task.removeprefix("level1/"): one.verdict.outcome for one in folder.judgements("dice")}
    lost = {"7_Empty", "9_Refused"}  # the question's own fault: an answer without a kernel
    assert outcomes == {name: "no_kernel" if name in lost else "correct" for name in stored}
    assert stored["8_Long"].stop == "length" and stored["9_Refused"].error.startswith("refused")
    first = asked(server)
    assert first == {name: len(actions.split(",")) for name, actions in TROUBLE.items()} | {"10_Gone": 3}

    status, found, _ = run(bench, server, capsys)
    assert status == 0 and found["generated"] == found["judged"] == 1 and found["untried"] == {}
    assert asked(server) == first + Counter(["10_Gone"]), "only what was lacking is asked for"
    account = found["endpoint"]
    outcomes_of = {"rate_limited": 2, "timeout": 1, "truncated_json": 1, "refused": 1, "length": 1, "no_content": 3}
    assert account["outcomes"].items() >= outcomes_of.items() and account["outcomes"]["answer"] == 7
    assert account["sent"] == sum(first.values()) + 1 and account["unknown"] == 0

    status, found, _ = run(bench, server, capsys)
    assert status == 0 and asked(server) == first + Counter(["10_Gone"])


def test_the_cost_is_that_of_the_answers(bench: Path, server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    _, found, _ = run(bench, server, capsys, "--ids", "1,2,3,8")
    told_of = 4 * PAID  # what is refused with an error status costs nothing
    assert found["endpoint"]["cost"] == pytest.approx(told_of)
    assert found["protocols"]["dice"]["cost"]["usd"] == pytest.approx(told_of)
    assert found["endpoint"]["tokens_in"] == 400 and found["endpoint"]["tokens_out"] == 200


def test_what_the_run_may_cost_is_kept_to(bench: Path, server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    status, found, said = run(bench, server, capsys, "--ids", "1-3", "--max-cost", "0.0075", "--concurrency", "1")
    assert status == 3 and found["endpoint"]["cost"] <= 0.0075 and found["generated"] < 3 and "budget" in said
    status, found, _ = run(bench, server, capsys, "--ids", "1-3", "--concurrency", "1")
    assert status == 0 and asked(server)["1_Good"] == 1 and found["endpoint"]["cost"] == pytest.approx(3 * PAID)
