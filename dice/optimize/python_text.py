"""A node as the PyTorch expression that somebody would write for it.

What has no line here is written as the operator itself, `torch.ops.aten.name.overload(...)`, which is always right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch

from dice.optimize.graph import Named, Node, Ref, Term, Tupled
from dice.optimize.operators import words

Names = Mapping[str, str]  # value -> how it is called in the text

_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/",
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^", "matmul": "@",
    "__and__": "&", "__or__": "|", "__xor__": "^",
}  # fmt: skip
# Functions of `torch` that take what the operator takes, in its order.
_TORCH = words(
    "abs acos acosh addbmm addcdiv addcmul addmm addmv all amax amin aminmax any arange argmax argmin",
    "asin asinh atan atan2 atanh baddbmm bmm bucketize cat ceil chunk clamp clamp_max clamp_min cos cosh",
    "count_nonzero cross cummax cummin cumprod cumsum diag diagonal diff dot einsum empty_like erf erfc",
    "exp exp2 expm1 flip floor floor_divide fmod full full_like gather ge gru hypot index_add index_select",
    "isfinite isinf isnan kthvalue lerp log log10 log1p log2 log_softmax logaddexp logcumsumexp",
    "logical_and logical_not logical_or logical_xor logsumexp lstm masked_fill masked_select max maximum mean",
    "median meshgrid min minimum mm movedim mv narrow nan_to_num neg norm ones ones_like outer permute",
    "pixel_shuffle pixel_unshuffle polar pow prelu prod quantile reciprocal relu remainder",
    "repeat_interleave rnn_relu rnn_tanh roll round rsqrt scatter scatter_add select_scatter slice_scatter",
    "searchsorted",
    "sigmoid sign sin sinc sinh softmax sort sqrt square stack std std_mean sum tan tanh tensor_split",
    "tile topk transpose tril triu trunc unbind unflatten var var_mean where zeros zeros_like",
)
_FUNCTIONAL = words(
    "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d",
    "avg_pool1d avg_pool2d avg_pool3d celu conv1d conv2d conv3d conv_transpose1d conv_transpose2d",
    "conv_transpose3d elu gelu glu hardshrink hardsigmoid hardswish hardtanh leaky_relu linear",
    "logsigmoid max_pool1d max_pool2d max_pool3d mish one_hot pad relu6 selu silu softplus softshrink",
    "threshold",
)
_METHODS = words(
    "view reshape expand expand_as view_as unsqueeze squeeze select t flatten contiguous clone detach",
    "repeat type_as split unfold",
)
_OF_SIZES = words("view reshape expand repeat")
# Arguments that only take keywords in Python though the operator has them by position. Defaults are left out: whether
# PyTorch's tracer names them depends on what follows them, such as whether cuDNN may be used.
_KEYWORDS = {
    "layer_norm": ("F.layer_norm", ("", "", "weight", "bias", "eps")),
    "rms_norm": ("F.rms_norm", ("", "", "weight", "eps")),
    "group_norm": ("F.group_norm", ("", "", "weight", "bias", "eps")),
    "linalg_vector_norm": ("torch.linalg.vector_norm", ("", "", "dim", "keepdim", "dtype")),
    "scaled_dot_product_attention": (
        "F.scaled_dot_product_attention",
        ("", "", "", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"),
    ),
    "dropout": ("F.dropout", ("", "p", "training")),
}
# Functions whose numbers are written by name, as people write them: `torch.sum(x, dim=1, keepdim=True)`. Python's names
# are those of the operator, and what is its default is left out. Of the second, the first number has no name.
_BY_NAME = words(
    "all amax amin any argmax argmin clamp conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d",
    "cumprod cumsum glu hardtanh leaky_relu log_softmax logcumsumexp logsumexp max mean median min norm prod",
    "softmax softplus std std_mean sum var var_mean",
)
_BY_NAME_LATER = words(
    "avg_pool1d avg_pool2d avg_pool3d max_pool1d max_pool2d max_pool3d quantile roll sort topk",
)
_REDUCTION = {0: "'none'", 1: "'mean'", 2: "'sum'"}
_LOSSES = {
    "mse_loss": "F.mse_loss", "l1_loss": "F.l1_loss",
    "smooth_l1_loss": "F.smooth_l1_loss", "huber_loss": "F.huber_loss",
}  # fmt: skip


def expression(node: Node, names: Names, device: str = "x.device") -> str:
    """What computes the node's value, of the values in `names`. `device`: where new tensors are made."""
    return _Writer(node, names, device).text()


