"""Pages from templates: what is inserted stays text, and a name that nobody gave is an error."""

from __future__ import annotations

from pathlib import Path

import pytest
from jinja2 import UndefinedError
from markupsafe import Markup

from dice.files.templates import render


def test_what_is_inserted_stays_text(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text('<style>{% include "page.css" %}</style><p title="{{ words }}">{{ words }}{{ code }}</p>\n')
    (tmp_path / "page.css").write_text("p{color:red}\n")
    words = '</p><script>"x"'
    safe = "&lt;/p&gt;&lt;script&gt;&#34;x&#34;"
    expected = f'<style>p{{color:red}}\n</style><p title="{safe}">{safe}<i>x</i></p>\n'
    assert render(page, words=words, code=Markup("<i>x</i>")) == expected


def test_a_name_that_nobody_gave_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("{{ missing }}")
    with pytest.raises(UndefinedError):
        render(tmp_path / "page.html")
