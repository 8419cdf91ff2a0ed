"""The projections of a model as the engine runs them: stacked where they share an input, in fp8 if so asked."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dice.model.fused import stack

FP8 = torch.float8_e4m3fn
FP8_MAX = 448.0


class Projection:
    """Linears over the same input as one product: `projection(x)` is the concatenation of their outputs.

    The weights stay the parameters' own memory, so that values copied into them are seen at once. With `fp8` they are
    a copy, with a scale for each row of the weights and of the input; `refresh` makes it anew.
    """

    @torch.no_grad()
    def __init__(self, linears: Sequence[nn.Linear], *, fp8: bool = False) -> None:
        self._linears = linears
        self.weight = stack([linear.weight for linear in linears])
        biased = [linear.bias.detach() for linear in linears if linear.bias is not None]
        self.bias = torch.cat(biased) if biased else None
        self.fp8 = fp8
        rows, columns = self.weight.shape if fp8 else (0, 0)
        self._eighth = torch.empty(rows, columns, dtype=FP8, device=self.weight.device)
        self._scale = torch.empty(1, rows, dtype=torch.float32, device=self.weight.device)
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Take over what was written into the parameters since."""
        if self.bias is not None:
            self.bias.copy_(torch.cat([linear.bias for linear in self._linears]))
        if self.fp8:
            quantized, scale = quantize(self.weight)
            self._eighth.copy_(quantized)
            self._scale.copy_(scale.T)

    def __call__(self, x: Tensor) -> Tensor:
        """x [N, in] -> [N, out]."""
        if not self.fp8:
            return F.linear(x, self.weight, self.bias)
        return self.scaled(*quantize(x), x.dtype)

    def scaled(self, x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
        """The product for x [N, in] in fp8 with `scale` [N, 1]."""
        if x.is_cuda:
            return torch._scaled_mm(
                x, self._eighth.T, scale_a=scale, scale_b=self._scale, bias=self.bias, out_dtype=dtype
            )
        out = (x.float() @ self._eighth.float().T) * scale * self._scale
        return (out if self.bias is None else out + self.bias).to(dtype)


def quantize(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [N, C] in fp8, and the factor [N, 1], float32, that gives each row back."""
    scale = x.float().abs().amax(-1, keepdim=True).clamp_min(1e-12) / FP8_MAX
    return (x.float() / scale).clamp(-FP8_MAX, FP8_MAX).to(FP8), scale
