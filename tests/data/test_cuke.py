"""Curation: each rule keeps out what it says, everything is accounted for, and the files follow from the content."""

from __future__ import annotations

import functools
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dice import cli, synth
from dice.data.cuke.candidates import Candidate, CurationSettings
from dice.data.cuke.curate import candidates, curate, report_on
from dice.data.cuke.rules import rules
from dice.data.cuke.write import write
from dice.data.decontaminate import Index
from dice.data.outcomes import BUCKETS, histogram
from dice.data.pairs import read_pairs
from dice.data.sample import Sample, write_samples
from dice.problem import Problem
from dice.prompts import extract_kernel
from dice.verdict import Timing, Verdict

pair_of = functools.cache(functools.partial(synth.generate, 11))


def timed(speedup: float, spread: float = 0.05) -> Verdict:
    low, high = speedup * (1 - spread), speedup * (1 + spread)
    return Verdict("correct", "done", timing=Timing(1 / speedup, 1.0, speedup, 8, speedup_low=low, speedup_high=high))


def sample(number: int = 0, source: str = "cudallm-sft", verdict: Verdict | None = None, **changes: Any) -> Sample:
    pair = pair_of(number)
    made = Sample(
        problem=pair.check_problem.source,
        kernel=pair.kernel.source,
        name=pair.kernel.name,
        source=source,
        origin=f"row {number}",
        licence="Apache-2.0",
        verdict=verdict or timed(3.0),
    )
    return replace(made, **changes)


def out_by(
    *samples: Sample, structural: tuple[Sample, ...] = (), index: Index | None = None, **chosen: Any
) -> list[str]:
    """The rules that removed something, in order."""
    settings = CurationSettings(**chosen)
    curation = curate(candidates(samples, structural, settings), settings, index)
    return [one.rule for one in curation.removed]


def test_what_is_right_and_fast_stays() -> None:
    assert (
        out_by(sample(0), sample(1), sample(2, "concur", timed(0.4)), structural=(sample(3, "own", timed(1.2)),)) == []
    )


@pytest.mark.parametrize(
    ("rule", "broken"),
    [
        ("incomplete", {"kernel": ""}),
        ("incomplete", {"problem": ""}),
        ("unmeasured", {"verdict": Verdict("infra_error", "infra")}),
        ("unsupported", {"verdict": Verdict("unsupported", "compile")}),
        ("deceptive", {"verdict": Verdict("deceptive", "run", deceptions=("decoy",))}),
        ("incorrect", {"verdict": Verdict("wrong", "compare")}),
        ("incorrect", {"verdict": Verdict("timeout", "run")}),
        ("lowers_precision", {"verdict": replace(timed(3.0), labels=("precision_downgrade:float16",))}),
        ("untimed", {"verdict": Verdict("correct", "done", no_timing="not asked for")}),
        ("too_slow", {"verdict": timed(1.9)}),
        ("too_slow", {"verdict": timed(2.0)}),
    ],
)
def test_each_rule_keeps_out_what_it_says(rule: str, broken: dict[str, Any]) -> None:
    assert out_by(sample(0), sample(1, **broken)) == [rule]


def test_a_sample_without_a_verdict_is_unmeasured() -> None:
    assert out_by(replace(sample(0), verdict=None)) == ["unmeasured"]


def test_the_base_needs_no_speed_and_no_timing() -> None:
    untimed = Verdict("correct", "done", no_timing="emulated")
    assert out_by(sample(0, "concur", timed(0.5)), sample(1, "concur", untimed)) == []
    assert out_by(sample(0, "concur", timed(0.5)), base=("other",)) == ["too_slow"]


def test_the_thresholds_of_table_4_nest() -> None:
    found = [sample(n, verdict=timed(1.0 + n / 10)) for n in range(30)]
    kept = [30 - len(out_by(*found, min_speedup=threshold)) for threshold in (1.5, 2.0, 2.5)]
    assert kept[0] > kept[1] > kept[2] > 0


def test_confident_asks_for_the_whole_interval() -> None:
    wide = sample(0, verdict=timed(2.1, spread=0.2))
    assert out_by(wide) == []
    assert out_by(wide, confident=True) == ["too_slow"]


def test_a_structural_sample_needs_a_confirmed_speedup() -> None:
    assert out_by(structural=(sample(0, "own", timed(1.1, spread=0.2)),)) == ["unconfirmed"]
    assert out_by(structural=(sample(0, "own", timed(1.1, spread=0.02)),)) == []


