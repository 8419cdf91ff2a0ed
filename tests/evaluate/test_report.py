"""`dice report`: numbers in every format, figures, single cases, and one sentence for what cannot be reported."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from made_runs import CORRECT, TASKS, TIMING, VERDICTS, WRONG, make_run, make_traced_run, own_tasks
from rich.console import Console

from dice.cli import main
from dice.commands.verdict_view import show_verdict
from dice.evaluate.report import gather
from dice.evaluate.report.printing import latex, markdown, show, tex
from dice.evaluate.report.tables import Table, all_tables
from dice.terminal import Console as DiceConsole

pytestmark = pytest.mark.usefixtures("lasting_zygote")  # where verifiers are started

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def table(path: Path, key: str) -> Table:
    return next(one for one in all_tables(gather([path])) if one.key == key)


def test_the_results_table_has_the_counts_and_the_papers_rows(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    found = table(tmp_path / "run", "results")
    heads = [name for name, _ in found.columns]
    row = dict(zip(heads, found.rows[0], strict=True))
    assert (row["model"], row["protocol"]) == ("made", "dice")
    assert (row["L1 Exec"], row["L2 Exec"], row["all Exec"]) == ("33.3", "0.0", "20.0")
    assert row["L1 fast1/fast2"] == "33.3 / 33.3"
    other = dict(zip(heads, found.rows[1], strict=True))
    assert (other["protocol"], other["all Exec"], other["all fast1/fast2"]) == ("kernelbench", "40.0", "20.0 / 20.0")
    published = {row[0]: row for row in (found.rows[index] for index in found.marked)}
    assert published["DICE-8B (published)"][2:8] == ("47.0", "15.0 / 6.0", "35.0", "19.0 / 1.0", "14.0", "6.0 / 6.0")
    assert not {row[0] for row in found.rows} - set(published) - {"made"}


def test_the_papers_rows_stand_beside_kernelbench_alone(tmp_path: Path) -> None:
    """The very same answers, to problems of other names: nothing is said of KernelBench, and no share is compared."""
    make_run(tmp_path / "own", tasks=own_tasks())
    renamed = [replace(task, key=f"{task.key}_of_mine", name=f"{task.name}_of_mine") for task in TASKS]
    make_run(tmp_path / "renamed", tasks=renamed)
    make_run(tmp_path / "theirs")
    for runs in (["own"], ["renamed"], ["theirs", "own"]):
        report = gather([tmp_path / run for run in runs])
        assert not report.published and not any(one.marked for one in all_tables(report))
        said = "\n".join(map(markdown, all_tables(report)))
        assert "KernelBench" not in said and "published" not in said and "paper's" not in said
    assert "5 of KernelBench's 250 problems" in table(tmp_path / "theirs", "results").note


def test_a_report_starts_with_the_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "run", tasks=own_tasks())
    first = all_tables(gather([tmp_path / "run"]))[0]
    heads = [name for name, _ in first.columns]
    assert [row[0] for row in first.rows] == ["matmul", "my_relu", "softmax", "total", "pool"]
    row = dict(zip(heads, first.rows[0], strict=True))
    assert (row["dice"], row["kernelbench"], row["speed-up"]) == ("correct", "correct", "2.50x")
    assert "does not compile" in dict(zip(heads, first.rows[1], strict=True))["why"]
    assert main(["report", str(tmp_path / "run"), "--format", "markdown"]) == 0
    assert capsys.readouterr().out.startswith("## Answers")


def test_problems_without_levels_are_told_of_none(tmp_path: Path) -> None:
    make_run(tmp_path / "own", tasks=own_tasks())
    tables = {one.key: one for one in all_tables(gather([tmp_path / "own"]))}
    assert "failures_by_level" not in tables
    assert not [name for one in tables.values() for name, _ in one.columns if "level" in name or name.startswith("L")]
    mixed = [*TASKS[:3], *own_tasks()[3:]]
    make_run(tmp_path / "mixed", tasks=mixed)
    tables = {one.key: one for one in all_tables(gather([tmp_path / "mixed"]))}
    assert {row[2] for row in tables["failures_by_level"].rows} == {"none", "1"}


def test_a_model_is_called_by_its_own_name(tmp_path: Path) -> None:
    make_run(tmp_path / "folder_of_mine", model="/home/somebody/training/rl/model", tasks=own_tasks())
    make_run(tmp_path / "row", model="some/weights", row="LLaDA-1.5")
    report = gather([tmp_path / "folder_of_mine"])
    assert report.runs[0].label == "rl/model"
    assert not [one.title for one in all_tables(report) if "folder_of_mine" in markdown(one)]
    assert gather([tmp_path / "row"]).runs[0].label == "LLaDA-1.5"


def test_what_each_protocol_lets_through(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    found = table(tmp_path / "run", "protocols")
    ours = [row for row in found.rows if row[0] == "made"]
    assert [(row[1], row[2], row[7], row[8]) for row in ours] == [
        ("dice", "1", "0", "-"),
        ("kernelbench", "2", "1", "deceptive 1"),
    ]
    llada = [row for row in found.rows if row[0] == "LLaDA-1.5 (published)"]
    assert [row[1] for row in llada] == ["paper", "paper, no robust check"]
    assert [row[4] for row in llada] == ["0.4", "10.4"] and llada[1][-1] == "10.0 points of Exec"


def test_two_runs_are_compared_problem_by_problem(tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    better = {"dice": [CORRECT] * 5}
    make_run(tmp_path / "b", verdicts=better)
    report = gather([tmp_path / "a", tmp_path / "b"])
    ((a, b, found),) = report.comparisons
    assert (a, b, found.protocol, found.problems, found.better, found.worse) == ("a", "b", "dice", 5, 4, 0)
    row = next(one for one in all_tables(report) if one.key == "comparison").rows[0]
    assert row[0] == "made (b) against made (a)" and row[3].startswith("+80.0 (") and row[-1] == "0.125"


def test_runs_of_the_same_name_are_told_apart(tmp_path: Path) -> None:
    for name in ("x/run", "y/run"):
        make_run(tmp_path / name)
    runs = gather([tmp_path / "x/run", tmp_path / "y/run"]).runs
    assert [run.name for run in runs] == ["x/run", "y/run"]
    assert [run.label for run in runs] == ["made (x/run)", "made (y/run)"]


def test_every_format_holds_the_same_cells(tmp_path: Path) -> None:
    make_run(tmp_path / "run", model="run_1")
    found = table(tmp_path / "run", "results")
    as_markdown, as_latex = markdown(found), latex(found)
    assert "| run_1 | dice | 33.3 |" in as_markdown and "| *DICE-8B (published)* |" in as_markdown
    widths = {line.count("|") for line in as_markdown.splitlines() if line.startswith("|")}
    assert widths == {len(found.columns) + 1}
    assert (
        r"run\_1 & dice & 33.3" in as_latex and r"\toprule" in as_latex and r"\textit{DICE-8B (published)}" in as_latex
    )
    assert as_latex.count(" \\\\\n") == len(found.rows) + 1
    console = Console(record=True, width=300, force_terminal=True, file=(tmp_path / "out").open("w"))
    show(console, found)
    assert re.search(r"run_1 +dice +33\.3", console.export_text())


def test_latex_takes_no_text_for_a_command() -> None:
    assert tex(r"50% of a_b & {x}^2 ~ \end") == (
        r"50\% of a\_b \& \{x\}\textasciicircum{}2 \textasciitilde{} \textbackslash{}end"
    )


def test_json_and_text_through_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "run")
    assert main(["report", str(tmp_path / "run"), "--json", "--protocol", "kernelbench"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["protocols"] == ["kernelbench"]
    assert data["runs"][0]["summaries"]["kernelbench"]["outcomes"] == {"correct": 2, "compile_error": 2, "wrong": 1}
    assert main(["report", str(tmp_path / "run")]) == 0
    assert "made\tdice\t33.3" in capsys.readouterr().out


def test_a_folder_of_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    make_run(tmp_path / "run")
    out = tmp_path / "out"
    assert main(["report", str(tmp_path / "run"), "-o", str(out)]) == 0
    assert {path.name for path in out.iterdir()} == {"report.html", "report.json", "report.md", "report.tex", "figures"}
    names = {path.name for path in (out / "figures").iterdir()}
    assert {"failures.svg", "failures.png", "fast_p.svg", "speed_and_correctness.png"} <= names
    picture = (out / "figures" / "failures.svg").read_text()
    for part in ("execution failure", "functional incorrectness", "deceptive", "kernelbench"):
        assert part in picture
    assert (out / "figures" / "failures.png").read_bytes().startswith(b"\x89PNG")
    first = (out / "figures" / "fast_p.svg").read_text()
    assert main(["report", str(tmp_path / "run"), "-o", str(out)]) == 0
    assert (out / "figures" / "fast_p.svg").read_text() == first
    assert capsys.readouterr().err.count("wrote ") == 2 * (4 + len(names))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{run}", "--protocol", "dice-paper"], "Nothing was judged under dice-paper"),
        (["{empty}"], "it has no problems.json"),
        ([], "at least one RUN"),
        (["{run}", "--case", "nothing_like_it"], "No answer to a problem named nothing_like_it"),
        (["{run}", "--case", "level1"], "names 3 problems"),
        (["--case", "19_ReLU"], "Give the RUN folder"),
    ],
)
def test_one_sentence_for_what_cannot_be_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    make_run(tmp_path / "run")
    (tmp_path / "empty").mkdir()
    places = {"run": tmp_path / "run", "empty": tmp_path / "empty"}
    assert main(["report", *(one.format(**places) for one in arguments)]) == 2
    said = capsys.readouterr().err
    assert words in said and said.count("\n") == 1


def test_a_run_without_verdicts_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "run", verdicts={})
    assert main(["report", str(tmp_path / "run")]) == 2
    assert "nothing has been judged yet" in capsys.readouterr().err


def test_emulated_runs_have_no_speed(tmp_path: Path) -> None:
    untimed = {"dice": [replace(one, timing=None, backend="emulated") for one in VERDICTS["dice"]]}
    make_run(tmp_path / "run", verdicts=untimed)
    report = gather([tmp_path / "run"])
    row = next(one for one in all_tables(report) if one.key == "results").rows[0]
    assert row[2:4] == ("33.3", "-")
    pytest.importorskip("matplotlib")
    from dice.evaluate.report.figures import draw_all

    assert "fast_p" not in draw_all(report)


def test_a_case_shows_everything_of_one_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "run")
    assert main(["report", str(tmp_path / "run"), "--case", "19_ReLU"]) == 0
    said = capsys.readouterr().out
    for words in (
        "torch.relu(x)",
        "__global__",
        "dice  verdict: correct",
        "2.50x",
        "roofline, 25% reached",
        "500 GB/s",
    ):
        assert words in said, words
    for form, words in (("markdown", "```python"), ("latex", "lstlisting"), ("html", "<i class=K>__global__</i>")):
        assert main(["report", str(tmp_path / "run"), "--case", "level1/19_ReLU", "--format", form]) == 0
        assert words in capsys.readouterr().out
    assert main(["report", str(tmp_path / "run"), "--case", TASKS[-1].name, "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)["cases"]
    assert one["kernel"] is None and one["reference"] == TASKS[-1].source


def test_a_time_beyond_the_roofline_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A kernel that moves less than the reference, or finds it in the cache, is no 105% of a device."""
    beyond = replace(CORRECT, timing=replace(TIMING, ceiling_ms=1.05 * TIMING.kernel_ms))
    make_run(tmp_path / "run", verdicts={"dice": [beyond] * 5})
    assert main(["report", str(tmp_path / "run"), "--case", "19_ReLU"]) == 0
    said = capsys.readouterr().out
    show_verdict(DiceConsole(), beyond, "kernel")
    for text in (said, capsys.readouterr().out):
        assert "105%" not in text and "faster than the roofline" in text and "cache" in text


