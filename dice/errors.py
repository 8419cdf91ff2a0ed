"""The two kinds of error that are not bugs. The command line prints their one sentence; a traceback is for our bugs."""

from __future__ import annotations


class UserError(Exception):
    """The input is unusable; the message says what is wrong and what to do. Exit code 2."""


class MachineError(Exception):
    """This machine cannot do what was asked (no GPU, no compiler, no space). Exit code 3."""
