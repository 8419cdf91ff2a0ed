"""The documentation says what is true: links lead somewhere, code runs, figures and pictures are up to date."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import imports
import pytest
import recipes
import results

from dice.cli import main
from dice.recipes import RL_RECIPES, SFT_RECIPES

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    (path for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/**/*.md")]),
    key=lambda path: (path.name != "README.md" or path.parent != ROOT, path),
)
WITH_CODE = [path for path in PAGES if path.parent in (ROOT, ROOT / "docs")]
MOST_VERIFY_ROOMS = 22
MARK = r"(?:<!-- (?:not run: (?P<why>[^\n]*)|exits with (?P<code>\d+)) -->\n)?"  # in the line before a block


# Code


@dataclass(frozen=True)
class Block:
    """A block of code on a page, which ends at `line`. `why_not`: why it is not run, "" where it is.

    `code`: with what a shell block ends.
    """

    page: Path
    line: int
    language: str
    text: str
    why_not: str
    code: int

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    found = re.finditer(rf"^{MARK}```(?P<language>\w+)\n(?P<text>.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [
        Block(
            page=page,
            line=text.count("\n", 0, match.end()),
            language=match["language"],
            text=match["text"],
            why_not=match["why"] or "",
            code=int(match["code"] or 0),
        )
        for match in found
    ]


BLOCKS = [block for page in WITH_CODE for block in blocks(page)]
SHELL = [block for block in BLOCKS if block.language == "bash"]
RUN = [block for block in BLOCKS if block.language in ("bash", "python") and not block.why_not]


def test_every_block_says_what_it_is_in() -> None:
    for page in WITH_CODE:
        fences = re.findall(r"^```(\w*)$", page.read_text(), re.MULTILINE)
        assert len(fences) == 2 * len(blocks(page)), f"{page}: a block without a language, or one that does not end"
    assert {block.language for block in BLOCKS} <= {"bash", "python", "text"}


FIRST = [ROOT / "README.md", ROOT / "docs" / "quickstart.md"]  # what everybody types


def test_code_of_the_first_pages_runs(tmp_path: Path) -> None:
    run_in_order([block for block in RUN if block.page in FIRST], tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1200)  # half a minute of CPU, and a busy machine gives a fraction of one
def test_code_of_the_pages_runs_in_the_order_of_the_pages(tmp_path: Path) -> None:
    run_in_order(RUN, tmp_path)


def run_in_order(chosen: list[Block], tmp_path: Path) -> None:
    """As a newcomer runs it, in one folder. Python blocks share one process; `# file: NAME` is the file to save as."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "dice").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -m dice "$@"\n')
    (folder / "dice").chmod(0o755)
    (tmp_path / "blocks.json").write_text(
        json.dumps(
            [{"place": one.place, "language": one.language, "text": one.text, "code": one.code} for one in chosen]
        )
    )
    environment = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", _RUNNER], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


_RUNNER = """
import json, subprocess, time
from pathlib import Path
for block in json.loads(Path("blocks.json").read_text()):
    print("##", block["place"], f"{time.process_time():.1f} s of CPU", flush=True)
    text = block["text"]
    if block["language"] == "bash":
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", text])
        assert done.returncode == block["code"], done.returncode
    elif text.startswith("# file: "):
        Path(text.splitlines()[0].removeprefix("# file: ")).write_text(text)
    else:
        exec(compile(text, block["place"], "exec"), {"__name__": "__main__"})
"""


@pytest.mark.parametrize("block", SHELL, ids=lambda block: block.place)
def test_shell_blocks_call_what_there_is(block: Block) -> None:
    """Commands exist, and take the flags that they are given."""
    for words in commands(block.text):
        if words[0] == "torchrun":
            assert words[words.index("-m") + 1] == "dice", words
            words = words[words.index("-m") + 1 :]
        if words[0].endswith("dice"):
            unknown = {word.split("=")[0] for word in words if re.match(r"--?[a-z]", word)} - flags(
                subcommand(words[1:])
            )
            assert not unknown, f"{block.place}: dice {' '.join(words[1:3])} takes no {', '.join(sorted(unknown))}"
        elif words[0] == "make":
            assert all(f"\n{target}:" in (ROOT / "Makefile").read_text() for target in words[1:]), words
        elif words[0] in ("bash", "python"):
            assert (ROOT / words[1]).exists(), words
        else:
            assert words[0] in {"test", "systemd-run", "git", "cd"}, f"{block.place}: what is {words[0]}?"


def commands(text: str) -> list[list[str]]:
    """The commands of a shell block, as words, comments left out."""
    found: list[list[str]] = []
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;>")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in lexer:
            if re.fullmatch(r"[|&;>]+", word):
                found.append(words)
                words = [] if word != ">" else ["test"]
            else:
                words.append(word)
        found.append(words)
    return [words for words in found if words]


def subcommand(words: list[str]) -> tuple[str, ...]:
    """`("data", "synth")` of `data synth --out ...`, with the recipe, on which the flags of training depend."""
    names = tuple(words[: 2 if words[0] in ("data", "train", "bench") else 1])
    recipe = ("--recipe", words[words.index("--recipe") + 1]) if "--recipe" in words else ()
    return names + recipe


