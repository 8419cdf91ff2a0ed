"""The small model that most tests of this room share."""

from __future__ import annotations

import pytest
from tiny_model import TINY, lively

from dice.model.sdar import SDAR


@pytest.fixture
def tiny() -> SDAR:
    return lively(TINY)