def test_of_exact_duplicates_the_base_one_stays() -> None:
    fast, base = sample(0, verdict=timed(9.0)), sample(0, "concur", timed(1.1), reasoning="Long. " * 9)
    spaced = replace(fast, kernel=fast.kernel.replace("\n\n", "\n\n\n"), origin="elsewhere")
    curation = curate(candidates([fast, spaced, base], [], CurationSettings()), CurationSettings())
    assert [one.sample.source for one in curation.kept] == ["concur"]
    assert [one.rule for one in curation.removed] == ["exact_duplicate"] * 2


def test_of_near_duplicates_the_faster_stays() -> None:
    slower = sample(0, verdict=timed(2.5))
    renamed = replace(
        slower,
        kernel=slower.kernel.replace("_kernel", "_entry").replace("__global__", "// the same\n__global__"),
        problem=f"# a copy\n{slower.problem}",
        verdict=timed(2.6),
        origin="copied",
    )
    assert renamed.kernel != slower.kernel
    curation = curate(candidates([slower, renamed, sample(1)], [], CurationSettings()), CurationSettings())
    assert {one.sample.origin for one in curation.kept} == {"copied", "row 1"}
    assert [one.rule for one in curation.removed] == ["near_duplicate"]


def test_another_kernel_for_the_same_problem_is_no_duplicate() -> None:
    assert out_by(sample(0), replace(sample(1), problem=sample(0).problem)) == []


def test_concise_keeps_the_fast_answer_with_the_shortest_reasoning() -> None:
    answers = [
        replace(sample(n, "concur", timed(speed)), problem=sample(0).problem, reasoning="why " * words)
        for n, (speed, words) in enumerate([(3.0, 50), (1.5, 20), (0.7, 5), (4.0, 90)])
    ]
    everything = curate(candidates(answers, [], CurationSettings()), CurationSettings())
    assert len(everything.kept) == 4
    concise = CurationSettings(concise=True)
    curation = curate(candidates([*answers, sample(9)], [], concise), concise)
    assert {one.sample.origin for one in curation.kept} == {"row 1", "row 9"}
    assert Counter(one.rule for one in curation.removed) == {"not_concise": 3}
    assert any("not fast" in one.why for one in curation.removed)


def test_a_benchmarks_problem_is_left_out() -> None:
    theirs = (
        sample(4)
        .problem.replace("forward(self, ", "forward(self,  ")
        .replace("import torch\n", "import torch  # ours\n", 1)
    )
    assert out_by(sample(4), sample(5), index=Index([Problem(theirs, "7_Theirs")])) == ["in_benchmark"]


# -- accounts ----------------------------------------------------------------------------------------------------------

VERDICTS = st.sampled_from(
    [
        None,
        timed(0.8),
        timed(1.7),
        timed(2.4),
        timed(5.0),
        Verdict("wrong", "compare"),
        Verdict("deceptive", "run", deceptions=("never_invoked",)),
        Verdict("infra_error", "infra"),
        Verdict("correct", "done", no_timing="busy"),
    ]
)
GIVEN = st.builds(
    lambda number, source, verdict, drop, row: replace(
        sample(number, source), verdict=verdict, origin=f"row {row}", **({drop: ""} if drop else {})
    ),
    st.integers(0, 5),
    st.sampled_from(["concur", "cudallm-sft", "own", ""]),
    VERDICTS,
    st.sampled_from(["", "", "", "kernel", "problem"]),
    st.integers(0, 99),
)
CHOSEN = st.builds(
    CurationSettings, min_speedup=st.sampled_from([1.5, 2.0, 2.5]), confident=st.booleans(), concise=st.booleans()
)


@settings(max_examples=60)
@given(st.lists(GIVEN, max_size=14), st.lists(GIVEN, max_size=4), CHOSEN, st.randoms(use_true_random=False))
def test_the_report_adds_up_whatever_comes_in(measured, structural, chosen, rng) -> None:
    given_all = candidates(measured, structural, chosen)
    curation = curate(given_all, chosen)
    report = report_on(curation)
    assert (
        report["rows_in"] == len(given_all) == report["kept"] + sum(one["rows"] for one in report["removed"].values())
    )
    assert report["kept"] == sum(report["parts"].values()) == sum(report["licences"].values())
    assert sum(one["in"] for one in report["sources"].values()) == report["rows_in"]
    assert sum(one["kept"] for one in report["sources"].values()) == report["kept"]
    assert all(one["rows"] == sum(one["by_source"].values()) for one in report["removed"].values())
    accounted = [*curation.kept, *(one.candidate for one in curation.removed)]
    assert Counter(map(key, accounted)) == Counter(map(key, given_all))
    shuffled = list(given_all)
    rng.shuffle(shuffled)
    assert report_on(curate(shuffled, chosen)) == report
    again = curate(curation.kept, chosen)
    assert again.kept == curation.kept and not again.removed
    assert all(one.sample.verdict and one.sample.verdict.correct for one in curation.kept)