def term(value: Term, names: Names, device: str = "x.device") -> str:
    """An argument, or what `forward` returns, as text."""
    match value:
        case Ref(name):
            return names[name]
        case Named("dtype" | "layout" | "memory_format", name):
            return f"torch.{name}"
        case Named("device", _):
            return device
        case float() if not math.isfinite(value):
            return f'float("{value!r}")'
        case tuple():
            inside = ", ".join(term(item, names, device) for item in value)
            return f"({inside},)" if len(value) == 1 else f"({inside})"
        case Tupled(name, items):
            return f"{name}({', '.join(term(item, names, device) for item in items)})"
        case list():
            return f"[{', '.join(term(item, names, device) for item in value)}]"
        case dict():
            return f"{{{', '.join(f'{key!r}: {term(item, names, device)}' for key, item in value.items())}}}"
    return repr(value)


def _is_tensor(value: Term) -> bool:
    return isinstance(value, Ref) or (isinstance(value, list) and any(isinstance(one, Ref) for one in value))


def _is_negative(value: Term) -> bool:
    return isinstance(value, int | float) and value < 0


def _is_default(value: Term, declared: Any) -> bool:
    """`declared`: the argument in the operator's schema."""
    return bool(declared.has_default_value() and value == declared.default_value)


def _single(value: Term, declared: Any) -> Term:
    """One number for a list of as many equal ones as the operator takes: a window of 3 is [3, 3], and a shift of two
    dimensions by 1 is [1, 1]. `declared`: the argument in the operator's schema."""
    is_numbers = isinstance(value, list) and value and all(isinstance(one, int) for one in value)
    if not is_numbers or len(set(value)) > 1 or len(value) not in (1, declared.N):
        return value
    return value[0]


