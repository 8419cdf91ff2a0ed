"""Other people's Python is parsed without a word on the terminal."""

from __future__ import annotations

import subprocess
import sys
import warnings

import pytest

from dice import syntax


def test_remarks_on_a_text_are_not_shown() -> None:
    code = r"""
import warnings
from dice import syntax
print(len(syntax.parse('x = "\\d"').body))
warnings.warn("ours", UserWarning)
"""
    done = subprocess.run([sys.executable, "-W", "default", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n" and "escape" not in done.stderr and "ours" in done.stderr, done.stderr


def test_remarks_are_not_shown_where_others_ask_for_all_warnings() -> None:
    """As test runners do, and notebooks."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert syntax.parse('x = "\\d"').body
        warnings.warn("ours", UserWarning, stacklevel=1)
    assert [str(one.message) for one in seen] == ["ours"]


DEEP = {
    "sum": "x = " + "1 + " * 5000 + "1",
    "conditions": "x = " + "1 if 1 else " * 2000 + "1",
    "attributes": "x = a" + ".a" * 2500,
    "subscripts": "x = a" + "[0]" * 2500,
    "calls": "x = f" + "()" * 2500,
    "negations": "x = " + "not " * 2500 + "a",
    "powers": "x = " + "a ** " * 2500 + "a",
    "lambdas": "x = " + "lambda: " * 2500 + "1",
    "elif": "if a: pass\n" + "elif a: pass\n" * 2000,
    "parentheses": "(" * 50_000,
}


@pytest.mark.parametrize("text", DEEP.values(), ids=DEEP)
def test_what_is_nested_deeply_is_no_python(text: str) -> None:
    with pytest.raises(SyntaxError):
        syntax.parse(text)


@pytest.mark.parametrize(
    "text",
    ["x = " + "a + " * 200 + "a", "if a: pass\n" + "elif a: pass\n" * 150, "x = " + '"a\\n" + \\\n' * 600 + '"a"']
    + ["a = 1\n" * 10_000],
    ids=["sum", "elif", "strings", "long"],
)
def test_what_people_write_is(text: str) -> None:
    assert syntax.parse(text).body


def test_a_text_of_any_size_is_parsed_or_refused_at_once() -> None:
    with pytest.raises(SyntaxError, match="256 KiB"):
        syntax.parse("a\n" * syntax.MAX_SOURCE)


@pytest.mark.parametrize("text", ["\0", "x = '\ud800'"])
def test_what_is_no_text_is_a_value_error(text: str) -> None:
    with pytest.raises((SyntaxError, ValueError)):
        syntax.parse(text)
