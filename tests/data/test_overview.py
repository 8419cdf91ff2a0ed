"""A set in one look: the numbers are right, the page is whole and harmless, the audit runs when it should."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from source_files import cuke, generation, kernel, problem, write

from dice.cli import main
from dice.data.overview.page import to_page
from dice.data.overview.stats import BUCKETS, PAPER_SHARES, Lengths, Overview, bucket, gather
from dice.data.sample import Sample, write_samples
from dice.data.sources import ImportReport
from dice.problem import Problem
from dice.verdict import Timing, Verdict
from dice.verify.audit.findings import Audit, Finding
from tests.verify.audit.audited_problems import CASES, LIMITS, inspect


def samples() -> Iterator[Sample]:
    for number in range(40):
        outcome = ("correct", "wrong", "deceptive", "correct")[number % 4]
        speedup = (0.5, 1.0, 1.2, 3.0)[number % 4]
        timing = Timing(1.0, speedup, speedup, 10)
        deceptions = ("not_in_forward",) if outcome == "deceptive" else ()
        yield Sample(
            problem(number),
            kernel(number),
            reasoning="think " * (number + 1),
            name=f"n{number}",
            source=("concur", "own")[number % 2],
            licence=("", "MIT")[number % 2],
            family=f"family {number % 20}",
            verdict=Verdict(outcome, "done", deceptions=deceptions, timing=timing),
        )
    yield Sample(problem(0), name="alone")
    yield Sample("", kernel(0), name="orphan")
    yield Sample("", kernel(0), name="twin")


def audit(number: int, *findings: Finding) -> Audit:
    return Audit(f"n{number}", Problem(problem(number)).id, findings=findings)


AUDITS = {
    one.problem: one
    for one in (
        audit(0, Finding("zeros", "reject", "Zeros pass.")),
        audit(1),
        audit(99, Finding("zeros", "warn", "x.")),
    )
}


def test_the_numbers() -> None:
    found = gather(samples(), str.split, AUDITS)
    assert (found.samples, found.distinct, found.pairs, found.problems, found.kernels) == (43, 42, 40, 1, 2)
    assert found.sources == {("concur", ""): 20, ("own", "MIT"): 20, ("", ""): 3}
    assert found.outcomes == {"correct": 20, "wrong": 10, "deceptive": 10} and found.deceptions == {
        "not_in_forward": 10
    }
    assert found.speedups == {"< 1.0x": 10, ">= 3.0x": 10}  # of correct ones alone
    assert (found.audited, found.severities, found.flags) == (3, {"reject": 2, "": 1}, {"zeros": 2})
    assert found.lengths["reasoning"] == Lengths(40, 20, 36, 40, found.lengths["reasoning"].bins)
    assert sum(found.lengths["reasoning"].bins.values()) == 40 and "prompt" not in found.lengths


def test_the_buckets_are_those_of_table_12() -> None:
    assert [bucket(value) for value in (0.99, 1.0, 1.5, 1.99, 2.0, 2.5, 3.0)] == [
        BUCKETS[n] for n in (0, 1, 2, 2, 3, 4, 5)
    ]
    assert sum(PAPER_SHARES) == pytest.approx(100) and len(PAPER_SHARES) == len(BUCKETS)


@given(st.lists(st.integers(0, 200_000), min_size=1))
def test_every_length_is_in_its_bin(values: list[int]) -> None:
    found = Lengths.of(values)
    assert sum(found.bins.values()) == len(values) and found.longest == max(values)
    assert found.median <= found.p90 <= found.longest
    edges = [*found.bins, float("inf")]
    for low, high in zip(edges, edges[1:], strict=False):
        assert sum(low <= max(1, value) < high for value in values) == found.bins[low] or low == high


def test_samples_are_drawn_by_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dice.data.overview.stats.RESERVOIR", 5)
    draws = {seed: [one.name for one in gather(samples(), str.split, seed=seed).drawn] for seed in range(60)}
    assert draws[3] == [one.name for one in gather(samples(), str.split, seed=3).drawn]
    assert all(len(set(names)) == 5 for names in draws.values())
    assert len({name for names in draws.values() for name in names}) == 43  # no sample is out of reach


class Checker(HTMLParser):
    """Collects tags, and whether they close in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.links: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "onload", "onerror")]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def check(page: str) -> str:
    checker = Checker()
    checker.feed(page)
    assert not checker.open and not checker.links and not checker.seen & {"script", "link", "img", "iframe"}
    assert "http" not in page and "url(" not in page and "@import" not in page
    return "".join(checker.text)