def overlaps(figure: Figure) -> list[tuple[str, str]]:
    """Words of a figure that lie on each other, and legends that lie on what is drawn."""
    figure.draw_without_rendering()
    axes = figure.axes[0]
    legends = [*figure.legends, *filter(None, [axes.get_legend()])]
    words = [*axes.get_xticklabels(), *axes.get_yticklabels(), *axes.texts, axes.title, axes.xaxis.label]
    words += [axes.yaxis.label, axes._left_title, *(text for legend in legends for text in legend.get_texts())]
    places = [(word.get_text(), word.get_window_extent()) for word in words if word.get_text()]
    found = [(a, b) for (a, one), (b, other) in itertools.combinations(places, 2) if one.overlaps(other)]
    return found + [("legend", "axes") for one in legends if one.get_window_extent().overlaps(axes.bbox)]


def test_nothing_in_a_figure_lies_on_anything_else(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from dice.evaluate.report.figures import draw_all

    make_run(tmp_path / "own", tasks=own_tasks())
    make_run(tmp_path / "all_right", tasks=own_tasks(), verdicts={"dice": [CORRECT] * 5})
    make_run(tmp_path / "theirs", row="DICE-8B")
    make_run(tmp_path / "other", row="DICE-4B", verdicts={"dice": [CORRECT] * 5, "dice-paper": [WRONG] * 5})
    for runs in (["own"], ["all_right"], ["own", "all_right"], ["theirs"], ["theirs", "other"]):
        figures = draw_all(gather([tmp_path / run for run in runs]))
        assert ("gains_by_size" in figures) == ("theirs" in runs)
        for name, figure in figures.items():
            assert overlaps(figure) == [], (name, runs)


def test_a_trace_becomes_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_traced_run(tmp_path / "run")
    assert main(["report", str(tmp_path / "run"), "--case", "19_ReLU", "--json"]) == 0
    trace = json.loads(capsys.readouterr().out)["cases"][0]["trace"]
    assert "".join(trace["texts"]) == "class ModelNew(nn.Module):\n    pass\n"
    assert trace["within"][:8] == [0, 0, 1, 1, 0, 0, 1, 1] and trace["steps"][:6] == [0, 0, 1, 1, 2, 2]
    assert main(["report", str(tmp_path / "run"), "--case", "19_ReLU", "--format", "html"]) == 0
    page = capsys.readouterr().out
    assert "<b class=s0>class</b>" in page and "<b class=s1>" in page


def test_the_shipped_samples_are_what_the_paper_describes(capsys: pytest.CaptureFixture[str]) -> None:
    from dice.evaluate.cases import deceptive_cases
    from dice.verify.text.static import examine

    assert [sample.kind for sample in deceptive_cases()] == ["example_mimicry", "never_invoked", "not_in_forward"]
    for sample in deceptive_cases():
        sample.problem.check()
        assert sample.kind in examine(sample.kernel).deceptions
    assert main(["report", "--case", "deceptive"]) == 0
    said = capsys.readouterr().out
    assert "found in the text: not_in_forward" in said and "torch.matmul(a, b)" in said
