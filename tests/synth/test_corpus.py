"""Building the corpus on disk: content, dropping, resuming after a kill, refusing to mix corpora."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from dice import prompts, synth
from dice.data.pairs import read_pairs
from dice.errors import MachineError, UserError
from dice.kernel import Kernel
from dice.problem import Problem
from dice.synth import corpus, drafting
from dice.verdict import Verdict
from tests.conftest import PATIENCE_S

pytestmark = pytest.mark.usefixtures("lasting_zygote")  # where verifiers are started

SMALL: dict[str, Any] = {"pairs": 60, "seed": 3, "heldout": 26, "control": 10, "verify": False, "shard_pairs": 20}


def _rows(out: Path) -> list[dict[str, Any]]:
    return [row for path in sorted((out / "train").glob("*.parquet")) for row in pq.read_table(path).to_pylist()]


def test_the_folder_holds_what_training_reads(tmp_path: Path) -> None:
    report = corpus.build(tmp_path, **SMALL)
    rows = _rows(tmp_path)
    assert tuple(rows[0]) == corpus.COLUMNS
    assert [row["index"] for row in rows] == sorted(row["index"] for row in rows)
    assert report["train"]["pairs"] == len(rows) == 60 - sum(report["train"]["dropped"].values())
    assert json.loads((tmp_path / "report.json").read_text()) == report
    first = synth.generate(3, rows[0]["index"])
    written = [line for line in first.problem.source.split("\n") if line.strip()]  # blank lines are varied
    assert [line for line in rows[0]["problem"].split("\n") if line.strip()] == written
    assert rows[0]["kernel"] == first.kernel.source
    pairs = read_pairs(tmp_path / "train")
    assert pairs[0].messages[0]["content"] == rows[0]["prompt"] and pairs[0].response == rows[0]["response"]


def test_held_out_and_control_files(tmp_path: Path) -> None:
    corpus.build(tmp_path, **SMALL)
    trained = {row["composition"] for row in _rows(tmp_path)}
    heldout = pq.read_table(tmp_path / "heldout.parquet").to_pylist()
    control = pq.read_table(tmp_path / "control.parquet").to_pylist()
    assert len(heldout) == 26 and {row["heldout_by"] for row in heldout} == {"composition", "operator"}
    assert not trained & {row["composition"] for row in heldout}
    assert control and {row["composition"] for row in control} <= trained


def test_resuming_leaves_finished_shards_alone(tmp_path: Path) -> None:
    corpus.build(tmp_path, **SMALL)
    shards = sorted((tmp_path / "train").glob("*.parquet"))
    before = {path: path.stat().st_mtime_ns for path in shards}
    content = shards[1].read_bytes()
    shards[1].unlink()
    corpus.build(tmp_path, **SMALL)
    after = {path: path.stat().st_mtime_ns for path in shards}
    assert [after[path] == before[path] for path in shards] == [True, False, True]
    same = pq.read_table(shards[1])
    shards[1].write_bytes(content)
    assert same.equals(pq.read_table(shards[1]))


def test_a_killed_run_resumes_to_the_same_corpus(tmp_path: Path) -> None:
    """kill -9 in the middle; no half-written shard is taken for a whole one."""
    script = (
        "import sys, time; from pathlib import Path; from dice.synth import corpus\n"
        f"corpus.build(Path(sys.argv[1]), progress=lambda done, total, what: time.sleep(0.05), **{SMALL!r})"
    )
    out = tmp_path / "killed"
    process = subprocess.Popen([sys.executable, "-c", script, str(out)], start_new_session=True)
    deadline = time.monotonic() + PATIENCE_S
    while not list(out.glob("train/*.parquet")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert list(out.glob("train/*.parquet")), "the run ended before its first shard"
    corpus.build(out, **SMALL)
    corpus.build(tmp_path / "whole", **SMALL)
    assert _rows(out) == _rows(tmp_path / "whole")


def test_another_request_is_refused(tmp_path: Path) -> None:
    corpus.build(tmp_path, **SMALL)
    with pytest.raises(UserError, match="another seed"):
        corpus.build(tmp_path, **(SMALL | {"seed": 4}))
    with pytest.raises(UserError, match="already holds"):
        corpus.build(tmp_path, resume=False, **SMALL)


def test_benchmark_problems_are_dropped_and_counted(tmp_path: Path) -> None:
    benchmark = tmp_path / "benchmark"
    benchmark.mkdir()
    planted = synth.generate(3, 7).problem.source
    (benchmark / "1_planted.py").write_text(planted)
    report = corpus.build(tmp_path / "out", decontaminate=[benchmark], **SMALL)
    assert report["train"]["dropped"]["is in a benchmark"] >= 1
    match = report["train"]["in_benchmarks"][0]
    assert (match["benchmark"], match["kind"]) == ("1_planted", "same program")
    assert planted not in {row["problem"] for row in _rows(tmp_path / "out")}


class _Judge:
    """Stands in for the verifier: says what it is told for the n-th pair, last pair first."""

    def __init__(self, outcomes: dict[int, str], otherwise: str = "correct") -> None:
        self.outcomes = outcomes
        self.otherwise = otherwise

    def __enter__(self) -> _Judge:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def verify_many(self, pairs: Iterable[Any], workers: int) -> Iterator[tuple[int, Verdict]]:
        for index in reversed(range(len(list(pairs)))):
            outcome = self.outcomes.get(index, self.otherwise)
            yield index, Verdict(outcome, "done", "told so")  # type: ignore[arg-type]


def test_a_corpus_kept_clean_of_other_benchmarks_is_another_corpus(tmp_path: Path) -> None:
    benchmark = tmp_path / "benchmark"
    benchmark.mkdir()
    (benchmark / "1_planted.py").write_text(synth.generate(3, 7).problem.source)
    corpus.build(tmp_path / "out", **SMALL)
    with pytest.raises(UserError, match="another benchmarks"):
        corpus.build(tmp_path / "out", decontaminate=[benchmark], **SMALL)


def test_failures_are_dropped_with_their_reasons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "_verifier", lambda backend: _Judge({0: "wrong", 5: "compile_error"}))
    report = corpus.build(tmp_path, **(SMALL | {"verify": True, "pairs": 20}))
    rows = _rows(tmp_path)
    assert not {0, 5} & {row["index"] for row in rows}
    assert {row["verdict"] for row in rows} == {"correct"}
    reasons = report["train"]["dropped"]
    assert reasons[f"wrong: {synth.generate(3, 0).family}"] == 1
    assert reasons[f"compile_error: {synth.generate(3, 5).family}"] == 1
    assert [row["index"] for row in rows] == sorted(row["index"] for row in rows)


def test_a_machine_that_cannot_verify_is_not_a_corpus_of_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "_verifier", lambda backend: _Judge({}, "infra_error"))
    with pytest.raises(MachineError, match="told so"):
        corpus.build(tmp_path, **(SMALL | {"verify": True}))
    assert not _rows(tmp_path)


def test_a_verified_corpus(tmp_path: Path) -> None:
    """The real verifier, end to end, on a handful of pairs."""
    verify = pytest.importorskip("dice.verify")
    try:
        verify.resolve_backend("emulated")
    except verify.BackendUnavailable as reason:
        pytest.skip(str(reason))
    small = SMALL | {"verify": True, "pairs": 4, "heldout": 0, "control": 0}
    report = corpus.build(tmp_path, backend="emulated", workers=2, **small)
    assert report["train"]["pairs"] == 4


def test_any_number_of_workers_writes_the_same_bytes(tmp_path: Path) -> None:
    corpus.build(tmp_path / "one", **SMALL, workers=1, prose_free=True)
    corpus.build(tmp_path / "two", **SMALL, workers=2, prose_free=True)
    files = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*.*"))
    assert len(files) == 7
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes(), file


def test_a_share_is_written_as_infilling_too(tmp_path: Path) -> None:
    corpus.build(tmp_path, **SMALL, prose_free=True, infill_share=0.5)
    rows = [row for path in sorted((tmp_path / "train").glob("*.parquet")) for row in pq.read_table(path).to_pylist()]
    usual = [row for row in rows if row["prompt"].startswith("Write ModelNew")]
    infilling = [row for row in rows if row not in usual]
    assert len(usual) == 2 * len({row["index"] for row in usual}) and 0 < len(infilling) < len(usual) / 2
    for row in infilling:
        parts = Kernel(row["kernel"]).split()
        assert row["prompt"] == prompts.infill_compact(Problem(row["problem"], row["name"]), parts)
        assert row["response"] == prompts.reply(Kernel(row["kernel"]))
    held_out = pq.read_table(tmp_path / "heldout.parquet").to_pylist()
    assert all(row["prompt"].startswith("Write ModelNew") for row in held_out)


def test_families_and_their_styles_are_counted(tmp_path: Path) -> None:
    report = corpus.build(tmp_path, **SMALL)["train"]
    assert report["families"] == {name: sum(styles.values()) for name, styles in report["family_styles"].items()}
    assert sum(report["styles"].values()) == report["pairs"]


def test_pairs_with_broken_texts_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafting, "fault", lambda pair: "broken" if pair.family == "matmul" else "")
    report = corpus.build(tmp_path, **SMALL)["train"]
    assert report["dropped"]["broken: matmul"] > 0 and "matmul" not in report["families"]


def test_what_shapes_a_row_is_part_of_the_generators_version(tmp_path: Path) -> None:
    package = tmp_path / "dice"
    shutil.copytree(Path(synth.__file__).parent.parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    versions = [corpus.generator_version(package)]
    assert versions == [corpus.generator_version()]
    for shaping in ("synth/layout.py", "synth/prose.py", "synth/drafting.py", "synth/families/conv.py", "prompts.py"):
        with (package / shaping).open("a") as file:
            file.write("# another line\n")
        versions.append(corpus.generator_version(package))
    assert len(set(versions)) == len(versions)
    with (package / "terminal.py").open("a") as file:
        file.write("# another line\n")
    assert corpus.generator_version(package) == versions[-1]
