"""Name what emulation cannot do, before compiling (from the source) or after (from the compiler's log)."""

from __future__ import annotations

import re

from .tokens import Tokens


def find_unsupported(source: str) -> str | None:
    return None


def explain_failure(log: str) -> str | None:
    return None
