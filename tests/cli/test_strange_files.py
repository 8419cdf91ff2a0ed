"""Paths that lead to pipes, devices and files without end: every command says so in one sentence, at once."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest
import torch
from safetensors.torch import load_file, save_file

from dice.cli import main
from dice.evaluate.run_folder import Generation, RunFolder, Task
from dice.prompts import EXAMPLE_KERNEL, EXAMPLE_PROBLEM
from tests.conftest import ROOT

NANO = ROOT / "dice" / "nano"
pytestmark = pytest.mark.usefixtures("lasting_zygote")
LIMIT_S = 200  # what hangs is ended; all of it takes moments
TEACHER = "--base-url http://localhost:1/v1 --model m"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    Path("problem.py").write_text(EXAMPLE_PROBLEM)
    Path("kernel.py").write_text(EXAMPLE_KERNEL)
    for suffix in (".py", ".json", ".jsonl", ".parquet", ".arrow", ".txt"):
        os.mkfifo(f"pipe{suffix}")
        Path(f"zero{suffix}").symlink_to("/dev/zero")
    with open("huge.py", "wb") as file:
        file.truncate(1 << 40)
    os.link("huge.py", "huge.json")
    for name in ("piped", "unread"):
        Path(name).mkdir()
    os.mkfifo("piped/problems.json")
    os.mkfifo("piped/config.json")

    def end(number: int, frame: FrameType | None) -> None:
        raise TimeoutError("it hangs")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(LIMIT_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("command", [
    "verify pipe.py kernel.py",
    "verify problem.py pipe.py",
    "verify problem.py kernel.py zero.py",
    "verify problem.py huge.py",
    "verify zero.py kernel.py",
    "generate pipe.py",
    "generate problem.py --model piped",
    "eval --model nano --problems pipe.py",
    "eval --model nano --problems pipe.parquet",
    "eval --model nano --problems zero.jsonl",
    "eval --model nano --problems problem.py --subset pipe.txt",
    "eval --model nano --problems problem.py --subset zero.txt",
    "eval --model piped --problems problem.py",
    "eval --answers pipe.json --problems problem.py --backend emulated",
    "eval --answers huge.json --problems problem.py --backend emulated",
    "eval --answers zero.jsonl --problems problem.py --backend emulated",
    "eval --reverify piped",
    "report piped",
    "bench baseline --problems pipe.py",
    "data import pipe.jsonl -o out.parquet",
    "data import zero.json -o out.parquet",
    "data import pipe.parquet -o out.parquet",
    "data import pipe.arrow -o out.parquet",
    "data import huge.py -o out.parquet",
    "data inspect pipe.parquet --audit never",
    "data inspect pipe.py --audit never",
    "data measure pipe.parquet --out measured",
    "data measure zero.parquet --out measured",
    "data tokenizer --data pipe.txt --out tokenizer",
    "data tokenizer --data zero.txt --out tokenizer",
    "data tokenizer --data pipe.jsonl --out tokenizer",
    "data difficulty pipe.parquet",
    "data difficulty pipe.py",
    "data rl pipe.parquet --out rl",
    f"data teach pipe.py {TEACHER}",
    f"data teach zero.json {TEACHER}",
    f"train sft --data pipe.jsonl --tokenizer {shlex.quote(str(NANO))} --out o --max-steps 1",
])  # fmt: skip
def test_what_is_no_file_is_one_sentence(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(command)) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("dice: ") and said.endswith(".") and not said.endswith("..")
    strange = next(word for word in shlex.split(command) if word.startswith(("pipe", "zero", "huge")))
    words = {"pipe": "a named pipe", "zero": "a device", "huge": "is longer than"}[strange[:4]]
    assert words in said and strange.partition("/")[0] in said


def nano(**changed: str | bytes | None) -> Path:
    """A copy of the shipped model, but for files."""
    folder = Path("model")
    shutil.copytree(NANO, folder)
    for name, content in changed.items():
        path = folder / name.replace("__", ".")
        path.write_bytes(content.encode() if isinstance(content, str) else content or b"")
    return folder


BOMB = {"type": "Split", "pattern": {"Regex": "(a|aa)+$|(?:x+x+)+y|."}, "behavior": "Isolated", "invert": False}


def tokenizer_with(**parts: object) -> str:
    return json.dumps(json.loads((NANO / "tokenizer.json").read_text()) | parts)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("chat_template__jinja", "{{ 'x' * 10**10 }}", "it takes too much memory"),
        ("chat_template__jinja", "{{ messages[0].content * 10**7 }}", "it takes too much memory"),
        ("chat_template__jinja", "{% for a in range(99999) %}{{ 'x' * 99999 }}{% endfor %}", "too much memory"),
        (
            "chat_template__jinja",
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
            "it takes more than 2 s",
        ),
        ("chat_template__jinja", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "nested too deeply"),
        ("chat_template__jinja", "{{" + "(" * 9999 + "1" + ")" * 9999 + "}}", "nested too deeply"),
        ("tokenizer__json", tokenizer_with(pre_tokenizer=BOMB), "cannot handle a text of this length or form"),
        ("tokenizer__json", "[" * 100_000, "is not a usable tokenizer"),
        ("tokenizer__json", "{}", "is not a usable tokenizer"),
        ("tokenizer_config__json", "[" * 100_000, "is not valid JSON"),
        ("tokenizer_config__json", '{"eos_token": {"content": []}, "chat_template": 7}', ""),
        ("generation_config__json", '{"eos_token_id": [{}]}', "is not usable"),
        ("generation_config__json", '{"eos_token_id": ["x"]}', "gives a token the id 'x'"),
        ("added_tokens__json", '{"<|MASK|>": "x"}', ""),
        ("config__json", "[" * 100_000, "is not valid JSON"),
        ("model__safetensors__index__json", "[" * 100_000, "is not a valid weight index"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_checkpoint_that_means_harm_is_one_sentence(
    name: str, content: str, words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dice.model.chat.LIMIT_S", 2.0)
    Path("bait.py").write_text(EXAMPLE_PROBLEM + f"# {'a' * 60}! {'x' * 60}\n")
    folder = nano(**{name: content})
    command = f"generate bait.py --model '{folder}' --form written --backend emulated --max-new-tokens 1 --scale 0.1"
    code = main(shlex.split(command))
    said = capsys.readouterr().err.strip().splitlines()
    if words:
        assert code == 2 and said[-1].startswith("dice: ") and words in said[-1] and "Traceback" not in said


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_weights_that_are_no_numbers_are_refused(
    value: float, dtype: torch.dtype, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = nano()
    state = {name: tensor.to(dtype) for name, tensor in load_file(folder / "model.safetensors").items()}
    name = "model.layers.1.mlp.down_proj.weight"
    state[name].view(-1)[-1] = value
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    assert main(shlex.split(f"generate problem.py --model '{folder}' --backend emulated --max-new-tokens 1")) == 2
    said = capsys.readouterr().err.strip()
    assert said == f"dice: model/model.safetensors holds weights that are infinite or not a number, in {name}."


@pytest.mark.parametrize("row", ['{"task": "a", "sample": 0}', '{"task": [], "sample": 0, "verdict": {}}', '{"x": 1}'])
def test_a_run_of_strangers_is_one_sentence(row: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = RunFolder(Path("run"))
    folder.begin({}, [Task("level1/1_Add", 1, 1, "1_Add", EXAMPLE_PROBLEM)])
    folder.add_generation(Generation("level1/1_Add", 0, EXAMPLE_KERNEL, EXAMPLE_KERNEL))
    Path("run/verdicts").mkdir()
    Path("run/verdicts/dice.jsonl").write_text(row + "\n")
    assert main(["report", "run"]) == 2
    assert "run is a run of another version of dice: a Judgement differs" in capsys.readouterr().err


def test_settings_nested_too_deeply_are_words(capsys: pytest.CaptureFixture[str]) -> None:
    deep = "steps=" + "[" * 100_000
    assert main(["eval", "--model", "nano", "--problems", "problem.py", "--setting", deep]) == 2
    assert capsys.readouterr().err.startswith("dice: ")


def test_numbers_of_any_length_in_a_table_are_no_crash(capsys: pytest.CaptureFixture[str]) -> None:
    names = ("9" * 5000 + "_x", "\u00b2_x", "1_x")
    rows = [
        {"problem": EXAMPLE_PROBLEM + f"# {n}\n", "name": name, "level": "9" * 5000} for n, name in enumerate(names)
    ]
    Path("t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("answers.jsonl").write_text(json.dumps({"problem_id": "9" * 5000, "level": "\u00b2", "kernel": "x"}) + "\n")
    command = "eval --answers answers.jsonl --problems t.jsonl --backend emulated --out run"
    assert main(shlex.split(command)) == 2
    assert "answers.jsonl holds no kernel for any of the 3 problems" in capsys.readouterr().err
