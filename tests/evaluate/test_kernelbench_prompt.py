"""KernelBench's own prompt, read word for word from small checkouts in the two forms that it has had."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dice.cli import main
from dice.errors import UserError
from dice.evaluate.kernelbench_prompt import choose_prompt, find_checkout, read_prompt

SOURCE = "class Model:\n    table = {'a': 1}  # braces stay as they are\n"
CONSTRUCTOR = '''
import os
from .utils import read_file
STATEMENT = """Make it fast. \\n
    Use {braces} as you like.\\n
"""
INSTRUCTION = "\\nName it ModelNew. \\n"


def prompt_generate_custom_cuda(arc_src: str, example: str, example_new: str) -> str:
    """Not part of it."""
    prompt = STATEMENT
    if example != "" and example_new != "":
        prompt += f"""
        An example: \\n
        {example}
        becomes {{new}}
        {example_new}"""
    prompt += f"""
    You are given: {arc_src}"""
    prompt += INSTRUCTION
    return prompt
'''
TOML = '''
[meta]
default_precision = "fp32"
[shared]
problem_statement = """
Write {backend_display}.
"""
instruction = """
Name it ModelNew.
"""
few_shot_example_arch = "src/kernelbench/prompts/model_ex_add.py"
[backends.cuda]
backend_display = "CUDA operators"
one_shot_new_arch = "src/kernelbench/prompts/model_new_ex_add.py"
[precision.fp32]
precision_display = "FP32"
[templates.common]
arch_block = """
Given:

{ref_arch_src}

"""
examples_block = """
{examples_intro}

{examples_entries}
"""
example_intro_one_shot = """
An example of {backend_display}:
"""
example_entry_template = """
{example_label}
{input_code}
becomes
{output_code}
"""
precision_note = """
Note: {precision_display}.
"""
[options.one_shot]
components = ["problem_statement", "examples_block", "arch_block", "precision_note", "instruction"]
'''


def old_form(root: Path) -> Path:
    write(root / "src/prompt_constructor.py", CONSTRUCTOR)
    write(root / "src/prompts/model_ex_add.py", "a + {b}\n")
    write(root / "src/prompts/model_new_ex_add.py", "add<<<1, 1>>>\n")
    return root


def new_form(root: Path) -> Path:
    write(root / "src/kernelbench/prompts/prompts.toml", TOML)
    write(root / "src/kernelbench/prompts/model_ex_add.py", "a + {b}\n")
    write(root / "src/kernelbench/prompts/model_new_ex_add.py", "add<<<1, 1>>>\n")
    return root


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_form_of_the_papers_time_is_read_word_for_word(tmp_path: Path) -> None:
    assert read_prompt(old_form(tmp_path)).render(SOURCE) == (
        "Make it fast. \n\n    Use {braces} as you like.\n\n"
        "\n        An example: \n\n        a + {b}\n\n        becomes {new}\n        add<<<1, 1>>>\n"
        f"\n    You are given: {SOURCE}\nName it ModelNew. \n"
    )


def test_the_form_of_today_is_read_word_for_word(tmp_path: Path) -> None:
    assert read_prompt(new_form(tmp_path)).render(SOURCE) == (
        "Write CUDA operators.\n\n"
        "An example of CUDA operators:\n\nExample:\na + {b}\n\nbecomes\nadd<<<1, 1>>>\n\n"
        f"Given:\n\n{SOURCE}\n\nNote: FP32.\n\nName it ModelNew.\n"
    )


@pytest.mark.parametrize("form", [old_form, new_form])
def test_a_missing_file_is_named(form, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    root = form(tmp_path)
    lost = next(root.rglob("model_new_ex_add.py"))
    lost.unlink()
    with pytest.raises(UserError, match=f"lacks {lost.relative_to(root)}"):
        read_prompt(root)


@pytest.mark.parametrize(
    ("name", "before", "after", "said"),
    [
        ("src/prompt_constructor.py", "prompt = STATEMENT", "prompt = STATEMENT.strip()", "not known here: line"),
        ("src/prompt_constructor.py", "{arc_src}", "it", "without the problem in it"),
        ("src/prompt_constructor.py", "def prompt_generate_custom_cuda", "def other", "has no prompt_generate_custom"),
        ("src/prompt_constructor.py", "import os", "import os(", "is not Python"),
        ("src/kernelbench/prompts/prompts.toml", "arch_block = ", "other = ", "has no entry templates.common.arch_bl"),
        ("src/kernelbench/prompts/prompts.toml", "{precision_display}", "{colour}", "placeholder not known here"),
        ("src/kernelbench/prompts/prompts.toml", "[meta]", "[meta", "is not TOML"),
        ("src/kernelbench/prompts/prompts.toml", '"src/kernelbench/prompts/model_ex', '"../model_ex', "outside it"),
    ],
)
def test_another_form_is_refused(name: str, before: str, after: str, said: str, tmp_path: Path) -> None:
    root = old_form(tmp_path) if name.endswith(".py") else new_form(tmp_path)
    text = (root / name).read_text()
    assert before in text
    (root / name).write_text(text.replace(before, after, 1))
    with pytest.raises(UserError, match=said):
        read_prompt(root)


def test_it_is_chosen_where_it_is_known(tmp_path: Path) -> None:
    root = old_form(tmp_path / "checkout")
    problems = root / "KernelBench" / "level1"
    problems.mkdir(parents=True)
    assert find_checkout(problems) == root.resolve()
    assert choose_prompt("auto", None, problems, published=True)
    assert choose_prompt("auto", None, problems, published=False) is None
    assert choose_prompt("auto", None, tmp_path, published=True) is None
    assert choose_prompt("auto", root, tmp_path, published=False)
    assert choose_prompt("one-shot", None, problems, published=True) is None
    with pytest.raises(UserError, match="part of no checkout of KernelBench: name one"):
        choose_prompt("kernelbench", None, tmp_path, published=False)
    with pytest.raises(UserError, match="not --prompt zero-shot"):
        choose_prompt("zero-shot", root, tmp_path, published=False)
    with pytest.raises(UserError, match="is no checkout of KernelBench"):
        read_prompt(tmp_path)
    with pytest.raises(UserError, match="is no folder"):
        read_prompt(tmp_path / "nowhere")


def test_a_run_says_which_prompt_it_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = new_form(tmp_path / "checkout")
    problem = "import torch\n\n\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        return x + 1\n\n\n"
    problem += "def get_inputs():\n    return [torch.rand(4)]\n\n\ndef get_init_inputs():\n    return []\n"
    write(root / "KernelBench/level1/1_Add.py", problem)
    write(tmp_path / "answers.json", json.dumps({"1_Add": "import torch\n"}))
    asked = ["eval", "--problems", str(root / "KernelBench"), "--row", "CUDA-L1", "--backend", "emulated"]
    asked += ["--answers", str(tmp_path / "answers.json"), "--out", str(tmp_path / "run")]
    assert main(asked) == 0
    config = json.loads((tmp_path / "run" / "run.json").read_text())
    assert config["prompt"] == "kernelbench" and config["prompt_text"].startswith("src/kernelbench/prompts/")
    capsys.readouterr()
    assert main([*asked, "--hardware", "H100 SXM"]) != 0
    assert "word for word" in capsys.readouterr().err
