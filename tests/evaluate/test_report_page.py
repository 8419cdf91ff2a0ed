"""The page: parsed, measured, and opened in a real browser where there is one."""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from made_runs import CASES, TASKS, VERDICTS, make_run, make_traced_run, own_tasks

from dice.cli import main
from dice.evaluate.report import gather
from dice.evaluate.run_folder import Generation, Judgement, RunFolder, Task

pytest.importorskip("matplotlib")
from dice.evaluate.report.page import render  # noqa: E402

pytestmark = pytest.mark.xdist_group("page")
VOID = {"meta", "input", "br", "wbr", "path", "use", "rect", "img"}


class Page(HTMLParser):
    """Tags must nest; ids must differ."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open and self.open.pop() == tag, f"</{tag}> closes something else"


def details(page: str) -> dict[str, Any]:
    packed = re.search(r'id="details">([^<]*)<', page)
    assert packed
    return dict(json.loads(gzip.decompress(base64.b64decode(packed[1]))))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    make_run(folder / "made")
    make_traced_run(folder / "traced")
    path = folder / "report.html"
    path.write_text(render(gather([folder / "made", folder / "traced"])), encoding="utf-8")
    return path


def test_it_is_well_formed_and_asks_for_nothing(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    parsed = Page(text)
    assert not parsed.open
    assert [name for name, count in Counter(parsed.ids).items() if count > 1] == []
    assert parsed.addresses and all(address.startswith("#") for address in parsed.addresses)
    assert "default-src 'none'" in text
    assert parsed.tags["figure"] >= 4


def test_it_starts_with_the_users_answers(tmp_path: Path) -> None:
    """Of one's own problems: no benchmark's name, no level that there is not, no column that says the same of all."""
    make_run(tmp_path / "run_of_mine", tasks=own_tasks(), model="nano")
    text = render(gather([tmp_path / "run_of_mine"]))
    assert re.search(r"<h1>nano on 5 problems</h1>", text) and "KernelBench" not in text
    places = [text.index(f'<section id="{name}"') for name in ("answers-section", "results", "figures", "failures")]
    assert places == sorted(places)
    heads = re.findall(r"<th [^>]*>(?:<button[^>]*>)?([^<]*)", text[places[0] : places[1]])
    assert heads == ["problem", "family", "dice", "kernelbench", "speed-up", "tokens", "why"]
    assert "run_of_mine" not in text and "1 correct under dice" in text


def test_it_holds_every_answer(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.count("<tr data-index=") == 6
    found = details(text)
    kernel = (CASES / "right_relu.py").read_text()
    assert found["answers"][0]["kernel"][0] == kernel and found["answers"][4]["kernel"] is None
    sources = [reference for reference, _ in found["references"]]
    assert sources == [task.source for task in TASKS]
    assert found["answers"][0]["timing"][1][:2] == ["kernel, 2.50x", "kernel"]
    assert dict(found["answers"][1]["verdicts"]["dice"])["verdict"] == "compile error"
    assert len(found["answers"][5]["trace"]["texts"]) == len(found["answers"][5]["trace"]["steps"])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of KernelBench: 250 problems with kernels of 4 KB that share little text, under two protocols."""
    path = tmp_path_factory.mktemp("whole")
    folder = RunFolder(path / "run")
    tasks = [
        Task(f"level{level}/{n}_Made", level, n, f"{n}_Made", f"# {level} {n}\n" + TASKS[0].source * 4)
        for level, count in ((1, 100), (2, 100), (3, 50))
        for n in range(1, count + 1)
    ]
    folder.begin({"model": "made", "samples": 1, "row": ""}, tasks)
    for index, task in enumerate(tasks):
        lines = [f"    float v{i} = x[{(index * 7919 + i * 104729) % 99991}];  // {i}" for i in range(100)]
        text = 's = """\n__global__ void k(float* x) {\n' + "\n".join(lines)[:4000] + '\n}\n"""\n'
        folder.add_generation(Generation(task.key, 0, "", text, "end"))
        for protocol in ("dice", "kernelbench"):
            folder.add_judgement(protocol, Judgement(task.key, 0, VERDICTS["dice"][index % 5]))
    (path / "report.html").write_text(render(gather([folder.path])), encoding="utf-8")
    return path / "report.html"


