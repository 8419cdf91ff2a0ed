"""`--help` shows what there is, in words that can be typed; an exit code says which kind of end it was."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from dice.cli import Commands, main, parse
from dice.commands import arguments
from dice.commands.generate import Generate
from dice.decode.sampling import STRATEGIES
from dice.verdict import Backend
from dice.verify import options
from tests.conftest import PATIENCE_S, ROOT


def commands(union: Any = Commands, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], type]]:
    """Every command and group of commands: the words that name it, and its class."""
    if get_args(union) and not hasattr(union, "__metadata__"):
        for member in get_args(union):
            yield from commands(member, words)
    elif hasattr(union, "__metadata__"):
        named = [one.name for one in union.__metadata__ if hasattr(one, "name")]
        inner = get_args(union)[0]
        if named:
            words = (*words, named[0])
            yield words, inner
            group = next((one for one in fields(inner) if one.name == "command"), None)
            if group is not None:
                yield from commands(get_type_hints(inner, include_extras=True)["command"], words)
        else:
            yield from commands(inner, words)


ALL = dict(commands())


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as end:
        main([*words, "--help"])
    assert end.value.code == 0
    return capsys.readouterr().out


def test_all_commands_are_found() -> None:
    assert {("verify",), ("data",), ("data", "cuke"), ("bench", "train"), ("train", "watch")} <= set(ALL)


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_each_help_has_an_example_that_can_be_typed(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, *words)
    assert "None}" not in text
    assert "Example: dice " + " ".join(words) in text
    example = re.search(r"Example: (.*)", ALL[words].__doc__ or "")
    assert example is not None
    program, *arguments = shlex.split(example[1])
    assert program == "dice" and hasattr(parse(arguments), "run")


@pytest.mark.parametrize("group", ["bench", "data", "train"])
def test_a_group_alone_lists_its_parts(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([group])
    text = capsys.readouterr().out
    assert end.value.code == 0
    assert all(f"• {words[1]} " in text for words in ALL if words[0] == group and len(words) == 2)


def test_the_help_says_what_exit_codes_mean(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(shown(capsys).split())
    for part in ("0 yes", "1 no", "2 unusable input", "3 this machine cannot do it", "70 a fault of dice", "130"):
        assert part in text


def test_a_fault_of_ours_is_no_wrong_kernel(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Generate) -> int:
        raise RuntimeError("a list of \x1b[2J surprises")

    monkeypatch.setattr(Generate, "run", broken)
    assert main(["generate", "problem.py"]) == 70
    text = capsys.readouterr().err
    assert "Traceback" in text and "in broken" in text and "RuntimeError: a list of ?[2J surprises" in text
    assert text.strip().splitlines()[-1].startswith("dice: that is a fault of dice itself")


def test_a_closed_pipe_is_no_wrong_kernel() -> None:
    command = [sys.executable, "-m", "dice", "data", "import", "--list", "--json"]
    shell = f"set -o pipefail; {shlex.join(command)} | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", shell], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 141 and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("line", "flag"), [("data cuke measured --min-speedup nan", "--min-speedup"), ("eval --price-in inf", "--price-in")]
)
def test_a_number_that_means_nothing_is_named_as_it_was_typed(
    line: str, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line.split()) == 2
    assert f"dice: {flag} must be a finite number" in capsys.readouterr().err


def test_the_choices_offered_are_those_there_are() -> None:
    """They are written out a second time, so that `dice --help` need not load what they are choices of."""
    assert get_args(arguments.Protocol) == get_args(options.Protocol)
    assert set(get_args(arguments.Remasking)) == set(STRATEGIES)
    assert set(get_args(arguments.Backend)) == {"auto", *get_args(Backend)}
