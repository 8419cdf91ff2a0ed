"""Coloured sources: nothing is lost, and CUDA inside Python is coloured as CUDA."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from dice.files.highlight import as_html, runs
from tests.data.source_files import kernel, problem

SOURCES = (
    problem(),
    kernel(),
    kernel()[:900],
    '"""__global__',
    "'''\n#include",
    "x = 1  # \U0001f600 </i>\n",
    "def f(:\n",
    "s = f'__device__'\r\n",
)


@given(st.text() | st.sampled_from(SOURCES))
def test_colouring_changes_no_character(text: str) -> None:
    bare = re.sub(r"</?i( class=[A-Z])?>", "", as_html(text, runs(text)))
    assert bare.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&") == text


def test_cuda_inside_python_is_coloured_as_cuda() -> None:
    page = as_html(text := kernel(), runs(text))
    assert "<i class=K>class</i>" in page and "<i class=M>#include" in page and "<i class=K>__global__</i>" in page
    page = as_html(text := 's = """__global__ void k() { int a = 1; }"""\n', runs(text))
    assert "<i class=K>__global__</i>" in page and "<i class=T>int</i>" in page and '}<i class=S>"""' in page
