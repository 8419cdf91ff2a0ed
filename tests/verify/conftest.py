"""The verifier that the tests of this room share: its zygote takes seconds to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dice.verify import BackendUnavailable, Options, Verifier


@pytest.fixture(scope="session")
def emulated() -> Iterator[Verifier]:
    try:
        verifier = Verifier(backend="emulated", options=Options(run_timeout_s=20))
    except BackendUnavailable as error:
        pytest.skip(str(error))
    with verifier:
        yield verifier
