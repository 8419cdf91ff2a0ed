"""The small model that the tests of this room share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from decoding_helpers import lively_model

from dice.model.sdar import SDAR


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads gain nothing on matrices this small, and on a busy machine their waiting for each other costs minutes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def model() -> SDAR:
    return lively_model()
