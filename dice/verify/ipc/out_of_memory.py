"""Lack of memory: how Python, PyTorch and CUDA tell of it, and whether any was met.

While many jobs share a GPU, who lacks memory may owe it to the others. Code that makes do without what it could not
have (a second look, a float64 output) notes it here, so that its answer is not taken for one that had all it needed.
"""

from __future__ import annotations

SIGNS = (
    "OutOfMemoryError",
    "CUDA out of memory",
    "CUDA error: out of memory",
    "CUDA_ERROR_OUT_OF_MEMORY",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUFFT_ALLOC_FAILED",
    "can't allocate memory",
)


class _Met:
    """How many lacks of memory were noted in this process."""

    count = 0


def is_named(text: str) -> bool:
    """Whether a message is of a lack of memory."""
    return any(sign in text for sign in SIGNS)


def is_shortage(error: BaseException | None) -> bool:
    if error is None:
        return False
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or is_named(str(error))


def note(error: BaseException | None) -> None:
    """Count it, if it is one."""
    _Met.count += is_shortage(error)


def met() -> int:
    """How many were noted in this process."""
    return _Met.count
