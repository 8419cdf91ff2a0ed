"""The projections of a model as the engine runs them: stacked where they share an input, in fp8 if so asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dice.model.fused import packed, packed_linear, stack

FP8 = torch.float8_e4m3fn
FP8_MAX = 448.0
FEW_ROWS = 16  # the least number of rows that matrix units take
# By which rows in float16 are multiplied, so that what bfloat16 holds of a model's activations does not overflow.
HALF_SCALE = 1 / 16


@dataclass(frozen=True)
class Scaled:
    """A matrix [N, C] in fp8: row i is `values[i] * scale[i]`. `scale` float32 [N, 1]; products become `dtype`."""

    values: Tensor
    scale: Tensor
    dtype: torch.dtype

    def __len__(self) -> int:
        return len(self.values)

    @classmethod
    def of(cls, x: Tensor) -> Scaled:
        scale = x.float().abs().amax(-1, keepdim=True).clamp_min(1e-12) / FP8_MAX
        return cls((x.float() / scale).clamp(-FP8_MAX, FP8_MAX).to(FP8), scale, x.dtype)


class Projection:
    """Linears over the same input as one product: `projection(x)` is the concatenation of their outputs.

    The weights stay the parameters' own memory, so that values copied into them are seen at once. With `fp8` they are
    a copy, with a scale for each row of the weights and of the input, and with `pack` (on a CPU) there is a copy in the
    layout that oneDNN likes best; `refresh` makes copies anew.
    """

    @torch.no_grad()
    def __init__(self, linears: Sequence[nn.Linear], *, fp8: bool = False, pack: bool = False) -> None:
        self._linears = linears
        self.weight = stack([linear.weight for linear in linears])
        biased = [linear.bias.detach() for linear in linears if linear.bias is not None]
        self.bias = torch.cat(biased) if biased else None
        self.fp8, self._pack = fp8, pack and not fp8
        self._packed: Tensor | None = None
        # A quicker way for few rows, of which a product in fp8 takes float16, times HALF_SCALE.
        self.few_rows: Product | None = None
        self.few_rows_gated: Product | None = None  # and silu(first half) * second half of the result
        self.rows_in_parts: set[int] = set()  # numbers of rows for which `in_parts` is quicker
        rows, columns = self.weight.shape if fp8 else (0, 0)
        self.eighth = torch.empty(rows, columns, dtype=FP8, device=self.weight.device)
        self.scale = torch.empty(1, rows, dtype=torch.float32, device=self.weight.device)
        self.refresh()

    @property
    def read(self) -> Tensor:
        """The weights that a product reads."""
        return self.eighth if self.fp8 else self.weight

    def holds(self) -> bool:
        """Whether the parameters still are this projection's memory: moving or replacing them ends that."""
        address = self.weight.data_ptr()
        for linear in self._linears:
            if linear.weight.data_ptr() != address:
                return False
            address += linear.weight.numel() * linear.weight.element_size()
        return True

    @torch.no_grad()
    def refresh(self) -> None:
        """Take over what was written into the parameters since."""
        if self.bias is not None:
            self.bias.copy_(torch.cat([linear.bias for linear in self._linears]))
        if self.fp8:
            scaled = Scaled.of(self.weight)
            self.eighth.copy_(scaled.values)
            self.scale.copy_(scaled.scale.T)
        if self._pack:
            self._packed = packed(self.weight)

    def __call__(self, x: Tensor | Scaled) -> Tensor:
        """x [N, in], in fp8 if the projection is; returns [N, out], or what adds up to it, [S, N, out], where
        `few_rows` gives that, float32, or `in_parts`."""
        if self.few_rows is not None and len(x) <= FEW_ROWS:
            return self.few_rows(x, self)
        if len(x) in self.rows_in_parts:
            return self.in_parts(x)
        return self.product(x)

    def in_parts(self, x: Tensor | Scaled) -> Tensor:
        """x [N, in] times the weights as two products of half of the inputs each, which add up to it: [2, N, out].

        Twice as many products of half the size can keep more of a GPU's processors at work.
        """
        assert isinstance(x, Tensor)
        width = x.shape[1] // 2
        return torch.bmm(x.view(-1, 2, width).transpose(0, 1), self.weight.view(-1, 2, width).permute(1, 2, 0))

    def product(self, x: Tensor | Scaled) -> Tensor:
        """The same by PyTorch's own products."""
        if isinstance(x, Tensor) and self._packed is not None:
            return packed_linear(x, self._packed, self.bias)
        if isinstance(x, Tensor):
            return F.linear(x, self.weight, self.bias)
        if x.values.is_cuda:
            return torch._scaled_mm(
                x.values, self.eighth.T, scale_a=x.scale, scale_b=self.scale, bias=self.bias, out_dtype=x.dtype
            )
        out = (x.values.float() @ self.eighth.float().T) * x.scale * self.scale
        return (out if self.bias is None else out + self.bias).to(x.dtype)


Product = Callable[[Tensor | Scaled, Projection], Tensor]
