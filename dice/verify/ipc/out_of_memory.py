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
# What libraries say where they find no memory for their own handles and plans, and for other reasons as well.
VAGUE_SIGNS = ("CUDNN_STATUS_INTERNAL_ERROR", "CUDNN_STATUS_NOT_INITIALIZED", "CUBLAS_STATUS_NOT_INITIALIZED")
SCARCE_BYTES = 1 << 30  # free on the GPU, below which they are believed to be of memory


class _Met:
    """How many lacks of memory were noted in this process."""

    count = 0


def is_named(text: str) -> bool:
    """Whether a message is of a lack of memory."""
    return any(sign in text for sign in SIGNS)


def is_shortage(error: BaseException | None) -> bool:
    if error is None:
        return False
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or is_named(str(error)):
        return True
    return any(sign in str(error) for sign in VAGUE_SIGNS) and _is_scarce()


def _is_scarce() -> bool:
    import torch  # whoever meets such an error has it already

    try:
        return torch.cuda.mem_get_info()[0] < SCARCE_BYTES
    except (RuntimeError, AssertionError):  # the error has taken the device with it, or its text is a candidate's own
        return False


def note(error: BaseException | None) -> None:
    """Count it, if it is one."""
    _Met.count += is_shortage(error)


def met() -> int:
    """How many were noted in this process."""
    return _Met.count
