"""Measuring: verdicts for every pair, resumed after a kill, shared out to machines; our own failures are nobody's."""

from __future__ import annotations

import functools
import itertools
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dice import cli, synth
from dice.data import measure as measuring
from dice.data.measure import Shard, measure
from dice.data.outcomes import describe
from dice.data.sample import Sample, read_sets, write_samples
from dice.errors import MachineError, UserError
from dice.files.journal import held
from dice.verdict import Timing, Verdict
from dice.verify import Options
from tests.conftest import PATIENCE_S

pytestmark = pytest.mark.usefixtures("lasting_zygote")  # where verifiers are started

CASES = Path(__file__).parent.parent / "cases"


@functools.cache
def pairs(count: int = 4) -> list[synth.Pair]:
    drawn = (synth.generate(21, index) for index in itertools.count())
    return list(itertools.islice((pair for pair in drawn if pair.family == "elementwise"), count))


def sample(number: int, **changes: Any) -> Sample:
    pair = pairs()[number]
    made = Sample(
        pair.check_problem.source, pair.kernel.source, source="own", origin=f"row {number}", meta={"n": number}
    )
    return replace(made, **changes)


def case(name: str, problem: str = "relu") -> Sample:
    text = (CASES / "problems" / f"{problem}.py").read_text()
    return Sample(text, (CASES / f"{name}.py").read_text(), name=name, source="cases", origin=name)


def verdicts_in(folder: Path) -> int:
    path = folder / "1of1.verdicts.sqlite"
    if not path.exists():
        return 0
    try:
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=1) as database:
            return int(database.execute("SELECT COUNT(*) FROM verdicts").fetchone()[0])
    except sqlite3.Error:
        return 0


# -- the real verifier -------------------------------------------------------------------------------------------------


@pytest.mark.slow  # test_stream.py kills what this goes on with
def test_kill_9_in_the_middle_loses_no_verdict(tmp_path: Path) -> None:
    """Right, wrong and deceptive pairs, a problem alone and a repeated pair, through the command; killed, run again."""
    given_samples = [
        *(sample(number) for number in range(3)),
        replace(sample(0), source="twin"),
        case("right_relu"),
        case("wrong_value"),
        case("deceptive_never_invoked"),
        replace(sample(3), kernel=""),
    ]
    write_samples(tmp_path / "in.parquet", given_samples)
    out = tmp_path / "out"
    command = [sys.executable, "-m", "dice", "data", "measure", str(tmp_path / "in.parquet"), "-o", str(out)]
    command += ["--backend", "emulated", "--workers", "1", "--trials", "2", "--json"]
    killed = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + PATIENCE_S
    while verdicts_in(out) < 2 and killed.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    assert not list(out.glob("*.parquet"))  # one file holds them all, and it is written whole
    with sqlite3.connect(out / "1of1.verdicts.sqlite") as database:
        before = dict(database.execute("SELECT key, verdict FROM verdicts").fetchall())
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    with sqlite3.connect(out / "1of1.verdicts.sqlite") as database:
        after = dict(database.execute("SELECT key, verdict FROM verdicts").fetchall())
    assert len(after) == 6 and before.items() <= after.items()  # what was known was not measured again
    report = json.loads(done.stdout)
    assert report == json.loads((out / "report.json").read_text())
    assert (report["samples"], report["pairs"], report["unmeasured"], report["without_kernel"]) == (8, 7, 0, 1)
    assert report["outcomes"] == {"correct": 5, "deceptive": 1, "wrong": 1}
    assert report["deceptions"] == {"never_invoked": 1}
    assert report["untimed_because"] == {"emulation says nothing about speed on a GPU": 5}
    samples = list(read_sets([out]))
    assert [one.id for one in samples] == sorted(one.id for one in given_samples)
    assert {one.source: one.verdict.outcome for one in samples if one.verdict and one.source == "twin"} == {
        "twin": "correct"
    }
    assert all(one.meta == {"n": 0} for one in samples if one.origin == "row 0")
    content = (out / "1of1-00000.parquet").read_bytes()
    assert cli.main(command[3:]) == 0  # nothing is left to do
    assert (out / "1of1-00000.parquet").read_bytes() == content


# -- what does not need it ---------------------------------------------------------------------------------------------


