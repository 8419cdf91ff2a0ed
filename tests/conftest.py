"""Shared test set-up: one thread for PyTorch, and GPU tests skip with a reason where no GPU can run them."""

from __future__ import annotations

import functools
import os
import shutil
import signal
from pathlib import Path

import pytest

# Before anything imports PyTorch. Threads gain nothing on the small tensors of tests, and those of parallel test
# processes wait for each other by spinning.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell that runs the suite in the background has it ignore Ctrl-C, and so would every process it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).parent.parent


@functools.cache
def why_no_gpu() -> str:
    import torch

    if not torch.cuda.is_available():
        return "needs an NVIDIA GPU; torch.cuda.is_available() is false here"
    if shutil.which("nvcc") is None and not Path("/usr/local/cuda/bin/nvcc").exists():
        return "needs nvcc; none was found"
    return ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("gpu") and why_no_gpu():
            item.add_marker(pytest.mark.skip(reason=why_no_gpu()))


@pytest.fixture(scope="session")
def sdar_files() -> Path:
    """The published SDAR configuration and tokenizer files, where a checkout has them beside it."""
    folder = ROOT.parent / "shared" / "sdar"
    if not (folder / "config.json").exists():
        pytest.skip("SDAR's published files are not beside this checkout")
    return folder
