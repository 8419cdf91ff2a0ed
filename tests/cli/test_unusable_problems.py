"""A problem that cannot run is told of before a kernel is written for it, by every command in the same words; and what
is written is a right kernel, or says that it is not."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dice.cli import main
from tests.conftest import CASES

pytestmark = [pytest.mark.xdist_group("cli"), pytest.mark.usefixtures("lasting_zygote")]

GOOD = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.rand(4, 16)]


def get_init_inputs():
    return []
"""
BROKEN = {
    "its_import": (GOOD.replace("import torch\n", "import torch\nimport no_such_package\n", 1), "no_such_package"),
    "its_inputs": (GOOD.replace("torch.rand(4, 16)", "torch.rand(4, 16), undefined"), "get_inputs() raised NameError"),
    "its_forward": (GOOD.replace("torch.relu(x)", "torch.relu(x) @ x"), "forward raised RuntimeError"),
}
DICT = "get_init_inputs() returned a dict, not a list: arguments are passed by position"


@pytest.fixture
def no_writing(monkeypatch: pytest.MonkeyPatch) -> None:
    from dice.evaluate.models.native import NativeModel
    from dice.generation import Writer

    def write(*_: Any, **__: Any) -> Any:
        raise AssertionError("a kernel is written for a problem that cannot run")

    monkeypatch.setattr(Writer, "write", write)
    monkeypatch.setattr(NativeModel, "answer", write)


@pytest.mark.usefixtures("no_writing")
@pytest.mark.parametrize("name", BROKEN)
def test_a_problem_that_cannot_run_is_found_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    source, words = BROKEN[name]
    folder = tmp_path / "problems"
    folder.mkdir()
    (folder / "fine.py").write_text(GOOD)
    (folder / f"{name}.py").write_text(source)
    for command in (
        ["generate", *map(str, sorted(folder.iterdir())), "-o", str(tmp_path / "kernels")],
        ["eval", "--model", "nano", "--problems", str(folder), "--out", str(tmp_path / "run")],
    ):
        assert main([*command, "--backend", "emulated"]) == 2
        said = capsys.readouterr().err.strip()
        assert said.count("\n") == 0 and name in said.split(" cannot run: ")[0] and words in said, said
    assert not list((tmp_path / "kernels").glob("*")) and not (tmp_path / "run" / "generations.jsonl").exists()


@pytest.mark.usefixtures("no_writing")
def test_a_dict_of_arguments_is_explained_alike_by_every_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whether it stands in the text, where no process is needed to see it, or is made when the problem runs."""
    plain = GOOD.replace("return []", 'return {"size": 16}')
    made = GOOD.replace("return []", "return dict.fromkeys(['size'], 16)")
    kernel = tmp_path / "kernel.py"
    kernel.write_text((CASES / "right_relu.py").read_text())  # one that is run, and so its reference too
    for source in (plain, made):
        problem = tmp_path / "problems" / "by_name.py"
        problem.parent.mkdir(exist_ok=True)
        problem.write_text(source)
        for command in (
            ["generate", str(problem), "-o", str(tmp_path / "k.py")],
            ["eval", "--model", "nano", "--problems", str(problem), "--out", str(tmp_path / "r")],
            ["verify", str(problem), str(kernel)],
            ["data", "inspect", str(problem), "--json"],
        ):
            assert main([*command, "--backend", "emulated"]) in (1, 2, 3)
            said = capsys.readouterr()
            assert DICT in " ".join((said.out + said.err).split()), command


def test_a_wrong_kernel_is_not_written_as_a_right_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from dice import generation
    from dice.kernel import Kernel
    from dice.prompts import EXAMPLE_KERNEL, EXAMPLE_PROBLEM

    problem, out = tmp_path / "add.py", tmp_path / "kernels" / "add_kernel.py"
    problem.write_text(EXAMPLE_PROBLEM)
    wrong = EXAMPLE_KERNEL.replace("a[i] + b[i]", "a[i] - b[i]")
    monkeypatch.setattr(generation, "extract_kernel", lambda text: Kernel(wrong))
    command = ["generate", str(problem), "-o", str(out), "--form", "written", "--backend", "emulated"]
    command += ["--max-new-tokens", "8"]
    assert main(command) == 1
    assert "nothing was written" in capsys.readouterr().out and not list(out.parent.iterdir())
    assert main([*command, "--keep-wrong", "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    marked = out.with_name("add_kernel_wrong.py")
    assert list(out.parent.iterdir()) == [marked] and answer["kernel_path"] == str(marked)
    assert answer["kept_wrong"] is True and answer["kernel"] == wrong
    first, rest = marked.read_text().split("\n", 1)
    assert first.startswith("# WRONG, by dice verify (wrong): trial ") and rest == wrong
    monkeypatch.setattr(generation, "extract_kernel", lambda text: Kernel(EXAMPLE_KERNEL))
    trace = tmp_path / "trace.json"
    assert main([*command, "--json", "--trace", str(trace)]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["verdict"]["outcome"] == "correct" and answer["kernel"] == EXAMPLE_KERNEL
    assert answer["decode"]["tokens_per_forward"] > 1 and json.loads(trace.read_text())["block_size"] == 4
    assert answer["kernel_path"] == str(out) and answer["kept_wrong"] is False and out.read_text() == EXAMPLE_KERNEL


def test_what_the_model_cannot_write_is_written_by_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from dice import generation
    from dice.optimize import writers
    from dice.prompts import EXAMPLE_PROBLEM

    problem, out = tmp_path / "add.py", tmp_path / "add_kernel.py"
    problem.write_text(EXAMPLE_PROBLEM)
    for module in (generation, writers):
        monkeypatch.setattr(module, "extract_kernel", lambda text: None)
        monkeypatch.setattr(module, "completed", lambda problem, text: None)
    command = ["generate", str(problem), "-o", str(out), "--backend", "emulated", "--max-new-tokens", "8"]
    trace = tmp_path / "trace.json"
    assert main([*command, "--trace", str(trace)]) == 0
    said = capsys.readouterr()
    assert "by rule, not by the model" in said.out and "in canonical form nothing right was written" in said.err
    assert json.loads(trace.read_text())["block_size"] == 4  # how the model's own reply was denoised
    capsys.readouterr()
    assert main([*command, "--form", "rules", "--model", "no/such/model", "--json"]) == 0  # no model is asked
    answer = json.loads(capsys.readouterr().out)
    assert [one["way"] for one in answer["samples"]] == [answer["way"]] == ["rules"]
    assert answer["kernel"] == out.read_text() and answer["verdict"]["replaced"]["all"] is True
    assert answer["decode"]["tokens"] == 0
    assert main([*command, "--form", "rules", "--refine", "1"]) == 2
    assert "leave out" in capsys.readouterr().err


def test_one_form_that_gives_nothing_for_a_problem_does_not_end_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from dice.prompts import EXAMPLE_PROBLEM

    add, nothing = tmp_path / "add.py", tmp_path / "nothing.py"
    add.write_text(EXAMPLE_PROBLEM)
    nothing.write_text(re.sub(r"        return .*\n", "        return None\n", EXAMPLE_PROBLEM, count=1))
    command = ["generate", str(nothing), str(add), "-o", f"{tmp_path}", "--backend", "emulated", "--form", "rules"]
    assert main([*command, "--json"]) == 1
    said = capsys.readouterr()
    first, second = json.loads(said.out)["results"]
    assert "nothing that it returns" in first["error"] and first["error"] in said.err
    assert second["verdict"]["correct"] and not (tmp_path / "nothing_kernel.py").exists()
