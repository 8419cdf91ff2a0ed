"""Whole runs of `dice eval` on the emulated backend: judged right, killed and resumed, asked once, judged again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from dice.cli import main
from dice.errors import MachineError, UserError
from dice.evaluate.models import Answer, Question
from dice.evaluate.models.answers import read_answers
from dice.evaluate.run import Judging, begin, check_finished, evaluate, locked, questions
from dice.evaluate.run_folder import Generation, Judgement, RunFolder
from dice.evaluate.tasks import load_tasks
from dice.model.checkpoint import NANO_FOLDER
from dice.verdict import Timing
from dice.verify import Verifier
from dice.verify import options as verify_options
from tests.conftest import ROOT, borrowed_cache
from tests.endpoint.server import serving

pytestmark = pytest.mark.usefixtures("lasting_zygote")
CASES = ROOT / "tests" / "cases"
PROBLEMS = {"19_ReLU": "relu", "20_RowSum": "row_sum", "21_Log": "log"}
TIMING = Timing(1.0, 2.0, 2.0, 9)
KERNELS = {"19_ReLU": "right_relu", "20_RowSum": "right_row_sum_shared", "21_Log": "right_log_positive_only"}


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    """Three problems in KernelBench's form, and KernelBench's run folder with two kernels and one that is no kernel."""
    (tmp_path / "bench" / "level1").mkdir(parents=True)
    (tmp_path / "answers").mkdir()
    for name, case in PROBLEMS.items():
        shutil.copy(CASES / "problems" / f"{case}.py", tmp_path / "bench" / "level1" / f"{name}.py")
        number = name.partition("_")[0]
        kernel = CASES / f"{KERNELS[name]}.py" if number != "21" else CASES / "empty.py"
        shutil.copy(kernel, tmp_path / "answers" / f"level_1_problem_{number}_sample_0_kernel.py")
    return tmp_path


def command(bench: Path, out: Path, *more: str) -> list[str]:
    given = ["--answers", str(bench / "answers"), "--problems", str(bench / "bench"), "--out", str(out)]
    return ["eval", *given, "--backend", "emulated", "--trials", "1", "--json", *more]


def outcomes(folder: Path, protocol: str = "dice") -> dict[tuple[str, int], str]:
    return {one.id: one.verdict.outcome for one in RunFolder(folder).judgements(protocol)}


def test_answers_are_judged_under_each_protocol_and_again(bench: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = bench / "run"
    asked = ["--protocol", "dice", "kernelbench", "--ids", "19-21"]
    assert main(command(bench, out, *asked, "--report", str(bench / "report"))) == 0
    assert "ReLU" in (bench / "report" / "report.html").read_text()
    found = json.loads(capsys.readouterr().out)
    assert found["generated"] == 3 and found["judged"] == 6
    files = sorted((bench / "answers").iterdir())
    assert [answer["kernel"] for answer in found["answers"]] == [file.read_text() for file in files]
    assert all(answer["text"] and set(answer["verdicts"]) == {"dice", "kernelbench"} for answer in found["answers"])
    assert outcomes(out) == {
        ("level1/19_ReLU", 0): "correct", ("level1/20_RowSum", 0): "correct", ("level1/21_Log", 0): "no_kernel",
    }  # fmt: skip
    assert outcomes(out, "kernelbench") == outcomes(out)
    assert found["protocols"]["dice"]["levels"]["1"]["exec"]["value"] == pytest.approx(2 / 3)
    assert main(command(bench, out, *asked)) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["generated"] == 0 and again["judged"] == 0 and again["protocols"] == found["protocols"]

    flags = ["--backend", "emulated", "--trials", "1", "--json"]
    assert main(["eval", "--reverify", str(out), "--protocol", "dice-paper", *flags]) == 0
    assert json.loads(capsys.readouterr().out)["judged"] == 3
    assert outcomes(out, "dice-paper") == outcomes(out)
    assert main(["eval", "--export-kernelbench", str(bench / "eval_results.json"), str(out)]) == 0
    results = json.loads((bench / "eval_results.json").read_text())
    told = [
        (number, one["sample_id"], one["compiled"], one["correctness"]) for number in results for one in results[number]
    ]
    assert told == [("19", 0, True, True), ("20", 0, True, True), ("21", 0, False, False)]
    assert main(["eval", "--export-kernelbench", str(bench / "exported"), str(out)]) == 0
    again = read_answers(bench / "exported" / "level1", RunFolder(out).tasks())
    kernels = {one.id: one.kernel for one in RunFolder(out).generations()}
    assert again == {key: kernel for key, kernel in kernels.items() if kernel is not None} and again
    assert json.loads((bench / "exported" / "level1" / "eval_results.json").read_text()) == results
    capsys.readouterr()
    assert main(["eval", "--compare", str(out), str(out)]) == 0
    assert "sign test p = 1" in capsys.readouterr().out

    assert main(command(bench, out, "--seed", "1")) == 2
    assert "other" in capsys.readouterr().err


def test_runs_share_verdicts_where_asked_to(
    bench: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(bench, bench / "before", "--ids", "19")) == 0  # so that there is something to borrow
    monkeypatch.setenv("DICE_CACHE", str(borrowed_cache(bench / "cache")))
    ran, run = [], Verifier._run
    monkeypatch.setattr(Verifier, "_run", lambda self, *asked: ran.append(asked[1]) or run(self, *asked))
    for name, verified in (("one", 1), ("two", 1), ("apart", 2)):
        flags = ["--ids", "19"] if name == "apart" else ["--ids", "19", "--cache"]
        assert main(command(bench, bench / name, *flags)) == 0
        assert (len(ran), outcomes(bench / name)) == (verified, {("level1/19_ReLU", 0): "correct"}), name
    capsys.readouterr()


def test_what_one_protocol_timed_no_other_times_again(
    bench: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a CPU nothing is timed: what has a time, has that of the first protocol."""
    out = bench / "run"
    assert main(command(bench, out, "--protocol", "dice")) == 0
    path = out / "verdicts" / "dice.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        elsewhere = row["task"].endswith("RowSum")
        row["verdict"] |= {"timing": asdict(TIMING), "device": "another GPU" if elsewhere else "the GPU"}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setattr(verify_options, "probe_cuda", lambda: {"device": "the GPU"})
    assert main(command(bench, out, "--protocol", "dice", "dice-paper", "kernelbench")) == 0
    timed = {
        protocol: {one.task for one in RunFolder(out).judgements(protocol) if one.verdict.timing == TIMING}
        for protocol in ("dice-paper", "kernelbench")
    }
    # The kernel timed on another GPU is not; the file without a kernel has no time; kernelbench casts tensors.
    assert timed == {"dice-paper": {"level1/19_ReLU"}, "kernelbench": set()}
    assert outcomes(out, "dice-paper") == outcomes(out, "kernelbench") == outcomes(out)
    capsys.readouterr()


