"""The small model that the tests of this room share."""

from __future__ import annotations

import pytest
from decoding_helpers import lively_model

from dice.model.sdar import SDAR


@pytest.fixture
def model() -> SDAR:
    return lively_model()
