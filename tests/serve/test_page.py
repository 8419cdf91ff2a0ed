"""The playground in a real Chromium: from a module to a verified kernel, lines rewritten, exported and replayed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from serve_helpers import Running

from dice.serve.page import examples
from tests.conftest import PATIENCE_S, ROOT

pytestmark = pytest.mark.xdist_group("serve")  # they share one server

STATIC = ROOT / "dice" / "serve" / "static"
MOST_BYTES = 200_000


def chromium() -> str:
    found = os.environ.get("DICE_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if not found:
        pytest.skip("there is no Chromium; DICE_CHROMIUM names one")
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield started
        started.close()


def faults(page: Any) -> list[str]:
    """What keeps people from using what is shown; and what axe-core, where DICE_AXE names its file, finds serious."""
    found = [*page.evaluate(ACCESSIBLE), *page.evaluate(CONTRAST)]
    if axe := os.environ.get("DICE_AXE"):
        page.evaluate(Path(axe).read_text(encoding="utf-8"))
        told = page.evaluate("async () => (await axe.run()).violations")
        serious = [one for one in told if one["impact"] in ("serious", "critical")]
        found += [f"{one['id']}: {node['html']}" for one in serious for node in one["nodes"]]
    return found


class Visit:
    """A page that was opened, and what went wrong in it."""

    def __init__(self, browser: Any, url: str, **more: Any) -> None:
        self.context = browser.new_context(accept_downloads=True, **more)
        self.page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE_S * 1000)
        self.faults: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda said: self.faults.append(said.text) if said.type == "error" else None)
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(url)

    def wait(self, condition: str) -> None:
        self.page.wait_for_function(condition, timeout=PATIENCE_S * 1000)


# What assistive software needs of every page: names of controls, labels of fields, one main part, ids that differ.
ACCESSIBLE = """() => {
  const faults = [];
  const named = (one) => (one.getAttribute("aria-label") || one.textContent || one.title || "").trim();
  for (const one of document.querySelectorAll("button")) if (!one.disabled && !named(one)) faults.push(one.outerHTML);
  for (const one of document.querySelectorAll("input, select, textarea"))
    if (!one.getAttribute("aria-label") && !one.labels.length) faults.push(one.outerHTML);
  for (const one of ["main", "h1"]) if (document.querySelectorAll(one).length !== 1) faults.push(one);
  if (!document.documentElement.lang || !document.title) faults.push("lang");
  const ids = [...document.querySelectorAll("[id]")].map((one) => one.id);
  if (new Set(ids).size !== ids.length) faults.push("ids");
  for (const one of document.querySelectorAll("img:not([alt])")) faults.push(one.outerHTML);
  return faults;
}"""

# The contrast of every text that is shown, as WCAG counts it: at least 4.5, but masks are no text.
CONTRAST = """() => {
  const channel = (value) => (value /= 255) <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const behind = (one) => {
    for (let at = one; at; at = at.parentElement) {
      const color = rgb(getComputedStyle(at).backgroundColor);
      if (color.length === 3 || color[3] > 0) return color;
    }
    return [255, 255, 255];
  };
  const faults = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const one = walker.currentNode.parentElement;
    const text = walker.currentNode.textContent.trim().slice(0, 30);
    if (!text || one.closest(".mask, .dots, :disabled, option, script") || !one.offsetParent) continue;
    const [a, b] = [light(rgb(getComputedStyle(one).color)), light(behind(one))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) faults.push(`${ratio.toFixed(2)} ${one.className} ${text}`);
  }
  return [...new Set(faults)];
}"""


@pytest.mark.slow
def test_from_a_module_to_a_verified_kernel_and_its_replay(server: Running, browser: Any, tmp_path: Path) -> None:
    """Three kernels are compiled and run."""
    visit = Visit(browser, server.url, color_scheme="dark")
    page = visit.page
    page.wait_for_selector("#example option", state="attached")
    assert page.locator("html").get_attribute("data-theme") == "dark" and faults(page) == []
    page.locator("#example").select_option("row_mean")
    assert "torch.mean" in page.locator("#module").input_value()
    page.locator("#go").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(".card .new")  # it is seen denoising
    assert page.locator(".card .mask").count() > 0 and faults(page) == []
    page.wait_for_selector(".outcome.good")  # compiled, run and checked
    assert page.locator(".stages .done").count() >= 5
    visit.wait("() => document.querySelector('.card .facts').textContent.includes('forwards')")
    visit.wait("() => document.querySelector('.tools button') !== null")
    whole = page.locator(".lines").inner_text()
    page.locator('[aria-label="One step back"]').click()
    assert page.locator(".card .facts").inner_text().split("step ")[1].split(" of ")[0] != ""
    assert page.locator(".lines").inner_text() != whole
    page.locator('[aria-label="One step forward"]').click()
    assert page.locator(".lines").inner_text() == whole
    assert faults(page) == []

    page.locator('[aria-label="Mask line 2 again"]').focus()
    page.keyboard.press("Enter")
    assert page.locator(".line.marked").count() == 1 and faults(page) == []
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Mask line 2 again"
    page.locator("button.rewrite").click()
    visit.wait(
        "() => document.querySelectorAll('.card').length === 2 && document.querySelectorAll('.outcome').length === 2"
    )
    visit.wait("() => !document.querySelector('#go').disabled")
    assert "line rewritten" in page.locator(".card h2").nth(1).inner_text()

    with page.expect_download() as download:
        page.locator("#export").click()
    exported = tmp_path / "dice.html"
    download.value.save_as(exported)
    page.locator("#theme").click()
    assert page.locator("html").get_attribute("data-theme") == "light" and faults(page) == []
    assert visit.faults == [] and all(url.startswith((server.url, "blob:")) for url in visit.asked)

    replay = Visit(browser, exported.as_uri(), offline=True)
    assert replay.page.locator(".card").count() == 2 and replay.page.locator(".outcome").count() == 2
    assert replay.page.locator(".lines").first.inner_text() == whole
    replay.page.locator('[aria-label="Denoising step"]').first.fill("3")
    assert replay.page.locator(".card").first.locator(".mask").count() > 0
    assert replay.faults == [] and faults(replay.page) == []


VERDICT = {
    "outcome": "correct", "correct": True, "message": "", "errors": [], "deceptions": [],
    "launches": {"region_kernel": 5},
    "max_abs_error": 1e-6, "max_rel_error": 1e-6, "tolerance": "1e-4", "trials": 5, "trials_passed": 5, "timing": None,
    "no_timing": "emulation says nothing about speed on a GPU", "backend": "emulated", "toolchain": "g++",
    "provenance": "",
}  # fmt: skip
REGIONS = [
    {"key": "a", "title": "linear, relu <b>", "kind": "product", "places": 2, "share": 0.6},
    {"key": "b", "title": "softmax", "kind": "softmax", "places": 1, "share": 0.4},
]
MODULE = "import torch\n\n\nclass ModelNew(torch.nn.Module):  # </script>\n    pass\n"
RUN: list[dict[str, Any]] = [
    {"type": "stage", "stage": "wait"},
    {"type": "stage", "stage": "following forward"},
    {"type": "graph", "regions": REGIONS, "reason": ""},
    {"type": "region_begun", "region": "a"},
    {"type": "candidate", "region": "a", "writer": "templates", "verdict": VERDICT, "why": ""},
    {"type": "candidate", "region": "b", "writer": "templates", "verdict": VERDICT, "why": "no rule fits"},
    {"type": "region_done", "region": "a", "writer": "templates", "why": ""},
    {"type": "region_done", "region": "b", "writer": "", "why": "no rule fits"},
    {"type": "stage", "stage": "checking the whole module"},
    {"type": "composed", "regions": ["a"], "verdict": VERDICT},
    {
        "type": "result",
        "kernel": MODULE,
        "report": {
            "seconds": 3.0,
            "verdict": VERDICT,
            "regions": [
                REGIONS[0] | {"writer": "templates", "replaced": True, "why": "", "speedup": None},
                REGIONS[1] | {"writer": "", "replaced": False, "why": "no rule fits", "speedup": None},
            ],
        },
    },
]


def streamed(events: list[dict[str, Any]]) -> str:
    return "".join(f"event: dice.{one['type']}\ndata: {json.dumps(one)}\n\n" for one in events) + "data: [DONE]\n\n"


def test_a_run_is_followed_with_the_keyboard_and_exported(server: Running, browser: Any, tmp_path: Path) -> None:
    """What `/v1/optimize` tells, which takes minutes, comes from here; the forms are those of test_optimize."""
    visit = Visit(browser, server.url, color_scheme="dark", viewport={"width": 1280, "height": 800})
    page = visit.page
    asked: list[dict[str, Any]] = []

    def answer(route: Any) -> None:
        asked.append(json.loads(route.request.post_data))
        route.fulfill(status=200, content_type="text/event-stream", body=streamed(RUN))

    page.route("**/v1/optimize", answer)
    page.wait_for_selector("#example option", state="attached")
    page.locator("#example").select_option("small_network")
    page.locator("#writers").select_option("templates,model")
    page.locator("#optimize").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(".run .module")
    assert asked == [{"problem": page.locator("#module").input_value(), "writers": ["templates", "model"]}]
    rows = page.locator(".regions tbody tr")
    assert rows.count() == 2 and page.locator(".regions b").count() == 0
    assert rows.nth(0).inner_text().split("\t") == ["linear, relu <b>", "60.0 %", "2", "correct", "kernel by templates"]
    assert rows.nth(1).inner_text().split("\t")[3:] == ["none written", "no rule fits"]
    assert page.locator(".run .module").text_content() == MODULE
    assert page.locator(".run .stages .done").count() == 5
    assert page.locator("#status").inner_text() == "1 of 2 regions replaced in 3 s."
    assert faults(page) == []
    with page.expect_download() as download:
        page.get_by_role("button", name="Save module").click()
    assert Path(download.value.path()).read_text() == MODULE and download.value.suggested_filename.endswith(".py")
    with page.expect_download() as download:
        page.locator("#export").click()
    exported = tmp_path / "run.html"
    download.value.save_as(exported)
    for width in (768, 375):
        page.set_viewport_size({"width": width, "height": 720})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert faults(page) == [] and visit.faults == []
    replay = Visit(browser, exported.as_uri(), offline=True)
    assert replay.page.locator(".run .module").text_content() == MODULE
    assert replay.page.locator(".regions tbody tr").count() == 2 and replay.page.locator(".run button").count() == 0
    assert replay.faults == [] and faults(replay.page) == []


def answering(told: dict[str, Any]) -> Callable[[Any], None]:
    return lambda route: route.fulfill(**told)


def test_a_run_that_fails_says_why(server: Running, browser: Any) -> None:
    refused = json.dumps({"error": {"message": "Too many optimizations are waiting."}})
    failed = [*RUN[:3], {"type": "error", "error": {"message": "It cannot run."}}]
    visit = Visit(browser, server.url)
    visit.page.wait_for_selector("#example option", state="attached")
    for kind, body, said in (
        ("application/json", refused, "Too many"),
        ("text/event-stream", streamed(failed), "It cannot run."),
        ("text/event-stream", streamed(RUN[:3]).removesuffix("data: [DONE]\n\n"), "before its result"),
        ("text/event-stream", streamed([*RUN[:3], RUN[-1] | {"kernel": None}]), "Nothing was replaced"),
    ):
        told = {"status": 429 if body is refused else 200, "content_type": kind, "body": body}
        visit.page.route("**/v1/optimize", answering(told), times=1)
        visit.page.locator("#optimize").click()
        visit.page.get_by_text(said).wait_for()
        visit.wait("() => !document.querySelector('#optimize').disabled")
        assert faults(visit.page) == []


def written(end: bool) -> str:
    """A text of two blocks of two tokens, or all but its end, as the server streams it."""
    tokens: list[dict[str, Any]] = [
        {
            "type": "start", "index": 0, "prompt_ids": [5], "length": 4, "given": [], "block_size": 2,
            "mask_token_id": 3, "strategy": "sequential", "mode": "greedy",
        },
        *(
            {
                "type": "reveal", "index": 0, "step": step, "block": step, "positions": [2 * step, 2 * step + 1],
                "tokens": [7, 8], "texts": [f"line{step}", "\n"], "logprobs": [0.0, 0.0],
            }
            for step in range(2)
        ),
        {"type": "trace", "index": 0, "count": 4, "kept": 4, "forwards": 2, "stop_reason": "length"},
    ]  # fmt: skip
    told = tokens if end else tokens[:2]
    return "".join(f"data: {json.dumps({'choices': [], 'dice': one})}\n\n" for one in told)


def test_a_text_whose_server_is_gone_or_that_is_stopped_says_so(server: Running, browser: Any) -> None:
    visit = Visit(browser, server.url)
    page = visit.page
    page.wait_for_selector("#example option", state="attached")
    begun = {"status": 200, "content_type": "text/event-stream", "body": written(False)}
    for handle, said in (
        (answering(begun), "It was not finished"),
        (lambda route: route.abort("connectionrefused"), "The server cannot be reached."),
    ):
        page.route("**/v1/chat/completions", handle, times=1)
        page.locator("#go").click()
        page.get_by_text(said).first.wait_for()
        assert "denoising" not in page.locator(".card .facts").inner_text() and faults(page) == []
        visit.wait("() => !document.querySelector('#go').disabled")
    page.route("**/v1/chat/completions", lambda route: None, times=1)  # it never answers
    page.locator("#go").click()
    page.locator("#stop").click()
    page.get_by_text("Stopped.").wait_for()


def test_less_motion_and_the_place_of_the_keyboard(server: Running, browser: Any) -> None:
    """Who wants no motion sees what is there; and the focus stays where it was when the verdict arrives."""
    visit = Visit(browser, server.url, reduced_motion="reduce")
    page = visit.page
    held: list[Any] = []
    whole = {"status": 200, "content_type": "text/event-stream", "body": written(True)}
    page.route("**/v1/chat/completions", answering(whole))
    page.route("**/v1/verify", lambda route: held.append(route))
    page.wait_for_selector("#example option", state="attached")
    page.evaluate("window.drawn = []; const go = Card.prototype.draw;"
                  "Card.prototype.draw = function () { drawn.push(this.step); go.call(this); }; null")  # fmt: skip
    page.locator("#go").click()
    line = page.locator('[aria-label="Mask line 2 again"]')
    line.focus()
    assert page.evaluate("drawn.includes(1)") is False
    verdict = VERDICT | {"outcome": "wrong", "correct": False, "errors": ["line 1: it is wrong"]}
    judged = {"type": "verdict", "verdict": verdict, "kernel": None, "roofline_share": None}
    held[0].fulfill(status=200, content_type="text/event-stream", body=streamed([judged]))
    page.wait_for_selector(".line.failing")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Mask line 2 again"
    page.get_by_role("button", name="Mark failing lines").press("Enter")
    assert page.evaluate("document.activeElement.textContent") == "Rewrite 1 marked line"
    page.locator('[aria-label="Play"]').click()
    visit.wait("() => drawn.includes(1)")
    assert faults(page) == [] and visit.faults == []


def test_two_samples_stand_side_by_side_and_masks_stay_in_sight(server: Running, browser: Any) -> None:
    visit = Visit(browser, server.url, viewport={"width": 1280, "height": 800})
    page = visit.page
    page.wait_for_selector("#example option", state="attached")
    page.locator("#count").select_option("2")
    page.locator("#go").click()
    page.wait_for_selector(".card .mask")
    first, second = (page.locator(".card").nth(index).bounding_box() for index in range(2))
    assert first["y"] == second["y"] and second["x"] > first["x"]
    page.wait_for_selector(".line.masked")
    assert page.evaluate(
        "[...document.querySelectorAll('.line.masked')].every((one) => one.scrollWidth <= one.parentNode.clientWidth)"
    )
    page.locator("#stop").click()
    assert visit.faults == []
    server.wait_idle()


def test_a_phone_shows_it_and_trouble_is_said(server: Running, browser: Any) -> None:
    visit = Visit(browser, server.url, viewport={"width": 360, "height": 700}, color_scheme="light")
    page = visit.page
    page.wait_for_selector("#example option", state="attached")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.locator("#module").fill("x = 1  # </script><b>not a module")
    assert page.locator("#example").input_value() == ""
    page.locator("#count").select_option("2")
    assert page.locator("#temperature").input_value() == "0.7"
    page.locator("#go").click()
    page.wait_for_selector(".card .new, .card .block")
    page.locator("#stop").click()
    visit.wait("() => document.querySelector('#stop').disabled")
    assert page.locator(".card").count() == 2 and page.locator(".card b").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert faults(page) == [] and visit.faults == []
    server.wait_idle()


def test_the_page_is_small_and_asks_nobody_else(server: Running) -> None:
    files = [path for path in STATIC.iterdir() if path.is_file()]
    assert sum(path.stat().st_size for path in files) < MOST_BYTES
    for path in files:
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text and "https://" not in text and "innerHTML =" not in text
        answer = httpx.get(f"{server.url}/static/{path.name}", timeout=PATIENCE_S)
        assert answer.content == path.read_bytes() and "charset=utf-8" in answer.headers["content-type"]
    for name in ("..%2fpage.py", "%2e%2e/page.py", "none.js", "index.html/"):
        assert httpx.get(f"{server.url}/static/{name}", timeout=PATIENCE_S).status_code == 404


def test_the_examples_are_problems() -> None:
    problems = examples()
    assert problems[0].name == "softmax" and len(problems) >= 4
    assert all(problem.check() is problem for problem in problems)
