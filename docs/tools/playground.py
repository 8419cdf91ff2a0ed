"""The pictures of the page in docs/serve.md: what a Chromium shows of a running server with the shipped model.

dice serve --port 8000
python docs/tools/playground.py http://127.0.0.1:8000 docs/images

`DICE_CHROMIUM` names the browser where it is not on the path. A second argument of `WIDTHxHEIGHT`s and schemes, such as
`375x720 768x900 dark`, takes each picture at these sizes, with names that say so; for looking at, not for the docs.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

PATIENCE_MS = 600_000
SIZE = (1280, 800)
COLOURS = 256


def empty(page: Any) -> None:
    """As it opens."""
    page.wait_for_selector("#example option", state="attached")


def denoising(page: Any) -> None:
    page.locator("#go").click()
    page.wait_for_function(
        "() => document.querySelectorAll('.card .new').length && document.querySelector('.lines').children.length > 12"
    )


def verdicts(page: Any) -> None:
    page.locator("#example").select_option("row_mean")
    page.locator("#count").select_option("2")
    page.locator("#go").click()
    page.wait_for_function("() => document.querySelectorAll('.outcome').length === 2", timeout=PATIENCE_MS)
    page.wait_for_function("() => document.querySelectorAll('.tools button').length >= 2", timeout=PATIENCE_MS)


def optimized(page: Any) -> None:
    page.locator("#example").select_option("small_network")
    page.locator("#optimize").click()
    page.wait_for_function("() => !document.querySelector('.module').hidden", timeout=PATIENCE_MS)


SCENES: dict[str, Callable[[Any], None]] = {"denoising": denoising, "verdicts": verdicts, "optimized": optimized}


def main(url: str, folder: Path, *wanted: str) -> None:
    executable = os.environ.get("DICE_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    sizes = [tuple(map(int, one.split("x"))) for one in wanted if "x" in one] or [SIZE]
    scheme: Any = "dark" if "dark" in wanted else "light"
    scenes = {"empty": empty, **SCENES} if wanted else SCENES
    scenes = {name: scene for name, scene in scenes.items() if name in wanted} or scenes
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        for name, scene in scenes.items():
            page = browser.new_page(color_scheme=scheme)
            page.goto(url)
            scene(page)
            for width, height in sizes:
                page.set_viewport_size({"width": width, "height": height})
                page.wait_for_timeout(200)
                end = f"_{width}_{scheme}" if wanted else ""
                path = folder / f"playground_{name}{end}.png"
                page.screenshot(path=path, full_page=name != "denoising")
                shrink(path)
        browser.close()


def shrink(path: Path) -> None:
    """A third of the size, and no difference that is seen: the page has few colours, and the shades of its letters can
    share some."""
    with Image.open(path) as shot:
        few = shot.convert("RGB").quantize(COLOURS, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    few.save(path, optimize=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