class Scripted:
    """Stands in for `Verifier`: verdicts from `answers` by the kernel's text, "correct" otherwise; counts its work."""

    answers: dict[str, Verdict] = {}
    asked: list[str] = []
    backend = "emulated"

    def __init__(self, **_: Any) -> None:
        pass

    def __enter__(self) -> Scripted:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def verify_many(self, pairs: list[Any], workers: int | None) -> Iterator[tuple[int, Verdict]]:
        for number, (_, kernel) in reversed(list(enumerate(pairs))):
            self.asked.append(kernel.source)
            yield number, self.answers.get(kernel.source, Verdict("correct", "done", timing=Timing(1.0, 2.5, 2.5, 3)))


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> type[Scripted]:
    monkeypatch.setattr("dice.verify.Verifier", Scripted)
    monkeypatch.setattr(measuring, "Verifier", Scripted)
    monkeypatch.setattr(Scripted, "answers", {})
    monkeypatch.setattr(Scripted, "asked", [])
    return Scripted


def numbered(count: int) -> list[Sample]:
    return [Sample(f"problem {n}", f"kernel {n}", source="own", origin=f"row {n}") for n in range(count)]


def test_our_own_failures_are_unmeasured_and_tried_again(tmp_path: Path, scripted: type[Scripted]) -> None:
    write_samples(tmp_path / "in.parquet", numbered(7))
    scripted.answers["kernel 3"] = Verdict("infra_error", "infra", "the GPU was lost")
    report = measure([tmp_path / "in.parquet"], tmp_path / "out", file_rows=3)
    assert report["outcomes"] == {"correct": 6} and report["unmeasured"] == 1
    assert report["unmeasured_because"] == {"the GPU was lost": 1}
    assert [one.origin for one in read_sets([tmp_path / "out"]) if one.verdict is None] == ["row 3"]
    del scripted.answers["kernel 3"]
    scripted.asked.clear()
    report = measure([tmp_path / "in.parquet"], tmp_path / "out", file_rows=3)
    assert scripted.asked == ["kernel 3"]
    assert (report["outcomes"], report["unmeasured"], report["unmeasured_because"]) == ({"correct": 7}, 0, {})
    assert all(not one.meta for one in read_sets([tmp_path / "out"]))


def test_what_synth_wrote_is_measured_as_it_is(tmp_path: Path, scripted: type[Scripted]) -> None:
    flags = ["--pairs", "3", "--heldout", "0", "--control", "0", "--no-verify", "--backend", "emulated"]
    assert cli.main(["data", "synth", "--out", str(tmp_path / "corpus"), *flags]) == 0
    report = measure([tmp_path / "corpus" / "train"], tmp_path / "out")
    assert (report["samples"], report["pairs"], report["outcomes"]) == (3, 3, {"correct": 3})
    found = list(read_sets([tmp_path / "out"]))
    assert len(found) == len(scripted.asked) == 3 and all("__global__" in one.kernel for one in found)


@pytest.mark.parametrize(
    "slow",
    [
        Verdict("unsupported", "run", "one forward would take about 3 min emulated; check it with --scale"),
        Verdict("correct", "done", seconds={"run": 40.0, "reference": 9.0}),
    ],
)
def test_smaller_sizes_are_offered_as_soon_as_pairs_are_slow(
    tmp_path: Path, scripted: type[Scripted], capsys: pytest.CaptureFixture[str], slow: Verdict
) -> None:
    write_samples(tmp_path / "in.parquet", numbered(4))
    scripted.answers |= {"kernel 1": slow, "kernel 3": slow}
    told: list[tuple[int, str]] = []
    measure([tmp_path / "in.parquet"], tmp_path / "out", advise=lambda text: told.append((len(scripted.asked), text)))
    ((after, text),) = told
    assert after < 4 and "--scale" in text
    command = ["data", "measure", str(tmp_path / "in.parquet"), "-o", str(tmp_path / "small"), "--backend", "emulated"]
    assert cli.main([*command, "--scale", "0.1"]) == 0
    assert "are large for the emulator" not in capsys.readouterr().err


