"""Every row of the paper's Tables 1, 2, 3 and 10, by the command, with a stand-in of its family, to one report."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from stand_ins import write_stand_in

from dice.cli import main
from dice.evaluate.paper_rows import NATIVE, ROWS, PaperRow, resolve
from dice.evaluate.run_folder import RunFolder
from tests.conftest import ROOT, skip_without
from tests.endpoint.server import Server, serving

skip_without("transformers", "several rows are run by transformers")

pytestmark = [pytest.mark.usefixtures("one_verifier"), pytest.mark.xdist_group("rows")]
CASES = ROOT / "tests" / "cases"
KERNEL = (CASES / "right_relu.py").read_text()
RUN_BY_TRANSFORMERS = {"Phi-4-Mini-Reasoning": "phi", "Gemma-2-It": "gemma", "Deepseek-Coder-Instruct-1.3B": "deepseek"}
TOKENS = 8
# Of those that are run in the same way with the same settings, as sizes of a model are, the first; the others are slow.
WAYS = [(resolve(row)[0], row.family or RUN_BY_TRANSFORMERS.get(row.name), str(row.settings)) for row in ROWS]
FIRST = [row for place, row in enumerate(ROWS) if WAYS[place] not in WAYS[:place]]


class Bench:
    """One problem, one server, one folder of answers, and a checkpoint of each layout that has been asked for."""

    def __init__(self, folder: Path, server: Server):
        self.folder, self.server = folder, server
        (folder / "problems" / "level1").mkdir(parents=True)
        shutil.copy(CASES / "problems" / "relu.py", folder / "problems" / "level1" / "19_ReLU.py")
        (folder / "answers").mkdir()
        (folder / "answers" / "level_1_problem_19_sample_0_kernel.py").write_text(KERNEL)

    def source_of(self, row: PaperRow) -> list[str]:
        """The flags that say where the row's answers come from here."""
        kind, _ = resolve(row)
        if kind == "endpoint":
            return ["--base-url", self.server.url]
        if kind == "answers":
            return ["--answers", str(self.folder / "answers")]
        layout = row.family if row.family in NATIVE else RUN_BY_TRANSFORMERS[row.name]
        checkpoint = self.folder / "models" / layout
        if not checkpoint.exists():
            write_stand_in(checkpoint, layout)
        return ["--model", str(checkpoint), "--max-new-tokens", str(TOKENS)]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with serving(answer=lambda prompt: f"```python\n{KERNEL}```") as server:
        yield Bench(tmp_path_factory.mktemp("rows"), server)


def evaluate(bench: Bench, row: PaperRow) -> RunFolder:
    out = bench.folder / "runs" / row.name
    given = ["--row", row.name, "--problems", str(bench.folder / "problems"), "--out", str(out), *bench.source_of(row)]
    assert main(["eval", *given, "--prompt", "compact", "--backend", "emulated", "--trials", "1", "--json"]) == 0
    return RunFolder(out)


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=row.name, marks=() if row in FIRST else pytest.mark.slow) for row in ROWS]
)
def test_a_row_is_run(bench: Bench, row: PaperRow, capsys: pytest.CaptureFixture[str]) -> None:
    run = evaluate(bench, row)
    assert json.loads(capsys.readouterr().out)["judged"] == 1
    config, (generation,), (judgement,) = run.config, run.generations(), run.judgements("dice")
    kind, _ = resolve(row)
    assert (config["row"], config["kind"]) == (row.name, kind)
    if kind in ("endpoint", "answers"):
        assert generation.kernel == KERNEL and judgement.verdict.correct
        return
    settings = {key: value for key, value in row.settings.items() if key != "max_new_tokens"}
    assert config["settings"] == {**settings, "max_new_tokens": TOKENS}
    assert 1 <= generation.tokens <= TOKENS and not generation.error and judgement.verdict.outcome == "no_kernel"
    assert kind == "transformers" or generation.forwards >= generation.tokens / 4


@pytest.mark.parametrize("rows", [FIRST, pytest.param(list(ROWS), marks=pytest.mark.slow)], ids=["first", "all"])
def test_the_report_shows_all_rows_beside_what_was_published(bench: Bench, rows: list[PaperRow]) -> None:
    runs = [bench.folder / "runs" / row.name for row in rows]
    for row, folder in zip(rows, runs, strict=True):
        if not (folder / "run.json").exists():  # this test alone
            evaluate(bench, row)
    out = bench.folder / "report"
    assert main(["report", *map(str, runs), "--output", str(out)]) == 0
    report = json.loads((out / "report.json").read_text())
    assert Counter(run["summaries"]["dice"]["row"] for run in report["runs"]) == Counter(row.name for row in rows)
    page, text = (out / "report.html").read_text(), (out / "report.md").read_text()
    for row in rows:
        assert row.name in page and (f"{row.name} (published)" in text) == (row.table in (1, 2, 3))
    assert page.count("<tr data-index=") == len(rows)
