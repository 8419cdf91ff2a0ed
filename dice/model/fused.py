"""Linear layers prepared for decoding: several run as one product, and on a CPU in the layout its kernels like best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Packing keeps a second copy of the weights, so models of more weights than this are not packed.
MAX_PACKED_ELEMENTS = 300_000_000
# oneDNN chooses the layout for this many rows of input: one block of a text.
_PACK_ROWS_HINT = 4


class FusedLinear:
    """Linears over the same input, stacked: `fused(x)` is the concatenation of their outputs.

    Their weights become row ranges of one stored matrix, so names, values and in-place updates are unaffected. Biases,
    which all of them have or none, are a snapshot. `pack` additionally keeps oneDNN's blocked copy of the matrix (CPU):
    2 to 4 times faster for a handful of rows, because plain products of that shape stream the matrix badly. The copy is
    a snapshot of the weights as they were.
    """

    @torch.no_grad()
    def __init__(self, linears: Sequence[nn.Linear], pack: bool) -> None:
        self._weight = stack([linear.weight for linear in linears])
        biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
        self._bias = torch.cat(biases) if biases else None
        self._packed = packed(self._weight) if pack else None

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """A copied or pickled model starts unfused: packed weights cannot be copied, and views would go astray."""
        return type(None), ()

    def __call__(self, x: Tensor) -> Tensor:
        if self._packed is None:
            return F.linear(x, self._weight, self._bias)
        return packed_linear(x, self._packed, self._bias)


def packed(weight: Tensor) -> Tensor:
    """oneDNN's blocked copy of a matrix that `can_pack`."""
    assert _ONEDNN_PACK is not None, "can_pack says so"
    found: Tensor = _ONEDNN_PACK(weight, _PACK_ROWS_HINT)
    return found


def packed_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`F.linear` by a `packed` weight; x [..., in]."""
    found: Tensor = _ONEDNN_LINEAR(x, weight, bias, "none", [], "")
    return found


def stack(weights: Sequence[Tensor]) -> Tensor:
    """One matrix whose row ranges are `weights`; made only when they are not yet consecutive in one storage."""
    if len(weights) == 1:
        return weights[0].detach()
    first = weights[0].detach()
    address, shared = first.data_ptr(), True
    for weight in weights:
        same_storage = weight.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        shared = shared and same_storage and weight.data_ptr() == address and weight.is_contiguous()
        address += weight.numel() * weight.element_size()
    rows = sum(len(weight) for weight in weights)
    if shared:
        return first.as_strided((rows, first.shape[1]), first.stride())
    stacked = torch.cat([weight.detach() for weight in weights])
    for weight, part in zip(weights, stacked.split([len(weight) for weight in weights]), strict=True):
        weight.data = part
    return stacked


def can_pack(weight: Tensor, elements: int) -> bool:
    """Whether packing helps a model with `elements` weights like `weight` on this machine."""
    known = _ONEDNN_PACK is not None and (weight.dtype == torch.float32 or _packs_bfloat16(weight.dtype))
    return known and weight.device.type == "cpu" and elements <= MAX_PACKED_ELEMENTS


def _packs_bfloat16(dtype: torch.dtype) -> bool:
    """Processors without AVX-512 or the like have no kernels for it, and oneDNN refuses then."""
    return dtype == torch.bfloat16 and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _onednn(name: str) -> Any:
    """An operator that TorchInductor uses for frozen CPU weights; absent from builds without oneDNN."""
    if not torch.backends.mkldnn.is_available():
        return None
    packet = getattr(torch.ops.mkldnn, name, None)
    return None if packet is None else packet.default


_ONEDNN_LINEAR = _onednn("_linear_pointwise")
_ONEDNN_PACK = _onednn("_reorder_linear_weight") if _ONEDNN_LINEAR is not None else None
