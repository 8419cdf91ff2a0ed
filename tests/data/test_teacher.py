"""`dice data teach` against a real server that misbehaves, with real kernels where there is a compiler."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any

import pytest

from dice.cli import main
from dice.data.sample import read_samples
from dice.endpoint.request import RequestSettings
from dice.errors import UserError
from dice.kernel import Kernel
from dice.problem import Problem
from dice.prompts import EXAMPLE_KERNEL
from dice.verdict import Timing, Verdict
from tests.conftest import PATIENCE_S, ROOT
from tests.endpoint.server import Server, serving

pytest.importorskip("httpx", reason="the endpoint client needs httpx")
from dice.data.teacher import TeachingSettings, decide, teach  # noqa: E402 - after the check for httpx
from dice.data.teacher.record import Record  # noqa: E402
from dice.endpoint.client import Endpoint, EndpointStopped  # noqa: E402

pytestmark = pytest.mark.usefixtures("lasting_zygote")  # where verifiers are started

CASES = ROOT / "tests" / "cases"
RELU = Problem.from_file(CASES / "problems" / "relu.py")


def problem(number: int) -> Problem:
    return Problem(f"# number {number}\n{RELU.source}", name=f"relu_{number}")


def number_of(prompt: str) -> int:
    return int(prompt.split("# number ")[1].split()[0])


def kernel_for(prompt: str) -> str:
    return f"Here it is.\n```python\n# for {number_of(prompt)}\n{EXAMPLE_KERNEL}```\n"


def settings(server: Server, **more: Any) -> RequestSettings:
    quick = {"first_wait_s": 0.05, "longest_wait_s": 0.1, "read_s": 2.0, "price_in": 1.0, "price_out": 2.0}
    return RequestSettings(server.url, "teacher", **quick | more)


def verdict(low: float, *, outcome: Any = "correct", timed: bool = True) -> Verdict:
    timing = Timing(1.0, low + 0.5, low + 0.5, 20, speedup_low=low, speedup_high=low + 1) if timed else None
    return Verdict(outcome, "done", timing=timing)


class Measured:
    """Stands in for a verifier on a GPU: the verdicts of a kernel come from `plan`, one for each execution."""

    backend = ""

    def __init__(self, plan: dict[int, list[Verdict]], log: list[int], fail_after: int = 10**9):
        self.plan, self.log, self.fail_after = plan, log, fail_after

    def __enter__(self) -> Measured:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def verify_many(self, pairs: Iterable[tuple[Problem, Kernel]]) -> Generator[tuple[int, Verdict], None, None]:
        for index, (given, kernel) in enumerate(pairs):
            number = number_of(given.source)
            assert f"# for {number}\n" in kernel.source
            if len(self.log) == self.fail_after:
                raise KeyboardInterrupt
            self.log.append(number)
            yield index, self.plan[number][self.log.count(number) - 1]


FAST, SLOW = verdict(1.4), verdict(0.9)
EXECUTIONS = {
    0: [FAST] * 5,
    1: [FAST, FAST, SLOW, FAST, FAST],
    2: [SLOW],
    3: [verdict(0, outcome="wrong", timed=False)],
    4: [verdict(0, timed=False)],
    5: [FAST, verdict(0, outcome="runtime_error", timed=False)],
    6: [FAST, verdict(1.1), FAST, FAST, FAST],
}
WHY = {0: "", 1: "not faster", 2: "not faster", 3: "wrong", 4: "not timed", 5: "runtime_error", 6: ""}


def run(server: Server, out: Path, log: list[int], **more: Any) -> dict[str, Any]:
    problems = [problem(number) for number in EXECUTIONS]
    endpoint = Endpoint(settings(server), "key", out / "requests.jsonl")
    return teach(problems, endpoint, TeachingSettings(), out, make_verifier=lambda: Measured(EXECUTIONS, log, **more))  # type: ignore[arg-type,return-value]


def test_only_a_speed_up_of_every_execution_is_kept(tmp_path: Path) -> None:
    log: list[int] = []
    with serving(answer=kernel_for) as server:
        report = run(server, tmp_path, log)
    assert [log.count(number) for number in EXECUTIONS] == [5, 3, 1, 1, 1, 2, 5]  # the first that fails ends it
    samples = list(read_samples(tmp_path / "candidates.parquet"))
    assert {number_of(one.problem): one.meta["dropped"] for one in samples} == WHY
    kept = list(read_samples(tmp_path / "kept.parquet"))
    assert [number_of(one.problem) for one in kept] == [0, 6]
    worst = kept[1]
    assert worst.verdict is not None and worst.verdict.timing is not None and worst.verdict.timing.speedup_low == 1.1
    assert len(worst.meta["executions"]) == 5 and worst.reasoning == "Here it is." and worst.origin == "teacher"
    assert worst.kernel in worst.response and "# number 6" in worst.prompt
    assert report["kept"] == 2 and report["dropped"] == {
        "not faster": 2, "not timed": 1, "runtime_error": 1, "wrong": 1
    }  # fmt: skip
    assert report["endpoint"]["cost"] == pytest.approx(7 * (100 * 1 + 50 * 2) / 1e6)


def test_a_run_that_is_interrupted_executes_nothing_twice_and_ends_the_same(tmp_path: Path) -> None:
    whole: list[int] = []
    with serving(answer=kernel_for) as server:
        run(server, tmp_path / "whole", whole)
        parts: list[int] = []
        for fail_after in (3, 9, 14):
            with pytest.raises(KeyboardInterrupt):
                run(server, tmp_path / "parts", parts, fail_after=fail_after)
        run(server, tmp_path / "parts", parts)
    assert sorted(parts) == sorted(whole)
    for name in ("candidates.parquet", "kept.parquet"):
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_kernels_are_executed_while_others_are_written(tmp_path: Path) -> None:
    log: list[int] = []
    with serving(answer=kernel_for, delay_s=0.1) as server:

        class Watching(Measured):
            def verify_many(self, pairs: Any) -> Any:
                for found in super().verify_many(pairs):
                    received.append(len(server.received))
                    yield found

        received: list[int] = []
        problems = [problem(0), *(Problem(f"# number 0\n# {n}\n{RELU.source}", name=f"other_{n}") for n in range(5))]
        plan = {0: [SLOW] * 6}
        endpoint = Endpoint(settings(server, concurrency=1), ledger=tmp_path / "requests.jsonl")
        teach(problems, endpoint, TeachingSettings(), tmp_path, make_verifier=lambda: Watching(plan, log))  # type: ignore[arg-type,return-value]
    assert received[0] <= 3 < len(problems) == len(received)


def test_what_says_nothing_about_a_kernel_is_tried_again_by_the_next_run(tmp_path: Path) -> None:
    lost = Verdict("infra_error", "infra", "The GPU was lost.")
    problems, log = [problem(0)], []
    with serving(answer=kernel_for) as server:
        for kept in (0, 1):
            endpoint = Endpoint(settings(server), ledger=tmp_path / "requests.jsonl")
            plan = {0: [lost, *[FAST] * 5]}
            found = teach(problems, endpoint, TeachingSettings(), tmp_path, make_verifier=lambda: Measured(plan, log))  # type: ignore[arg-type,return-value] # noqa: B023
            assert found["kept"] == kept and found["dropped"] == ({} if kept else {"not executed": 1})
        assert len(server.received) == 1 and len(log) == 6


def test_what_confirmed_means() -> None:
    plan = TeachingSettings(executions=3, min_speedup=2.0)
    assert decide([verdict(2.1)] * 3, plan) == ""
    assert decide([verdict(2.1)] * 2, plan) == "executed too rarely"
    assert decide([verdict(2.1), verdict(2.1), verdict(2.0)], plan) == "not faster"
    assert decide([], plan) == "not executed"
    with pytest.raises(UserError, match="at least one sample"):
        TeachingSettings(samples=0)


def test_a_record_line_cut_short_counts_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.jsonl"
    with Record(path) as record:
        record.add("a", FAST)
    path.write_text(path.read_text() + path.read_text()[:30])
    with Record(path) as record:
        assert record.of("a", "") == [FAST]
        record.add("a", SLOW)
    with Record(path) as record:
        assert record.of("a", "") == [FAST, SLOW] and record.of("a", "cuda") == []


def test_a_hopeless_endpoint_stops_the_pipeline(tmp_path: Path) -> None:
    with serving(answer=kernel_for) as server, pytest.raises(EndpointStopped, match="Nothing answers"):
        server.url = "http://127.0.0.1:9/v1"
        run(server, tmp_path, [])


def command(server: Server, out: Path, *more: str | Path) -> list[str]:
    paths = [sys.executable, "-m", "dice", "data", "teach", *map(str, more), "-o", str(out)]
    return [*paths, "--base-url", server.url, "--model", "teacher"]


ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "OPENAI_API_KEY": "sk-very-secret"}
ENVIRONMENT["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])


def test_the_command_survives_a_kill_and_loses_and_repeats_nothing(tmp_path: Path) -> None:
    rows = [{"name": f"p{number}", "problem": problem(number).source} for number in range(24)]
    (tmp_path / "set.json").write_text(json.dumps(rows))
    log = tmp_path / "out" / "requests.jsonl"
    with serving(answer=kernel_for, delay_s=0.1) as server:
        line = [*command(server, tmp_path / "out", tmp_path / "set.json"), "--no-measure", "--concurrency", "3"]
        line += ["--samples", "2", "--json"]
        process = subprocess.Popen(line, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        deadline = time.monotonic() + PATIENCE_S
        while not (log.exists() and 7 <= (text := log.read_text()).count('"event": "answer"') < text.count('"sent"')):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        result = subprocess.run(line, env=ENVIRONMENT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert result.returncode == 0, result.stderr
        report = json.loads(result.stdout)
        account = report["endpoint"]
        assert report["answered"] == report["asked"] == 48 and account["outcomes"]["answer"] == 48
        assert 0 < account["unknown"] == account["resent"] <= 3
        assert account["sent"] == 48 + account["unknown"]
        assert 48 <= len(server.received) <= account["sent"] and len(set(server.received)) == 24
    assert len(list(read_samples(tmp_path / "out" / "candidates.parquet"))) == 48
    written = "".join(path.read_text(errors="replace") for path in (tmp_path / "out").iterdir())
    assert "sk-very-secret" not in written + result.stderr + result.stdout


def test_real_kernels_from_a_server(tmp_path: Path) -> None:
    """Right, wrong, no kernel at all: on a CPU they are told apart, and none is kept, for none could be timed."""
    answers = {0: CASES / "right_relu.py", 1: CASES / "wrong_value.py"}
    rows = [{"name": f"p{number}", "problem": problem(number).source} for number in range(3)]
    (tmp_path / "set.json").write_text(json.dumps(rows))

    def answer(prompt: str) -> str:
        file = answers.get(number_of(prompt))
        return f"```python\n{file.read_text()}```" if file else "I do not know."

    with serving(answer=answer) as server:
        line = [*command(server, tmp_path / "out", tmp_path / "set.json"), "--backend", "emulated"]
        result = subprocess.run(line, env=ENVIRONMENT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert result.returncode == 1 and "kept: 0" in result.stdout, result.stderr
    samples = {number_of(one.problem): one for one in read_samples(tmp_path / "out" / "candidates.parquet")}
    outcomes = {number: one.verdict.outcome for number, one in samples.items() if one.verdict}
    assert outcomes == {0: "correct", 1: "wrong", 2: "no_kernel"}
    assert samples[0].meta["dropped"] == "not timed"


def test_misuse_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "p.py").write_text(RELU.source)

    def refused(words: str, *arguments: str | Path) -> None:
        assert main(["data", "teach", *map(str, arguments), "-o", str(tmp_path / "out")]) == 2
        said = capsys.readouterr().err
        assert words in said and len(said.strip().splitlines()) == 1, said

    url = ("--base-url", "http://127.0.0.1:9/v1", "--model", "m")
    refused("Give --base-url and --model", tmp_path / "p.py")
    refused("no variable NO_SUCH", tmp_path / "p.py", *url, "--api-key-env", "NO_SUCH")
    refused("needs prices", tmp_path / "p.py", *url, "--max-cost", "1")
    refused("at least one PROBLEM", *url)