def test_it_can_be_passed_on_without_the_problems_own_files(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    source = TASKS[0].source
    for extra, expected in (([], source), (["--no-references"], f"# {TASKS[0].key} is left out of this report.\n")):
        assert main(["report", str(tmp_path / "run"), "-o", str(tmp_path / "page"), "--format", "html", *extra]) == 0
        page = (tmp_path / "page" / "report.html").read_text()
        told = details(page)
        assert told["references"][told["answers"][0]["reference"]][0] == expected


def test_it_is_small_for_all_of_kernelbench(whole: Path) -> None:
    assert whole.stat().st_size < 5_000_000


def browser_path() -> str | None:
    """$DICE_CHROMIUM, else one on the path; None: playwright's own."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return os.environ.get("DICE_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright to open the page in a browser")
    with playwright.sync_playwright() as started:
        path = browser_path()
        if path is None and not Path(started.chromium.executable_path).exists():
            pytest.skip("needs a Chromium: none in $DICE_CHROMIUM, on the path or in playwright's folder")
        found = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield found
        found.close()


def open_offline(browser: Any, page: Path) -> tuple[Any, list[str]]:
    """The page from disk, without a network, and what it complains of or asks for from then on."""
    tab, complaints = browser.new_context(offline=True).new_page(), list[str]()
    tab.set_default_timeout(8000)
    tab.on("console", lambda message: complaints.append(message.text))
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.on("request", lambda request: None if request.url.startswith("file:") else complaints.append(request.url))
    tab.goto(page.as_uri())
    return tab, complaints


@pytest.fixture(scope="module")
def opened(browser: Any, page: Path) -> tuple[Any, list[str]]:
    return open_offline(browser, page)


def test_a_browser_works_with_all_of_kernelbench(browser: Any, whole: Path) -> None:
    tab, complaints = open_offline(browser, whole)
    assert tab.locator("#shown").inner_text() == "250 of 250 answers"
    tab.get_by_role("button", name="problem", exact=True).click()
    rising = shown(tab)
    assert rising[:2] == ["level1/1_Made", "level1/2_Made"] and rising[-1] == "level3/50_Made"
    tab.get_by_role("button", name="problem", exact=True).click()
    assert shown(tab) == rising[::-1]
    tab.get_by_label("level", exact=True).select_option("3")
    assert tab.locator("#shown").inner_text() == "50 of 250 answers"
    tab.get_by_label("dice", exact=True).select_option("correct")
    assert len(shown(tab)) == 10
    tab.locator("#search").fill("46_Made")
    tab.get_by_role("button", name="level3/46_Made").click()
    kernel = tab.locator("dialog[open] pre").nth(1)
    kernel.wait_for()
    assert "__global__ void k(float* x)" in kernel.inner_text() and kernel.inner_text().count("\n") > 90
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing sticks out sideways"
    tab.context.close()
    assert complaints == []


def shown(tab: Any) -> list[str]:
    return list(tab.locator("#answers tbody tr:not([hidden]) td:first-child").all_inner_texts())


def test_a_browser_sorts_and_filters(opened: tuple[Any, list[str]]) -> None:
    tab, complaints = opened
    assert tab.locator("#shown").inner_text() == "6 of 6 answers"
    heading = tab.get_by_role("button", name="problem", exact=True)
    heading.click()
    rising = shown(tab)
    assert rising == sorted(rising, key=lambda text: [int(p) if p.isdigit() else p for p in re.split(r"(\d+)", text)])
    heading.press("Enter")  # by keyboard
    assert shown(tab) == rising[::-1]
    tab.get_by_role("button", name="speed-up", exact=True).click()
    tab.get_by_role("button", name="speed-up", exact=True).click()
    assert shown(tab)[0] == "level1/19_ReLU"
    tab.get_by_label("kernelbench", exact=True).select_option("correct")
    assert sorted(shown(tab)) == ["level1/19_ReLU", "level2/9_Matmul_Subtract_Multiply_ReLU"]
    tab.locator("#search").fill("never_invoked")
    assert shown(tab) == ["level2/9_Matmul_Subtract_Multiply_ReLU"]
    assert tab.locator("#shown").inner_text() == "1 of 6 answers"
    tab.get_by_role("button", name="Reset").click()
    assert len(shown(tab)) == 6
    assert complaints == []


def test_a_browser_shows_a_kernel_and_its_denoising(opened: tuple[Any, list[str]]) -> None:
    tab, complaints = opened
    tab.locator("body").press("/")
    assert tab.evaluate("document.activeElement.id") == "search"
    tab.locator("#search").fill("47_Sum_reduction_over_a_dimension")
    tab.get_by_role("button", name="level1/47_Sum_reduction_over_a_dimension").press("Enter")
    dialog = tab.locator("dialog[open]")
    dialog.locator("pre").nth(1).wait_for()
    assert dialog.locator("pre").nth(0).inner_text() == TASKS[1].source
    assert dialog.locator("pre").nth(1).inner_text() == (CASES / "right_relu.py").read_text()
    assert "second line" in dialog.inner_text()
    tab.keyboard.press("Escape")
    assert tab.locator("dialog[open]").count() == 0
    tab.get_by_role("button", name="Reset").click()
    tab.locator("#answers tbody tr[data-index='5'] button").click()
    slider = dialog.locator("input[type=range]")
    slider.wait_for()
    picture = dialog.locator("pre").nth(2)
    assert picture.inner_text().startswith("class ModelNew(nn.Module):")
    slider.fill("0")
    assert "class" not in picture.inner_text()
    slider.fill("1")
    assert picture.inner_text().startswith("class")
    tab.keyboard.press("Escape")
    assert complaints == []


def test_a_browser_shows_text_as_text(opened: tuple[Any, list[str]]) -> None:
    """A reference that holds markup stays a reference."""
    tab, complaints = opened
    tab.locator("#answers tbody tr[data-index='4'] button").click()
    dialog = tab.locator("dialog[open]")
    dialog.locator("pre").first.wait_for()
    assert "</script><b>&amp;" in dialog.locator("pre").first.inner_text()
    assert "No kernel was found" in dialog.inner_text()
    tab.keyboard.press("Escape")
    assert complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(opened: tuple[Any, list[str]], scheme: str) -> None:
    tab, _ = opened
    tab.emulate_media(color_scheme=scheme)
    colours = tab.evaluate("[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]")
    text, ground = (sum(map(int, re.findall(r"\d+", colour)[:3])) / 765 for colour in colours)
    assert abs(text - ground) > 0.7 and (text > ground) == (scheme == "dark")
    assert tab.evaluate("getComputedStyle(document.querySelector('figure svg text')).fill") == colours[0]
