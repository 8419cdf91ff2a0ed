"""What several of these tests share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def one_verifier() -> Iterator[None]:
    """Serves every command of a file on the emulated backend: each would start its own, which takes seconds."""
    from dice.evaluate.run import Judging
    from dice.verify import Options

    judging = Judging(backend="emulated", options=Options(trials=1))
    with pytest.MonkeyPatch.context() as patch, judging.verifier("dice") as verifier:
        patch.setattr(Judging, "verifier", lambda *_, **__: contextlib.nullcontext(verifier))
        yield