def test_cuke_counts_what_measure_counted(
    tmp_path: Path, scripted: type[Scripted], capsys: pytest.CaptureFixture[str]
) -> None:
    samples = [*numbered(5), Sample("problem alone", source="own", origin="row 5")]
    write_samples(tmp_path / "in.parquet", samples)
    scripted.answers["kernel 1"] = Verdict("unsupported", "run", "the problem's own reference failed: it is broken")
    scripted.answers["kernel 2"] = Verdict("wrong", "compare", "trial 1: wrong")
    scripted.answers["kernel 3"] = Verdict("infra_error", "infra", "the GPU was lost")
    assert cli.main(["data", "measure", str(tmp_path / "in.parquet"), "-o", str(tmp_path / "out"), "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)
    cli.main(["data", "cuke", str(tmp_path / "out"), "--dry-run", "--json"])
    curated = json.loads(capsys.readouterr().out)
    removed = {name: one["rows"] for name, one in curated["removed"].items()}
    assert curated["rows_in"] == measured["samples"] == 6
    assert removed["unmeasured"] == measured["unmeasured"] == 1
    assert removed["unsupported"] == measured["outcomes"]["unsupported"] == 1
    assert removed["incorrect"] == measured["outcomes"]["wrong"] == 1
    assert removed["incomplete"] == measured["without_kernel"] == 1
    cli.main(["data", "cuke", str(tmp_path / "out"), "--dry-run"])
    assert " of 6 samples" in capsys.readouterr().out


def test_a_machine_that_fails_on_most_says_so(tmp_path: Path, scripted: type[Scripted]) -> None:
    write_samples(tmp_path / "in.parquet", numbered(3))
    scripted.answers.update({f"kernel {n}": Verdict("infra_error", "infra", "no space is left") for n in range(2)})
    with pytest.raises(MachineError, match="no space is left"):
        measure([tmp_path / "in.parquet"], tmp_path / "out")


def test_each_file_is_written_as_soon_as_its_pairs_are_through(tmp_path: Path, scripted: type[Scripted]) -> None:
    write_samples(tmp_path / "in.parquet", numbered(10))
    seen: list[int] = []
    measure(
        [tmp_path / "in.parquet"],
        tmp_path / "out",
        file_rows=4,
        progress=lambda done, total: seen.append(len(list((tmp_path / "out").glob("1of1-*.parquet")))),
    )
    assert seen[0] == 0 and seen[-1] == 3 and 1 in seen
    leftover = tmp_path / "out" / "1of1-00001.99.tmp"
    leftover.write_text("half a file")
    measure([tmp_path / "in.parquet"], tmp_path / "out", file_rows=4)
    assert not leftover.exists()


def test_shards_are_the_whole(tmp_path: Path, scripted: type[Scripted]) -> None:
    write_samples(tmp_path / "in.parquet", numbered(30))
    for number in (1, 2, 3):
        report = measure([tmp_path / "in.parquet"], tmp_path / "out", shard=Shard(number, 3))
    assert report["samples"] == 30 and len(scripted.asked) == 30
    found = list(read_sets([tmp_path / "out"]))
    assert sorted(one.origin for one in found) == sorted(one.origin for one in numbered(30))
    assert len(list((tmp_path / "out").glob("*of3-*.parquet"))) == 3


def test_what_is_not_whole_is_not_curated(
    tmp_path: Path, scripted: type[Scripted], capsys: pytest.CaptureFixture[str]
) -> None:
    write_samples(tmp_path / "in.parquet", numbered(9))
    out = tmp_path / "out"
    for number in (1, 3):
        measure([tmp_path / "in.parquet"], out, shard=Shard(number, 3), file_rows=2)
    assert cli.main(["data", "cuke", str(out), "--dry-run"]) == 2
    assert "lacks shard 2/3" in capsys.readouterr().err
    measure([tmp_path / "in.parquet"], out, shard=Shard(2, 3), file_rows=2)
    assert cli.main(["data", "cuke", str(out), "--dry-run"]) == 0
    last = sorted(out.glob("*.parquet"))[-1]
    last.unlink()
    for command in (["cuke", str(out), "--dry-run"], ["rl", str(out), "-o", str(tmp_path / "rl")]):
        assert cli.main(["data", *command]) == 2
        assert "has not ended" in capsys.readouterr().err
    assert cli.main(["data", "cuke", *map(str, sorted(out.glob("*.parquet"))), "--dry-run"]) == 0


def test_a_shard_without_samples_is_an_empty_file(tmp_path: Path, scripted: type[Scripted]) -> None:
    write_samples(tmp_path / "in.parquet", numbered(1))
    reports = [measure([tmp_path / "in.parquet"], tmp_path / f"{n}", shard=Shard(n, 2)) for n in (1, 2)]
    assert sorted(report["samples"] for report in reports) == [0, 1]
    assert len(list(read_sets([tmp_path / "1", tmp_path / "2"]))) == 1


@given(st.text(max_size=5), st.integers(1, 9))
def test_every_sample_is_in_one_shard(text: str, count: int) -> None:
    assert sum(Shard(number, count).holds(Sample(text)) for number in range(1, count + 1)) == 1


@pytest.mark.parametrize("text", ["0/8", "9/8", "2", "a/b", "2/", "-1/4", "1/0"])
def test_a_shard_that_is_none(text: str) -> None:
    with pytest.raises(UserError, match="8"):
        Shard.parse(text)


def test_a_folder_holds_one_measurement(tmp_path: Path, scripted: type[Scripted]) -> None:
    write_samples(tmp_path / "in.parquet", numbered(4))
    measure([tmp_path / "in.parquet"], tmp_path / "out")
    write_samples(tmp_path / "more.parquet", numbered(5))
    with pytest.raises(UserError, match="other samples, digest"):
        measure([tmp_path / "more.parquet"], tmp_path / "out")
    with pytest.raises(UserError, match="other trials; choose"):
        measure([tmp_path / "in.parquet"], tmp_path / "out", options=Options(trials=2))
    write_samples(tmp_path / "told.parquet", [replace(one, licence="MIT") for one in numbered(4)])
    with pytest.raises(UserError, match="other digest"):
        measure([tmp_path / "told.parquet"], tmp_path / "out")
    assert measure([tmp_path / "out"], tmp_path / "out")["samples"] == 4  # its own files are what it was made from


def test_two_runs_at_once_are_refused(tmp_path: Path, scripted: type[Scripted]) -> None:
    write_samples(tmp_path / "in.parquet", numbered(2))

    def again(done: int, total: int) -> None:
        with pytest.raises(UserError, match="Another run"):
            measure([tmp_path / "in.parquet"], tmp_path / "out")

    measure([tmp_path / "in.parquet"], tmp_path / "out", progress=again)


def test_an_interrupted_run_exits_130_and_goes_on(
    tmp_path: Path, scripted: type[Scripted], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_samples(tmp_path / "in.parquet", numbered(6))
    arguments = ["data", "measure", str(tmp_path / "in.parquet"), "-o", str(tmp_path / "out")]
    whole = Scripted.verify_many

    def interrupted(self: Scripted, pairs: list[Any], workers: int | None) -> Iterator[tuple[int, Verdict]]:
        for number, found in enumerate(whole(self, pairs, workers)):
            if number == 3:
                os.kill(os.getpid(), signal.SIGINT)
            yield found

    monkeypatch.setattr(Scripted, "verify_many", interrupted)
    assert cli.main(arguments) == 130
    monkeypatch.setattr(Scripted, "verify_many", whole)
    assert cli.main(arguments) == 0
    assert "2.5 - 3.0x" in capsys.readouterr().out
    assert all(one.verdict for one in read_sets([tmp_path / "out"]))


def test_bad_input_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "no.parquet").write_text("no")
    for path in ("no.parquet", "gone.parquet"):
        assert cli.main(["data", "measure", str(tmp_path / path), "-o", str(tmp_path / "out")]) == 2
    assert "cannot be read as parquet" in capsys.readouterr().err
    write_samples(tmp_path / "in.parquet", numbered(1))
    for flags in (["--trials", "0"], ["--timing-seconds", "0"], ["--shard", "3/2"]):
        assert cli.main(["data", "measure", str(tmp_path / "in.parquet"), "-o", str(tmp_path / "out"), *flags]) == 2
    assert not (tmp_path / "out").exists()


def test_the_report_counts_speed_over_both_baselines() -> None:
    timing = Timing(1.0, 2.2, 2.2, 8, speedup_low=1.9, speedup_high=2.4, compile_ms=0.9)
    found = describe(
        [
            Sample("p", "k", verdict=Verdict("correct", "done", timing=timing, deceptions=("not_in_forward",))),
            Sample("p", "l", verdict=Verdict("deceptive", "time", deceptions=("timer",), timing=timing)),
            Sample("p", "m", verdict=Verdict("unsupported", "compile")),
        ]
    )
    speed = {
        name: [bucket for bucket, count in one["buckets"].items() if count] for name, one in found["speedup"].items()
    }
    assert speed == {"eager": ["2.0 - 2.5x"], "eager_confident": ["1.5 - 2.0x"], "compile": ["< 1.0x"]}
    assert found["speedup"]["eager"]["values"] == 1
    assert found["deceptions"] == {"timer": 1} and found["unmeasured"] == 0


def test_a_shard_is_measured_by_one_run_at_a_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_samples(tmp_path / "in.parquet", [replace(sample(0), kernel="")])
    out = tmp_path / "out"
    out.mkdir()
    arguments = ["data", "measure", str(tmp_path / "in.parquet"), "-o", str(out), "--backend", "emulated"]
    with held(out / "1of1.lock", "nobody else does"):
        assert cli.main(arguments) == 2
    assert f"Another run is measuring this shard into {out}." in capsys.readouterr().err
    (out / "1of1.json").write_text("{")
    assert cli.main(arguments) == 2 and "1of1.json cannot be read as JSON" in capsys.readouterr().err
