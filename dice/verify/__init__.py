"""(problem, kernel) -> verdict: compile, isolate, run, compare and time one candidate. Knows nothing of models."""

from __future__ import annotations

from dice.verify.options import BackendUnavailable, Options, resolve_backend
from dice.verify.verifier import Verifier, verify

__all__ = ["BackendUnavailable", "Options", "Verifier", "resolve_backend", "verify"]