@functools.cache
def flags(names: tuple[str, ...]) -> set[str]:
    """The flags that `dice NAMES --help` shows."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        main([*names, "--help"])
    assert "usage" in shown.getvalue(), f"there is no dice {' '.join(names)}"
    return {"-h", "--help", *re.findall(r"(?<![\w-])--?[a-z][\w.-]*", shown.getvalue())}


def test_a_flag_that_no_command_takes_is_found() -> None:
    assert "--scale" in flags(("verify",)) and "-o" in flags(("generate",)) and "--no-timing" in flags(("verify",))
    assert "--scales" not in flags(("verify",))


# Links


def headings(page: Path) -> set[str]:
    """Anchors of a page, as GitHub and mkdocs make them of headings."""
    titles = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.MULTILINE)
    plain = (re.sub(r"[^\w\s-]", "", title.lower()).strip() for title in titles)
    return {re.sub(r"[\s]+", "-", title) for title in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target, anchor in re.findall(r"\]\(([^)\s#]*)(?:#([^)\s]*))?\)", text):
        if ":" in target:
            continue
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), f"{target} is not there"
        assert not anchor or anchor in headings(file), f"{target} has no heading #{anchor}"


def test_the_site_builds(tmp_path: Path) -> None:
    """mkdocs finds no dead link or anchor, and every docstring that the API page asks for."""
    pytest.importorskip("mkdocstrings", reason="the extra `docs` is not installed: make docs does")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "dice generate" in (tmp_path / "index.html").read_text()


# Pages and pictures that are made from something else


def test_figures_are_those_of_the_rows() -> None:
    """Or run python docs/tools/results.py."""
    for page in results.PAGES:
        assert page.read_text() == results.filled(page)
    used = {name for page in results.PAGES for name in re.findall(r"<!-- results: (\w+) -->", page.read_text())}
    assert used == set(results.PARTS)


def test_recipes_stand_beside_the_papers_as_they_are() -> None:
    """Or run python docs/tools/recipes.py. A difference without its row, or a row without a difference, raises."""
    assert recipes.PAGE.read_text() == recipes.filled()
    assert "`rl.protocol` | compiles and runs equivalently" in recipes.table()


@pytest.mark.parametrize("room", imports.PICTURES)
def test_pictures_of_imports_are_those_of_the_code(room: str) -> None:
    """Or run python docs/tools/imports.py."""
    assert (imports.IMAGES / f"{imports.PICTURES[room]}.svg").read_text() == imports.picture(room)


@pytest.mark.parametrize("room", imports.PICTURES)
def test_no_circle_of_imports(room: str) -> None:
    """Without a circle every arrow points downwards: each place stands above all that it imports."""
    assert imports.circles(imports.graph(room)) == []
    floors = imports.floors(imports.graph(room))
    assert all(floors[place] > floors[below] for place, others in imports.graph(room).items() for below in others)


def test_a_circle_is_found_and_drawn() -> None:
    graph = {"a": {"b", "c"}, "b": {"c"}, "c": {"b"}, "d": {"a", "b"}}
    assert imports.circles(graph) == [["b", "c"]]
    assert ("d", "b", False) not in imports.arrows(graph), "it follows from d -> a -> b"
    assert "#d62728" in imports.Drawing(graph).svg("circle", {})


@pytest.mark.parametrize("room", imports.PICTURES)
def test_every_place_of_a_picture_is_explained(room: str) -> None:
    named = set(re.findall(r"`(\w+)`", (ROOT / "docs" / "architecture.md").read_text()))
    assert not set(imports.graph(room)) - named - {"__init__", "__main__"}


def test_the_verifier_can_be_surveyed() -> None:
    assert len(imports.graph("dice/verify")) <= MOST_VERIFY_ROOMS


def test_the_first_page_is_short() -> None:
    readme = (ROOT / "README.md").read_text()
    assert len(readme.splitlines()) <= 150
    assert not re.search(r"\b(?:proven?|proves|proving)\b", readme)


def test_the_moving_picture_moves_and_is_small() -> None:
    picture = ROOT / "docs" / "images" / "panel.svg"
    assert picture.stat().st_size < 1_000_000
    assert picture.read_text().count("<animate ") > 20


# The paper


def test_every_row_of_the_paper_says_how_it_stands_and_what_holds_it() -> None:
    text = (ROOT / "docs/paper.md").read_text()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:2] == "| "][1:]
    assert len(rows) > 40
    for paper, here, standing, tests in rows:
        assert standing in ("exact", "ours", "numbers"), (paper, here)
        files = re.findall(r"`([^`]+)`", tests)
        assert files and all((ROOT / name).is_file() for name in files), (paper, tests)
    recipes_named = {name for row in rows for name in re.findall(r"`((?:paper|dice)_\w+)`", row[1])}
    assert recipes_named == {name for name in {**SFT_RECIPES, **RL_RECIPES} if name.startswith(("paper_", "dice_"))}


PAPER_COMMANDS = re.findall(r"`(dice [a-z][^`]*)`", (ROOT / "docs/paper.md").read_text())


@pytest.mark.parametrize("command", PAPER_COMMANDS)
def test_what_the_paper_is_by_name_can_be_asked_for(command: str) -> None:
    words = command.split()
    unknown = {word for word in words if word.startswith("--")} - flags(subcommand(words[1:]))
    assert not unknown, command