@pytest.mark.parametrize("where", ["nano", "elsewhere"])
def test_nano_writes_a_kernel(where: str, bench: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By its name, or from a folder: the checkpoint itself says how it wants to be asked."""
    out = bench / where
    model = "nano" if where == "nano" else str(shutil.copytree(NANO_FOLDER, tmp_path / "checkpoint"))
    given = ["--model", model, "--problems", str(bench / "bench"), "--ids", "19", "--out", str(out), "--traces"]
    assert main(["eval", *given, "--backend", "emulated", "--trials", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["protocols"]["dice"]["outcomes"] == {"correct": 1}
    assert RunFolder(out).config["prompt"] == "compact"
    (generation,) = RunFolder(out).generations()
    assert generation.tokens > generation.forwards > 0 and generation.prompt_tokens > 0 and generation.stop == "end"
    assert (out / generation.trace).is_file()


def test_an_endpoint_answers_and_is_paid_once(bench: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kernel = (CASES / "right_relu.py").read_text()
    out = bench / "asked"
    with serving(answer=lambda prompt: f"```python\n{kernel}```") as server:
        given = ["--base-url", server.url, "--model", "m", "--price-in", "10", "--price-out", "20"]
        flags = ["--problems", str(bench / "bench"), "--ids", "19", "--out", str(out), "--samples", "2", "--json"]
        judging = ["--backend", "emulated", "--trials", "1", "--temperature", "0.5", "--hardware", "H100 SXM"]
        assert main(["eval", *given, *flags, *judging]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["endpoint"]["cost"] == pytest.approx(0.004) and found["endpoint"]["sent"] == 2
        assert found["protocols"]["dice"]["total"]["pass_at"]["2"]["value"] == 1.0
        assert found["protocols"]["dice"]["cost"]["usd"] == pytest.approx(0.004)
        assert main(["eval", *given, *flags, *judging]) == 0
        assert len(server.received) == 2 and "sm_90" in server.received[0]
        assert {body["temperature"] for body in server.bodies} == {0.5}


class Flaky:
    """Answers the same to all; unless it is `good`, the first time round, the second question cannot be had."""

    gpu: int | None = None

    def __init__(self, good: bool, text: str = "no kernel in this text"):
        self.good, self.text = good, text
        self.asked: list[tuple[str, int]] = []

    def answer(self, questions: Sequence[Question]) -> Iterator[tuple[Question, Answer]]:
        for place, question in enumerate(questions):
            self.asked.append(question.id)
            lost = place == 1 and not self.good
            yield question, Answer(error="gone", passing=True) if lost else Answer(self.text)

    def close(self) -> None:
        """Nothing is held."""


def test_what_could_not_be_had_is_asked_again(bench: Path) -> None:
    tasks = load_tasks(bench / "bench")
    judging = Judging(backend="emulated")
    asked = questions(tasks, 1)
    first, second = Flaky(False), Flaky(True)
    with locked(bench / "flaky") as folder:
        begin(folder, {"model": "flaky", "samples": 1}, tasks)
        done = evaluate(folder, asked, lambda: first, judging)
        assert (done.generated, done.judged, done.untried) == (2, 2, {"gone": 1})
        with pytest.raises(MachineError, match="1 answers or verdicts are still lacking"):
            check_finished(done)
        done = evaluate(folder, asked, lambda: second, judging)
        assert second.asked == [asked[1].id] and done.judged == 1
        check_finished(done)
        with pytest.raises(UserError, match="Another process"), locked(bench / "flaky"):
            pass


def test_faults_of_ours_are_no_verdicts(bench: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dice.verdict import Verdict
    from dice.verify import Verifier

    def broken(self: Any, *_: Any, **__: Any) -> Verdict:
        return Verdict("infra_error", "infra", "disk full.")

    tasks = load_tasks(bench / "bench", ids="19")
    text = f"```python\n{(CASES / 'right_relu.py').read_text()}```"
    with locked(bench / "faulty") as folder:
        begin(folder, {"model": "x", "samples": 1}, tasks)
        with monkeypatch.context() as patch:
            patch.setattr(Verifier, "_verify", broken)
            done = evaluate(folder, questions(tasks, 1), lambda: Flaky(True, text), Judging(backend="emulated"))
        assert done.faults == {"disk full.": 1} and folder.judgements("dice") == []
        done = evaluate(folder, questions(tasks, 1), lambda: Flaky(True, text), Judging(backend="emulated"))
        assert done.generated == 0 and done.judged == 1 and outcomes(folder.path) == {("level1/19_ReLU", 0): "correct"}


@pytest.mark.parametrize(("backend", "judged"), [("cuda", 1), ("emulated", 0)])
def test_what_another_backend_could_not_run_is_judged_again(bench: Path, backend: str, judged: int) -> None:
    from dice.verdict import Verdict

    tasks = load_tasks(bench / "bench", ids="19")
    text = f"```python\n{(CASES / 'right_relu.py').read_text()}```"
    with locked(bench / f"open_{backend}") as folder:
        begin(folder, {"model": "x", "samples": 1}, tasks)
        folder.add_generation(Generation(tasks[0].key, 0, text, (CASES / "right_relu.py").read_text()))
        folder.add_judgement("dice", Judgement(tasks[0].key, 0, Verdict("unsupported", "compile", backend=backend)))
        done = evaluate(folder, questions(tasks, 1), lambda: Flaky(True, text), Judging(backend="emulated"))
        assert done.judged == judged
        (found,) = folder.judgements("dice")
        assert found.verdict.outcome == ("correct" if judged else "unsupported")


def test_a_mistake_does_not_spoil_the_folder(bench: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A model that cannot be had leaves nothing that the right one would be held against."""
    given = ["--problems", str(bench / "bench"), "--out", str(bench / "run"), "--limit", "1", "--backend", "emulated"]
    assert main(["eval", "--model", str(bench / "gone"), *given]) == 2
    assert "no model folder" in capsys.readouterr().err
    answers = ["--answers", str(bench / "answers"), "--trials", "1", "--json"]
    assert main(["eval", *answers, *given]) == 0
    assert outcomes(bench / "run") == {("level1/19_ReLU", 0): "correct"}


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (["--model", "nano"], 2, "Give --problems"),
        (["--problems", "BENCH"], 2, "Give --model"),
        (["--problems", "BENCH", "--model", "nano", "--level", "3"], 2, "no problem of level 3"),
        (["--problems", "BENCH", "--model", "nano", "--samples", "2"], 2, "give --temperature"),
        (["--problems", "BENCH", "--row", "CUDA-L1"], 2, "give --answers"),
        (["--problems", "BENCH", "--row", "Mercury"], 2, "give its --base-url"),
        (["--problems", "BENCH", "--model", "nano", "--hardware", "TPU"], 2, "no facts about 'TPU'"),
        (["--problems", "BENCH", "--model", "nano", "--limit", "0"], 2, "--limit must be at least 1, not 0"),
        (["--problems", "BENCH", "--model", "nano", "--setting", "steps"], 2, "no setting such as"),
        (["--problems", "BENCH", "--model", "nano", "--setting", "steps=3"], 2, "have no setting 'steps'"),
        (["--problems", "BENCH", "--model", "nano", "--setting", "block_size=big"], 2, "block_size = 'big'"),
        (["--problems", "BENCH", "--model", "m", "--base-url", "http://h", "--setting", "a=1"], 2, "does not reach it"),
        (["--reverify", "BENCH"], 2, "is no run"),
    ],
)
def test_one_sentence_says_what_is_wrong(
    bench: Path, flags: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [str(bench / "bench") if flag == "BENCH" else flag for flag in flags]
    out = [] if "--reverify" in flags else ["--out", str(bench / "out")]
    assert main(["eval", *given, *out]) == code
    printed = capsys.readouterr().err
    assert said in printed and len(printed.strip().splitlines()) == 1
    assert not (bench / "out" / "generations.jsonl").exists()
