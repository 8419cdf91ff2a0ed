"""The site's view of the repository, as a hook of mkdocs: pages link to files outside docs/, and those come along.

README.md is the front page. Any other file that a page links to appears under its own path, Markdown as a page below
repository/, the rest as it is below files/; a linked folder becomes plain text. So a link works on the site where it
works in a checkout, and one that leads nowhere ends `mkdocs build --strict`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FRONT = "index.md"
LINK = re.compile(r"(?P<text>!?\[(?:[^\[\]]|\[[^\]]*\])*\])\((?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def on_files(files: Files, config: Any) -> Files:
    """Add the front page, and whatever is linked from there or from any page, and so on."""
    pages = [ROOT / "README.md", *(DOCS / file.src_uri for file in files.documentation_pages())]
    known = set(pages)
    while pages:
        page = pages.pop()
        if not page.is_relative_to(DOCS):
            files.append(File.generated(config, place(page), abs_src_path=str(page)))
        if page.suffix != ".md":
            continue
        for target in targets(page):
            if (
                target.is_file()
                and target not in known
                and not (target.is_relative_to(DOCS) and target.suffix != ".py")
            ):
                known.add(target)
                pages.append(target)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links as the site needs them."""
    here = source(page.file.src_uri)

    def rewritten(match: re.Match[str]) -> str:
        if ":" in match["target"]:
            return match[0]
        target = (here.parent / match["target"]).resolve()
        if target.is_dir():
            return match["text"][1:-1]
        if not target.exists():
            return match[0]  # for mkdocs to find and complain of
        where = os.path.relpath(place(target), Path(page.file.src_uri).parent)
        return f"{match['text']}({where}{match['anchor'] or ''})"

    return outside_code(markdown, lambda text: LINK.sub(rewritten, text))


def place(path: Path) -> str:
    """Where a file of the repository stands on the site."""
    if path == ROOT / "README.md":
        return FRONT
    if path.is_relative_to(DOCS) and path.suffix != ".py":
        return path.relative_to(DOCS).as_posix()
    if not path.is_relative_to(ROOT):
        return str(path)
    return f"{'repository' if path.suffix == '.md' else 'files'}/{path.relative_to(ROOT).as_posix()}"


def source(place: str) -> Path:
    """The file of the repository that stands there on the site."""
    if place == FRONT:
        return ROOT / "README.md"
    outside = place.removeprefix("repository/").removeprefix("files/")
    return DOCS / place if outside == place else ROOT / outside


def targets(page: Path) -> Iterator[Path]:
    """The files and folders that a page links to."""
    for match in LINK.finditer(FENCED.sub("", page.read_text())):
        if ":" not in match["target"]:
            yield (page.parent / match["target"]).resolve()


def outside_code(markdown: str, change: Any) -> str:
    """The text with a change made to all of it but code."""
    parts, last = [], 0
    for code in FENCED.finditer(markdown):
        parts += [change(markdown[last : code.start()]), code[0]]
        last = code.end()
    return "".join([*parts, change(markdown[last:])])