class _Writer:
    def __init__(self, node: Node, names: Names, device: str):
        self._node, self._names, self._device = node, names, device

    def text(self) -> str:
        node, base = self._node, self._node.base
        if node.operator == "getitem":
            return f"{self._term(node.arguments[0])}[{node.arguments[1]}]"
        if node.operator == "constant":
            return (
                f"torch.tensor({self._term(node.arguments[0])}, dtype=torch.{node.spec.dtype}, device={self._device})"
            )
        special = _SPECIAL.get(base)
        written = special(self) if special else ""
        return written or self._usual() or self.plain()

    def _usual(self) -> str:
        """By the tables; "" where none has the operator."""
        node, base = self._node, self._node.base
        given, options = node.arguments, node.options
        if not node.operator.startswith("aten."):
            return ""
        if base in ("add", "sub") and not options and len(given) == 2 and _is_negative(given[1]):
            sign = "-" if base == "add" else "+"
            return f"{self._operand(given[0])} {sign} {self._term(-given[1])}"
        if base in _INFIX and not options and len(given) == 2:
            return f"{self._operand(given[0])} {_INFIX[base]} {self._operand(given[1])}"
        if base in _KEYWORDS:
            function, keywords = _KEYWORDS[base]
            shown = [
                f"{key}={self._term(value)}" if key else self._term(value)
                for key, value, declared in zip(keywords, given, self._declared(), strict=False)
                if not (key and (value is None or _is_default(value, declared)))
            ]
            return f"{function}({', '.join((*shown, *self._options()))})"
        if base in _LOSSES:
            reduction = _REDUCTION.get(given[2], "") if len(given) > 2 else ""
            named = [f"reduction={reduction}"] if reduction else []
            named += [f"{'delta' if base == 'huber_loss' else 'beta'}={self._term(one)}" for one in given[3:]]
            return f"{_LOSSES[base]}({', '.join((*map(self._term, given[:2]), *named, *self._options()))})"
        if base in _METHODS and given and isinstance(given[0], Ref):
            return f"{self._term(given[0])}.{base}({self._sizes() or self.arguments(1)})"
        if base in _FUNCTIONAL or base in _TORCH:
            is_named = base in _BY_NAME or base in _BY_NAME_LATER
            space = "F" if base in _FUNCTIONAL else "torch"
            return f"{space}.{base}({self.named_arguments() if is_named else self.arguments()})"
        return ""

    def plain(self) -> str:
        return f"torch.ops.{self._node.operator}({self.arguments()})"

    def arguments(self, first: int = 0) -> str:
        return ", ".join((*(self._term(value) for value in self._node.arguments[first:]), *self._options()))

    def _sizes(self) -> str:
        """Sizes as they are written: `x.view(2, 8)`. "" where there are none, or more than those."""
        given, options = self._node.arguments, self._node.options
        if self._node.base not in _OF_SIZES or len(given) != 2 or options or not isinstance(given[1], list):
            return ""
        return ", ".join(map(self._term, given[1]))

    def named_arguments(self) -> str:
        """Tensors by position, then numbers by name where they are not the operator's default."""
        node = self._node
        first = next((at for at, one in enumerate(node.arguments) if not _is_tensor(one)), len(node.arguments))
        first += node.base in _BY_NAME_LATER
        given = list(zip(self._declared(), node.arguments, strict=False))
        shown = [self._term(_single(value, declared)) for declared, value in given[:first]]
        for declared, value in given[first:]:
            if not _is_default(value, declared):
                shown.append(f"{declared.name}={self._term(_single(value, declared))}")
        return ", ".join((*shown, *self._options()))

    def _declared(self) -> Sequence[Any]:
        """The operator's arguments by its schema."""
        node = self._node
        operator = getattr(getattr(torch.ops.aten, node.base), node.operator.rsplit(".", 1)[1])
        return cast("Sequence[Any]", operator._schema.arguments)

    def argument(self, index: int, default: Term = None) -> Term:
        given = self._node.arguments
        return given[index] if len(given) > index else default

    def option(self, name: str) -> Term:
        return self._node.options.get(name)

    def _options(self) -> list[str]:
        return [
            f"{key}={self._term(value)}"
            for key, value in self._node.options.items()
            if not (key == "layout" or value is None)
        ]

    def _term(self, value: Term) -> str:
        return term(value, self._names, self._device)

    shown = _term

    def _operand(self, value: Term) -> str:
        text = self._term(value)
        return f"({text})" if text.startswith("-") else text

    # ---- operators that Python spells in another way -------------------------------------------------------------

    def slice(self) -> str:
        spec_dim = self.argument(1, 0)
        start, end, step = self.argument(2), self.argument(3), self.argument(4, 1)
        end = None if isinstance(end, int) and end > 1 << 40 else end
        if not isinstance(spec_dim, int) or spec_dim < 0 or (isinstance(step, int) and step < 1):
            return ""
        place = f"{start or ''}:{'' if end is None else end}{'' if step == 1 else f':{step}'}"
        return f"{self._term(self.argument(0))}[{':, ' * spec_dim}{place}]"

    def embedding(self) -> str:
        return f"F.embedding({self._term(self.argument(1))}, {self._term(self.argument(0))})"

    def rsub(self) -> str:
        if self._node.options or len(self._node.arguments) > 2:
            return ""
        return f"{self._operand(self.argument(1))} - {self._operand(self.argument(0))}"

    def batch_norm(self) -> str:
        x, weight, bias, mean, var, training, momentum, eps, *_ = self._node.arguments
        shown = [*map(self._term, (x, mean, var, weight, bias)), f"training={training}"]
        shown += [f"momentum={self._term(momentum)}"] if mean is not None and momentum != 0.1 else []
        shown += [f"eps={self._term(eps)}"] if eps != 1e-5 else []
        return f"F.batch_norm({', '.join(shown)})"

    def instance_norm(self) -> str:
        x, weight, bias, mean, var, use_input, momentum, eps, *_ = self._node.arguments
        if mean is not None or var is not None or not use_input:
            return ""
        shown = f"weight={self._term(weight)}, bias={self._term(bias)}, eps={self._term(eps)}"
        return f"F.instance_norm({self._term(x)}, {shown})"

    def index(self) -> str:
        indices = self.argument(1)
        if not isinstance(indices, list):
            return ""
        inside = ", ".join(":" if one is None else self._term(one) for one in indices)
        return f"{self._term(self.argument(0))}[{inside}]"

    def to(self) -> str:
        kind = self._node.operator.rsplit(".", 1)[1]
        second = self.argument(1)
        if kind == "dtype" or (kind == "dtype_layout" and self.option("dtype") is not None):
            dtype = second if kind == "dtype" else self.option("dtype")
            return f"{self._term(self.argument(0))}.to({self._term(dtype)})"
        if kind == "other":
            return f"{self._term(self.argument(0))}.to({self._term(second)}.dtype)"
        return ""

    def _to_copy(self) -> str:
        dtype = self.option("dtype")
        return f"{self._term(self.argument(0))}.to({self._term(dtype)})" if dtype is not None else ""

    def addmm(self) -> str:
        return "" if self._node.options else f"torch.addmm({self.arguments()})"

    def lift_fresh_copy(self) -> str:
        return self._term(self.argument(0))

    def in_place(self) -> str:
        first = self.argument(0)
        return f"{self._term(first)}.{self._node.base}({self.arguments(1)})" if isinstance(first, Ref) else ""

    def pad(self) -> str:
        return ""


_SPECIAL: dict[str, Callable[[_Writer], str]] = {
    "slice": _Writer.slice,
    "embedding": _Writer.embedding,
    "rsub": _Writer.rsub,
    "batch_norm": _Writer.batch_norm,
    "instance_norm": _Writer.instance_norm,
    "index": _Writer.index,
    "to": _Writer.to,
    "_to_copy": _Writer._to_copy,
    "lift_fresh_copy": _Writer.lift_fresh_copy,
    "alias": _Writer.lift_fresh_copy,
    "add_": _Writer.in_place,
    "mul_": _Writer.in_place,
    "copy_": _Writer.in_place,
    "lerp_": _Writer.in_place,
}
