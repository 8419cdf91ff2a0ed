"""Other people's Python is parsed without a word on the terminal."""

from __future__ import annotations

import subprocess
import sys


def test_remarks_on_a_text_are_not_shown() -> None:
    code = r"""
import warnings
from dice import syntax
print(len(syntax.parse('x = "\\d"').body))
warnings.warn("ours", UserWarning)
"""
    done = subprocess.run([sys.executable, "-W", "default", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n" and "escape" not in done.stderr and "ours" in done.stderr, done.stderr