def key(candidate: Candidate) -> tuple[str, ...]:
    return (
        candidate.part,
        candidate.sample.id,
        candidate.sample.source,
        candidate.sample.origin,
        str(candidate.sample.verdict),
    )


def test_every_rule_is_in_the_report() -> None:
    assert list(report_on(curate([], CurationSettings()))["removed"]) == list(rules(None))


@given(st.lists(st.floats(0.01, 50), max_size=30))
def test_histogram_buckets_hold_every_value(values: list[float]) -> None:
    found = histogram(values)
    assert sum(found["buckets"].values()) == len(values)
    assert found["buckets"][BUCKETS[0]] == sum(value < 1 for value in values)
    assert found["buckets"][BUCKETS[-1]] == sum(value >= 3 for value in values)


# -- files -------------------------------------------------------------------------------------------------------------


def built(out: Path, *samples: Sample, **chosen: Any) -> dict[str, Any]:
    settings = CurationSettings(**chosen)
    curation = curate(candidates(samples, [], settings), settings)
    report = report_on(curation)
    write(curation, report, out, "dice data cuke measured -o cuke")
    return report


def test_the_files_are_what_training_and_the_paper_read(tmp_path: Path) -> None:
    said = sample(
        0, "concur", prompt="Please.", response="I think.\n```python\nclass ModelNew: ...\n```", reasoning="I think."
    )
    built(tmp_path, said, sample(1), sample(2, verdict=timed(1.0)))
    rows = pq.read_table(tmp_path / "data" / "train.parquet").to_pylist()
    assert [(row["part"], row["source"]) for row in rows] == [("base", "concur"), ("fast", "cudallm-sft")]
    assert (rows[0]["prompt"], rows[0]["response"]) == ("Please.", said.response)
    assert sample(1).problem.strip() in rows[1]["prompt"]
    kernel = extract_kernel(rows[1]["response"])
    assert kernel and kernel.source.strip() == sample(1).kernel.strip()
    pairs = read_pairs(tmp_path / "data")
    assert [(pair.messages[0]["content"], pair.response) for pair in pairs] == [
        (row["prompt"], row["response"]) for row in rows
    ]
    released = json.loads((tmp_path / "CuKe_dataset.json").read_text())
    assert released == [{"prompt": row["prompt"], "response": row["response"]} for row in rows]
    removed = pq.read_table(tmp_path / "removed.parquet").to_pylist()
    assert [(row["rule"], row["why"]) for row in removed] == [("too_slow", "1.00x")]


def test_the_card_has_a_header_that_hubs_read(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    built(tmp_path / "one", sample(0), sample(1, "concur"))
    built(tmp_path / "two", sample(0), sample(1, "concur", licence=""))
    for name, licence in (("one", "apache-2.0"), ("two", "other")):
        header, _, body = (tmp_path / name / "README.md").read_text()[4:].partition("\n---\n")
        found = yaml.safe_load(header)
        assert found["license"] == licence
        path = found["configs"][0]["data_files"][0]["path"]
        assert (tmp_path / name / path).is_file()
        assert "| concur | 1 | 1 |" in body
    assert "not free to use" in body


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    samples = [sample(n, "concur" if n % 3 else "own", timed(1 + n / 9)) for n in range(20)]
    built(tmp_path / "one", *samples)
    built(tmp_path / "two", *reversed(samples))
    names = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file())
    assert len(names) == 5
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


# -- the base as it is -------------------------------------------------------------------------------------------------


def test_the_base_is_kept_as_it_is() -> None:
    """Nothing is asked of it: not verified, wrong, repeated and unmeasured rows stay, and others yield to them."""
    wrong = sample(0, "concur", Verdict("wrong", "compare"))
    unverified = replace(sample(1, "concur"), verdict=None)
    lost = sample(2, "concur", Verdict("infra_error", "infra"))
    lie = sample(3, "concur", Verdict("deceptive", "run", deceptions=("decoy",)))
    twin = replace(wrong, origin="again")
    bare = Sample(prompt="Write it.", response="```python\nclass ModelNew: ...\n```", source="concur", origin="b")
    empty = Sample(prompt="Write it.", source="concur", origin="e")
    base = [wrong, unverified, lost, lie, twin, bare, empty]
    copy = replace(unverified, source="cudallm-sft", verdict=timed(9.0))
    near = replace(copy, kernel=copy.kernel + "\n# the same\n", verdict=timed(8.0))
    settings = CurationSettings(keep_base=True)
    curation = curate(candidates([*base, copy, near, sample(4), sample(5, verdict=timed(1.0))], [], settings), settings)
    assert Counter((one.rule, one.candidate.sample.source) for one in curation.removed) == {
        ("incomplete", "concur"): 1,
        ("exact_duplicate", "cudallm-sft"): 1,
        ("near_duplicate", "cudallm-sft"): 1,
        ("too_slow", "cudallm-sft"): 1,
    }
    report: Any = report_on(curation)
    assert report["parts"] == {"base": 6, "structural": 0, "fast": 1}
    assert report["checked"] == {"not verified": 3, "wrong": 2, "correct": 1, "deceptive": 1}


