"""Nothing that a kernel, a file's name or an endpoint says is obeyed by the terminal, or taken for markup."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.table import Table

from dice.cli import main
from dice.prompts import EXAMPLE_KERNEL, EXAMPLE_PROBLEM
from dice.terminal import Console, clean, cleaned
from tests.conftest import PATIENCE_S, ROOT

pytestmark = pytest.mark.xdist_group("cli")

MARKS = "[red]A[/] [/] [link=http:x]B[/link] :smile:"
OBEYED = "\x1b[2J\x1b]0;pwned\x07\x9b31m\u202egnp.exe\u2066\r\x08\x00"
FORBIDDEN = set("\x1b\x07\x9b\u202e\u2066\r\x08\x00")


def verify(folder: Path, *kernels: Path, colour: bool = False) -> subprocess.CompletedProcess[bytes]:
    (folder / "problem.py").write_text(EXAMPLE_PROBLEM)
    command = [sys.executable, "-m", "dice", "verify", str(folder / "problem.py"), *map(str, kernels)]
    environment = (
        os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | ({"FORCE_COLOR": "1"} if colour else {})
    )
    return subprocess.run(
        [*command, "--backend", "emulated"], capture_output=True, env=environment, timeout=PATIENCE_S, check=False
    )


def check(said: bytes) -> str:
    text = said.decode()
    assert not FORBIDDEN & set(text), [line for line in text.splitlines() if FORBIDDEN & set(line)]
    assert "Traceback" not in text
    return text


def kernels(folder: Path) -> dict[str, Path]:
    esc = "\x1b[2J\x1b]0;pwned\x07"
    texts = {
        "error.py": EXAMPLE_KERNEL.replace("__global__", f"#error {esc} \u202e {MARKS}\n__global__", 1),
        "raises.py": EXAMPLE_KERNEL + f"\nraise ValueError({OBEYED + MARKS!r})\n",
        "class.py": EXAMPLE_KERNEL + f"\nraise type({OBEYED + MARKS!r}, (Exception,), {{}})('x')\n",
        f"name {MARKS.replace('/', '')} \x1b[2J\u202e.py": EXAMPLE_KERNEL.replace("a[i] + b[i]", "a[i] - b[i]"),
    }
    paths = {}
    for name, text in texts.items():
        paths[name] = folder / name
        paths[name].write_text(text)
    return paths


@pytest.mark.slow
@pytest.mark.parametrize("colour", [False, True])
def test_what_kernels_say_is_shown_and_not_obeyed(tmp_path: Path, colour: bool) -> None:
    for name, path in kernels(tmp_path).items():
        done = verify(tmp_path, path, colour=colour)
        assert done.returncode == 1, done.stderr
        if colour:
            continue  # rich's own escapes are in it
        text = " ".join(check(done.stdout + done.stderr).split())
        wanted = "name [red]A[]" if name.startswith("name") else MARKS
        assert wanted in text, text


@pytest.mark.usefixtures("lasting_zygote")
def test_several_kernels_in_a_table(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    (tmp_path / "problem.py").write_text(EXAMPLE_PROBLEM)
    paths = map(str, (tmp_path / "problem.py", *kernels(tmp_path).values()))
    code = main(["verify", *paths, "--backend", "emulated"])
    said = capfdbinary.readouterr()
    assert code == 1 and "[red]A[" in check(said.out + said.err)


def test_a_missing_file_of_a_hostile_name(tmp_path: Path) -> None:
    done = verify(tmp_path, tmp_path / f"none \x1b[2J {MARKS.replace('/', '')}.py")
    assert done.returncode == 2 and "[red]A[]" in check(done.stdout + done.stderr)


def test_a_console_obeys_its_own_styles_only() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=200, highlight=False)
    table = Table("name", title=OBEYED + MARKS)
    table.add_row(OBEYED + MARKS)
    console.print(table)
    console.print(OBEYED + MARKS, style="red")
    text = stream.getvalue()
    assert text.count("[link=http:x]") == 3 and ":smile:" in text
    assert "\x1b[31m" in text and "\x1b[2J" not in text and "\x1b]" not in text
    assert not (FORBIDDEN - {"\x1b"}) & set(text)


def test_print_is_cleaned_and_given_back(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stdout, sys.stderr
    with cleaned():
        print(OBEYED, "\ud83d", "tab\tä 漢字")
        print(OBEYED, file=sys.stderr)
        Console(force_terminal=True).print("plain", style="red")
    assert (sys.stdout, sys.stderr) == before
    out, complaint = capsys.readouterr()
    assert "tab\tä 漢字" in out and "\x1b[31mplain" in out
    assert not FORBIDDEN & set(complaint) and not FORBIDDEN & set(out.splitlines()[0])


@pytest.mark.parametrize("text", ["", "plain\n", "ä 漢字 é\t|", "emoji 🙂", "‘quoted’ — dash"])
def test_honest_text_stays(text: str) -> None:
    assert clean(text) == text


def test_no_console_but_ours() -> None:
    for path in (ROOT / "dice").rglob("*.py"):
        if path.name != "terminal.py":
            text = path.read_text()
            assert "rich.console import Console" not in text and "from_markup" not in text, path
            assert "rich.markup" not in text, path
