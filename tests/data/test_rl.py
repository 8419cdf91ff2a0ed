"""The two RL sets: what is in them, in which order, and what is said of the rest."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dice import cli, synth
from dice.data.decontaminate import Index
from dice.data.rl.build import generation, infilling, unusable
from dice.data.rl.ranking import LEVELS, Ranker
from dice.data.rl.write import GENERATION, INFILLING, write
from dice.data.sample import Sample, write_samples
from dice.verdict import Verdict
from dice.verify.audit.findings import Audit, Finding

pytestmark = pytest.mark.usefixtures("lasting_zygote")  # where verifiers are started

CORRECT = Verdict("correct", "done")
pair_of = functools.cache(functools.partial(synth.generate, 31))
DEGENERATE = """import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return x.unsqueeze(0)


def get_inputs():
    return [torch.randn(4, 4)]


def get_init_inputs():
    return []
"""


def sample(number: int, **changes: Any) -> Sample:
    pair = pair_of(number)
    level = LEVELS[number % 3]
    made = Sample(
        pair.check_problem.source,
        pair.kernel.source,
        source="own",
        origin=f"row {number}",
        difficulty=level,
        verdict=CORRECT,
    )
    return replace(made, **changes)


def passed(samples: Sequence[Sample]) -> list[Audit]:
    return [Audit(one.name, one.as_problem().id) for one in samples]


def ranker() -> Ranker:
    """Longer is harder."""
    return Ranker(lambda found: [SimpleNamespace(level="model", score=float(len(one.source))) for one in found])


def test_the_parts_are_the_kernel_and_go_from_easy_to_hard() -> None:
    rows, tally = infilling([sample(n) for n in range(30)], 12, ranker())
    assert len(rows) == tally.kept == 12
    for row in rows:
        assert row.parts.prefix + row.parts.core + row.parts.suffix == row.ranked.sample.kernel
        assert "__global__" in row.parts.core and "ModelNew" in row.parts.suffix
    numbers = [row.ranked.number for row in rows]
    assert numbers == sorted(numbers) and len(set(numbers)) == 3


def test_what_is_not_verified_or_not_to_be_split_is_counted() -> None:
    spread = sample(1).kernel.replace('cpp_source = "', 'print(1)\nmore = "__global__ void f() {}"\ncpp_source = "')
    given_samples = [
        sample(0),
        sample(1, kernel=spread),
        sample(2, verdict=None),
        sample(3, verdict=Verdict("infra_error", "infra")),
        sample(4, verdict=Verdict("deceptive", "run", deceptions=("decoy",))),
        sample(5, kernel=""),
        sample(6, problem=""),
        sample(0, kernel=sample(0).kernel + "\n# again\n"),
    ]
    rows, tally = infilling(given_samples, 99, ranker())
    assert len(rows) == 1
    assert dict(tally.dropped) == {
        "cannot be split: the CUDA source is spread over several places with other code between them": 1,
        "not measured": 2,
        "not correct: deceptive": 1,
        "no kernel": 1,
        "no problem": 1,
        "repeats another problem": 1,
    }


def test_the_published_split_is_taken_where_there_is_one() -> None:
    kernel = "import torch\nsource = 'no kernel of its own'\nclass ModelNew: ...\n"
    begin, end = kernel.index("source"), kernel.index("\nclass")
    rows, _ = infilling([sample(0, kernel=kernel, meta={"core": [begin, end]})], 1, ranker())
    assert rows[0].parts.core == "source = 'no kernel of its own'"
    assert "".join((rows[0].parts.prefix, rows[0].parts.core, rows[0].parts.suffix)) == kernel


def test_at_least_99_of_100_synthetic_pairs_split() -> None:
    pairs = {pair.kernel.source: pair for pair in (synth.generate(41, index) for index in range(300))}
    samples = [Sample(f"{n}", pair.kernel.source, verdict=CORRECT) for n, pair in enumerate(pairs.values())]
    _, tally = infilling(samples, 0, ranker())
    unsplit = sum(count for reason, count in tally.dropped.items() if reason.startswith("cannot be split"))
    assert unsplit <= 0.01 * len(pairs) and tally.dropped.total() == len(pairs)


@pytest.mark.parametrize(
    ("finding", "reason"),
    [
        (Finding("input_free", "reject", "."), "audit: input_free"),
        (Finding("broken", "reject", "."), "audit: broken"),
        (Finding("nondeterministic", "reject", "."), "audit: nondeterministic"),
        (Finding("nondeterministic", "note", "rounding"), ""),
        (Finding("random_forward", "warn", "."), "audit: random_forward"),
        (Finding("too_large", "warn", "."), "audit: too_large"),
        (Finding("too_slow", "warn", "."), "audit: too_slow"),
        (Finding("launch_bound", "warn", "."), ""),
    ],
)
def test_what_the_audit_keeps_out(finding: Finding, reason: str) -> None:
    assert unusable(Audit("p", "id", findings=(Finding("shrunk", "note", "."), finding)))[0] == reason


def test_no_more_is_audited_than_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dice.data.rl.build.AUDITED_AT_ONCE", 5)
    asked: list[Sample] = []

    def auditor(samples: Sequence[Sample]) -> list[Audit]:
        asked.extend(samples)
        rejected = (Finding("zeros", "reject", "."),)
        return [replace(one, findings=rejected if n == 0 else ()) for n, one in enumerate(passed(samples))]

    rows, tally = generation([sample(n) for n in range(40)], 11, ranker(), auditor)
    assert len(rows) == 11 and len(asked) == 15
    assert tally.dropped["audit: zeros"] == 3
    assert tally.rows_in == tally.kept + tally.dropped.total()


def test_benchmarks_and_near_repeats_stay_out() -> None:
    renamed = f"# other words\n{sample(0).problem}"
    index = Index([sample(1).as_problem()])
    rows, tally = generation([sample(0), sample(0, problem=renamed), sample(1)], 9, ranker(), passed, index)
    assert len(rows) == 1
    assert dict(tally.dropped) == {"in a benchmark": 1, "nearly repeats another problem": 1}


def test_the_label_of_a_sample_comes_before_the_labeller() -> None:
    asked = ranker()
    found = asked.rank([sample(0, difficulty=""), sample(2, difficulty="single"), sample(1, difficulty="")])
    assert [one.level for one in found] == ["single", "model", "model"]
    assert found[1].score <= found[2].score
    assert asked.counts == {"stated": 1, "labelled": 2}


GIVEN = st.builds(
    lambda number, verdict, level, drop: sample(
        number, verdict=verdict, difficulty=level, **({drop: ""} if drop else {})
    ),
    st.integers(0, 12),
    st.sampled_from([CORRECT, CORRECT, None, Verdict("wrong", "compare")]),
    st.sampled_from(["", *LEVELS]),
    st.sampled_from(["", "", "", "kernel", "problem"]),
)


@settings(max_examples=40)
@given(st.lists(GIVEN, max_size=16), st.integers(0, 9), st.randoms(use_true_random=False))
def test_the_report_adds_up_and_order_does_not_matter(samples, count, rng) -> None:
    shuffled = list(samples)
    rng.shuffle(shuffled)
    cores, split = infilling(samples, count, ranker())
    problems, audited = generation(samples, count, ranker(), passed)
    for tally, rows in ((split, cores), (audited, problems)):
        assert tally.rows_in == len(samples) == tally.kept + tally.dropped.total()
        assert tally.kept == len(rows) <= count
    keys = [one.key for one in problems]
    assert keys == sorted(keys)
    again, _ = infilling(shuffled, count, ranker())
    assert [one.ranked.sample.id for one in again] == [one.ranked.sample.id for one in cores]


def test_the_files_have_the_released_form(tmp_path: Path) -> None:
    cores, _ = infilling([sample(n) for n in range(6)], 4, ranker())
    problems, _ = generation([sample(n) for n in range(6)], 5, ranker(), passed)
    for name in ("one", "two"):
        write(cores, problems, {}, tmp_path / name)
    rows = json.loads((tmp_path / "one" / "kernel_infilling.json").read_text())
    assert [tuple(row) for row in rows] == [INFILLING] * 4 and [row["id"] for row in rows] == [0, 1, 2, 3]
    assert all(row["prefix"] + row["middle"] + row["suffix"] == row["cuda_code"] for row in rows)
    rows = json.loads((tmp_path / "one" / "kernel_generation.json").read_text())
    assert [tuple(row) for row in rows] == [GENERATION] * 5
    assert [row["level"] for row in rows] == sorted(row["level"] for row in rows)
    assert {row["cuda_code"] for row in rows} == {""}
    table = pq.read_table(tmp_path / "one" / "kernel_generation.parquet").to_pylist()
    assert [row["pytorch_code"] for row in table] == [row["pytorch_code"] for row in rows]
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


def test_the_command_audits_for_itself_and_takes_given_audits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = Sample(DEGENERATE, source="own", origin="empty")
    write_samples(tmp_path / "in.parquet", [sample(0), empty])
    known = {"audits": [Audit("a", sample(0).as_problem().id).to_json()]}
    (tmp_path / "audit.json").write_text(json.dumps(known))
    arguments = ["data", "rl", str(tmp_path / "in.parquet"), "-o", str(tmp_path / "out"), "--backend", "emulated"]
    assert cli.main([*arguments, "--audit", str(tmp_path / "audit.json"), "--workers", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["audits"] == {"given": 1, "run": 1}
    assert report["generation"]["removed"]["audit: no_work"]["rows"] == 1
    assert report["infilling"]["kept"] == report["generation"]["kept"] == 1
    assert (tmp_path / "out" / "kernel_infilling.json").exists()
    (tmp_path / "audit.json").write_text("[]")
    assert cli.main([*arguments, "--audit", str(tmp_path / "audit.json")]) == 2
    assert "is no report of an audit" in capsys.readouterr().err