def test_a_benchmarks_problem_is_kept_out_of_the_base_too() -> None:
    index = Index([pair_of(0).check_problem])
    assert out_by(replace(sample(0, "concur"), verdict=None), index=index, keep_base=True) == ["in_benchmark"]


def test_what_was_kept_unverified_is_labelled(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    write_samples(folder / "a.parquet", [replace(sample(0, "concur"), verdict=None), sample(1, "concur"), sample(2)])
    assert cli.main(["data", "cuke", str(folder), "-o", str(tmp_path / "kept"), "--keep-base"]) == 0
    rows = pq.read_table(tmp_path / "kept" / "data" / "train.parquet").to_pylist()
    assert sorted((row["part"], row["checked"]) for row in rows) == [
        ("base", "correct"), ("base", "not verified"), ("fast", "correct"),
    ]  # fmt: skip
    card = (tmp_path / "kept" / "README.md").read_text()
    assert "1 samples are not known to be correct" in card and "Each of the 2 that are `correct`" in card
    assert "--base concur --min-speedup 2 --keep-base" in card
    assert cli.main(["data", "cuke", str(folder), "-o", str(tmp_path / "strict")]) == 0
    card = (tmp_path / "strict" / "README.md").read_text()
    assert "Each kernel was compiled" in card and "not known" not in card


# -- the command -------------------------------------------------------------------------------------------------------


def test_dry_run_prints_the_report_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_samples(tmp_path / "in" / "a.parquet", [sample(0), sample(1, verdict=timed(1.2))])
    out = tmp_path / "out"
    assert cli.main(["data", "cuke", str(tmp_path / "in"), "-o", str(out), "--dry-run", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["rows_in"], report["kept"], report["removed"]["too_slow"]["rows"]) == (2, 1, 1)
    assert not out.exists()
    assert cli.main(["data", "cuke", str(tmp_path / "in"), "-o", str(out), "--min-speedup", "1.1"]) == 0
    assert pq.read_table(out / "data" / "train.parquet").num_rows == 2
    assert json.loads((out / "report.json").read_text())["settings"]["min_speedup"] == 1.1


def test_a_dry_run_of_the_chain_says_what_it_would_fetch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("nothing is fetched"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert cli.main(["data", "cuke", "--dry-run", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["source"] for row in rows} == {"concur", "cudallm-sft", "cudallm-rl"}
    assert {row["bytes"] for row in rows} == {None}
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_, **__: str(Path(__file__)))
    assert cli.main(["data", "cuke", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "sft_cuda_llm_r1.parquet" in said and "Apache-2.0" in said and "not stated" in said
    assert "fetched before" in said and "Nothing was fetched" in said


def test_an_empty_set_is_no_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_samples(tmp_path / "in" / "a.parquet", [sample(1, verdict=timed(1.2))])
    assert cli.main(["data", "cuke", str(tmp_path / "in"), "-o", str(tmp_path / "out"), "--base", "--json"]) == 1
    said = capsys.readouterr()
    assert json.loads(said.out)["kept"] == 0 and "no sample was kept" in said.err
    assert (tmp_path / "out" / "removed.parquet").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "no file or folder nowhere"),
        ([], "Give at least one MEASURED"),
        (["empty"], "--out DIR"),
        (["empty", "-o", "x"], "holds no .parquet"),
        (["empty", "-o", "x", "--min-speedup", "0"], "must be positive"),
        (["empty", "-o", "x", "--keep-base", "--concise"], "none to choose among"),
        (["empty", "-o", "x", "--near-duplicate", "2"], "at most 1"),
        (["empty", "-o", "x", "--benchmarks", "gone"], "no folder gone"),
    ],
)
def test_bad_input_is_said_in_a_sentence(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    if "--benchmarks" in arguments:
        write_samples(tmp_path / "empty" / "a.parquet", [sample(0)])
    assert cli.main(["data", "cuke", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