def test_the_page_shows_everything() -> None:
    text = check(to_page("my set", gather(samples(), str.split, AUDITS), ImportReport(), "nano", 43))
    for words in ("my set", "43 samples", "1 repeat", "not stated", "MIT", "family 3", "median 20", "not_in_forward"):
        assert words in text, words
    assert "10, 50.0%" in text and "zeros pass" in text and "reject" in text
    assert problem(7).split("def forward")[1] in text and "__global__ void add_7_kernel" in text


def test_a_hostile_sample_stays_text() -> None:
    attack = '</pre></details><script>alert(1)</script><img src=x onerror="x">&lt;'
    hostile = Sample(attack, attack, attack, attack, attack, attack, attack, attack, attack, attack, attack)
    assert (
        check(to_page(attack, gather([hostile], str.split), ImportReport(), attack, 1)).count("<script>alert(1)") >= 8
    )


def test_an_empty_glance_is_a_page() -> None:
    assert "0 samples" in check(to_page("empty", Overview(), ImportReport(), "nano", 3))


def test_the_command_shows_a_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, page = tmp_path / "s.parquet", tmp_path / "out" / "page.html"
    write_samples(path, samples())
    (tmp_path / "audit.json").write_text(json.dumps({"audits": [one.to_json() for one in AUDITS.values()]}))
    extra = ("--html", str(page), "--audited", str(tmp_path / "audit.json"), "--show", "2")
    assert main(["data", "inspect", str(path), *extra]) == 0
    text = capsys.readouterr().out
    assert "43 samples (40 pairs, 1 problems alone, 2 kernels alone), 1 repeat another one" in text
    assert "not_in_forward" in text and "Table 12" in text and "2 reject" in text and text.count("__global__") >= 1
    assert "43 samples" in check(page.read_text())
    assert main(["data", "inspect", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["speedups"]["< 1.0x"] == 10 and found["tokens"]["problem"]["samples"] == 41
    assert found["rows"]["rows"] == 43


def test_published_files_are_shown_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "CuKe_dataset.json", [cuke(0), cuke(1), {"prompt": "p", "response": "r"}])
    assert main(["data", "inspect", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["samples"], found["rows"]["rows"]) == (2, 3)


@pytest.mark.usefixtures("lasting_zygote")
def test_problems_alone_are_audited_unless_told_otherwise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "end_to_end_kernel_generation_4000.json", [generation(0)])
    assert main(["data", "inspect", str(path), "--json", "--audit", "never"]) == 0
    assert json.loads(capsys.readouterr().out)["problems"] == 1
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "p.py").write_text(CASES["does_not_import"][0])
    options = ("-o", tmp_path / "a.json", "--json", *LIMITS)
    result = inspect(tmp_path / "bad", "--html", tmp_path / "p.html", *options)
    assert result.returncode == 1, result.stderr
    assert json.loads(result.stdout)["audits"][0]["severity"] == "reject"
    assert "has no Model, or its own code raises" in check((tmp_path / "p.html").read_text())
    pairs = tmp_path / "s.parquet"  # the problems of pairs are audited when asked; here they are known from above
    write_samples(pairs, [Sample(CASES["does_not_import"][0], kernel(n), name=f"twin {n}") for n in range(2)])
    assert inspect(pairs, "--json", "--show", "0").returncode == 0
    result = inspect(pairs, "--audit", "always", *options)
    assert result.returncode == 1, result.stderr
    found = json.loads(result.stdout)
    assert found["samples"] == found["audited"] == 2 and len(found["audit"]["audits"]) == 1
    assert found["flags"] == {"broken": 2} and (tmp_path / "a.jsonl").read_text().count("\n") == 1


def test_misuse_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "t.jsonl", [cuke(0)])
    (tmp_path / "no.json").write_text("[]")
    (tmp_path / "empty.jsonl").write_text("")
    for arguments, words in (
        ((path, "--show", "-1"), "--show must be at least 0"),
        ((path, "-o", tmp_path / "a"), "nothing is to be audited"),
        ((path, "--audited", tmp_path / "none.json"), "No such file"),
        ((path, "--audited", tmp_path / "no.json"), "is no report of an audit"),
        ((path, "--html", tmp_path), "is a folder"),
        ((path, "--tokenizer", tmp_path / "none"), "no model folder"),
        ((tmp_path / "empty.jsonl", "--audit", "never"), "There are no rows"),
    ):
        assert main(["data", "inspect", *map(str, arguments)]) == 2, arguments
        assert words in capsys.readouterr().err.strip().splitlines()[-1]
