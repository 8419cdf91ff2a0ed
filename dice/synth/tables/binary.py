"""Operators on two or three tensors, element by element: the table that fused families draw from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Binary:
    """An operator on two or three tensors; {y} and {z} may be any expression that is an atom."""

    phrase: str
    spellings: tuple[str, ...]
    statement: str  # updates v (first operand) from w (second) and u (third)
    scalar: str = ""
    inputs: int = 2
    magnitude: float = 10.0
    plain_first: bool = False  # discontinuous in the first operand: no chain before it
    plain_second: bool = False  # likewise


BINARY: dict[str, Binary] = {
    "add2": Binary("the sum of two tensors", ("{x} + {y}", "torch.add({x}, {y})", "{x}.add({y})"), "v = v + w;"),
    "sub2": Binary(
        "the difference of two tensors", ("{x} - {y}", "torch.sub({x}, {y})", "torch.subtract({x}, {y})"), "v = v - w;"
    ),
    "mul2": Binary(
        "the product of two tensors",
        ("{x} * {y}", "torch.mul({x}, {y})", "{x}.mul({y})", "torch.multiply({x}, {y})"),
        "v = v * w;",
        magnitude=25.0,
    ),
    "div_abs": Binary(
        "a guarded quotient",
        ("{x} / ({y}.abs() + {a})", "{x} / (torch.abs({y}) + {a})", "torch.div({x}, torch.abs({y}) + {a})"),
        "v = v / (fabsf(w) + {a});",
        "shift",
        magnitude=50.0,
    ),
    "maximum": Binary(
        "the elementwise maximum",
        ("torch.maximum({x}, {y})", "torch.max({x}, {y})", "{x}.maximum({y})"),
        "v = fmaxf(v, w);",
    ),
    "minimum": Binary(
        "the elementwise minimum",
        ("torch.minimum({x}, {y})", "torch.min({x}, {y})", "{x}.minimum({y})"),
        "v = fminf(v, w);",
    ),
    "lerp": Binary(
        "linear interpolation",
        (
            "torch.lerp({x}, {y}, {a})",
            "{x} + {a} * ({y} - {x})",
            "{x}.lerp({y}, {a})",
            "(1 - {a}) * {x} + {a} * {y}",
            "{a} * {y} + (1.0 - {a}) * {x}",
        ),
        "v = v + {a} * (w - v);",
        "weight",
    ),
    "mix": Binary(
        "a weighted mean",
        ("{a} * {x} + (1 - {a}) * {y}", "{a} * {x} + (1.0 - {a}) * {y}", "torch.lerp({y}, {x}, {a})"),
        "v = {a} * v + (1.0f - {a}) * w;",
        "weight",
    ),
    "axpy": Binary(
        "a scaled sum",
        ("{a} * {x} + {y}", "{x} * {a} + {y}", "torch.add({y}, {x}, alpha={a})"),
        "v = {a} * v + w;",
        "scale",
        magnitude=20.0,
    ),
    "add_scaled": Binary(
        "adding a scaled tensor",
        ("{x} + {a} * {y}", "torch.add({x}, {y}, alpha={a})", "{x} + {y} * {a}"),
        "v = v + {a} * w;",
        "scale",
        magnitude=20.0,
    ),
    "sub_scaled": Binary(
        "subtracting a scaled tensor",
        ("{x} - {a} * {y}", "torch.sub({x}, {y}, alpha={a})"),
        "v = v - {a} * w;",
        "scale",
        magnitude=20.0,
    ),
    "squared_difference": Binary(
        "the squared difference",
        ("({x} - {y}) ** 2", "torch.square({x} - {y})", "torch.pow({x} - {y}, 2)", "({x} - {y}).pow(2)"),
        "v = (v - w) * (v - w);",
        magnitude=80.0,
    ),
    "absolute_difference": Binary(
        "the absolute difference", ("torch.abs({x} - {y})", "({x} - {y}).abs()"), "v = fabsf(v - w);"
    ),
    "mean2": Binary(
        "the mean of two tensors", ("({x} + {y}) / 2", "({x} + {y}) * 0.5", "0.5 * ({x} + {y})"), "v = 0.5f * (v + w);"
    ),
    "hypot": Binary(
        "the hypotenuse",
        ("torch.hypot({x}, {y})", "torch.sqrt({x} * {x} + {y} * {y})", "torch.sqrt({x} ** 2 + {y} ** 2)"),
        "v = sqrtf(v * v + w * w);",
    ),
    "where_positive": Binary(
        "a selection by sign", ("torch.where({x} > 0, {x}, {y})",), "v = v > 0.0f ? v : w;", plain_first=True
    ),
    "where_greater": Binary(
        "a selection by threshold",
        ("torch.where({x} > {a}, {x}, {y})",),
        "v = v > {a} ? v : w;",
        "threshold",
        plain_first=True,
    ),
    "addcmul": Binary(
        "a sum with a product",
        ("torch.addcmul({x}, {y}, {z})", "{x} + {y} * {z}", "{x}.addcmul({y}, {z})"),
        "v = v + w * u;",
        inputs=3,
        magnitude=30.0,
    ),
    "addcmul_scaled": Binary(
        "a sum with a scaled product",
        ("torch.addcmul({x}, {y}, {z}, value={a})", "{x} + {a} * {y} * {z}"),
        "v = v + {a} * w * u;",
        "scale",
        3,
        60.0,
    ),
    "fma": Binary(
        "multiply-add",
        ("{x} * {y} + {z}", "torch.add(torch.mul({x}, {y}), {z})", "torch.addcmul({z}, {x}, {y})"),
        "v = v * w + u;",
        inputs=3,
        magnitude=30.0,
    ),
    "add3": Binary(
        "the sum of three tensors",
        ("{x} + {y} + {z}", "torch.add({x}, {y}) + {z}"),
        "v = v + w + u;",
        inputs=3,
        magnitude=15.0,
    ),
    "blend": Binary(
        "a gated blend",
        ("torch.sigmoid({z}) * {x} + (1 - torch.sigmoid({z})) * {y}", "torch.lerp({y}, {x}, torch.sigmoid({z}))"),
        "u = 1.0f / (1.0f + expf(-u)); v = u * v + (1.0f - u) * w;",
        inputs=3,
    ),
    "rsub2": Binary("the second tensor minus the first", ("{y} - {x}", "torch.sub({y}, {x})"), "v = w - v;"),
    "logaddexp": Binary(
        "the log of a sum of exponentials",
        ("torch.logaddexp({x}, {y})", "{x}.logaddexp({y})"),
        "v = fmaxf(v, w) + log1pf(expf(-fabsf(v - w)));",
    ),
    "relative_difference": Binary(
        "a relative difference",
        ("({x} - {y}) / (torch.abs({x}) + torch.abs({y}) + {a})", "({x} - {y}) / ({x}.abs() + {y}.abs() + {a})"),
        "v = (v - w) / (fabsf(v) + fabsf(w) + {a});",
        "shift",
        magnitude=2.0,
    ),
    "sigmoid_gate": Binary(
        "a sigmoid gate",
        ("{x} * torch.sigmoid({y})", "torch.sigmoid({y}) * {x}", "{x} * F.sigmoid({y})", "{x} * {y}.sigmoid()"),
        "v = v / (1.0f + expf(-w));",
    ),
    "silu_gate": Binary(
        "a SiLU gate",
        ("F.silu({y}) * {x}", "{x} * F.silu({y})", "{x} * ({y} * torch.sigmoid({y}))"),
        "v = v * w / (1.0f + expf(-w));",
        magnitude=25.0,
    ),
    "tanh_gate": Binary(
        "a tanh gate", ("{x} * torch.tanh({y})", "torch.tanh({y}) * {x}", "{x} * {y}.tanh()"), "v = v * tanhf(w);"
    ),
    "gelu_gate": Binary(
        "a GELU gate",
        ("{x} * F.gelu({y})", "F.gelu({y}) * {x}"),
        "v = v * 0.5f * w * (1.0f + erff(w * 0.70710678f));",
        magnitude=25.0,
    ),
    "relu_gate": Binary(
        "a ReLU gate",
        ("{x} * torch.relu({y})", "F.relu({y}) * {x}", "{x} * {y}.clamp(min=0)"),
        "v = v * (w < 0.0f ? 0.0f : w);",
        magnitude=25.0,
    ),
    "one_plus": Binary(
        "a residual product",
        ("{x} * (1 + {y})", "{x} + {x} * {y}", "{x} * ({y} + 1.0)"),
        "v = v * (1.0f + w);",
        magnitude=30.0,
    ),
    "shifted_product": Binary(
        "a shifted product", ("({x} + {a}) * {y}", "{y} * ({x} + {a})"), "v = (v + {a}) * w;", "shift", magnitude=35.0
    ),
    "mask_positive": Binary(
        "a mask by the sign of the second tensor",
        ("{x} * ({y} > 0)", "torch.where({y} > 0, {x}, torch.zeros_like({x}))", "{x}.masked_fill({y} <= 0, 0.0)"),
        "v = w > 0.0f ? v : 0.0f;",
        plain_second=True,
    ),
    "weighted_difference": Binary(
        "a weighted difference",
        ("{z} * ({x} - {y})", "({x} - {y}) * {z}", "torch.mul({z}, {x} - {y})"),
        "v = u * (v - w);",
        inputs=3,
        magnitude=40.0,
    ),
    "addcdiv_guarded": Binary(
        "a sum with a guarded quotient",
        ("torch.addcdiv({x}, {y}, torch.abs({z}) + {a})", "{x} + {y} / ({z}.abs() + {a})"),
        "v = v + w / (fabsf(u) + {a});",
        "shift",
        inputs=3,
        magnitude=40.0,
    ),
    "product3": Binary(
        "the product of three tensors",
        ("{x} * {y} * {z}", "torch.mul({x}, {y}) * {z}"),
        "v = v * w * u;",
        inputs=3,
        magnitude=60.0,
    ),
    "maximum3": Binary(
        "the maximum of three tensors",
        ("torch.maximum(torch.maximum({x}, {y}), {z})", "torch.max({x}, torch.max({y}, {z}))"),
        "v = fmaxf(fmaxf(v, w), u);",
        inputs=3,
    ),
    "lerp_tensor": Binary(
        "interpolation by a third tensor",
        ("torch.lerp({x}, {y}, {z})", "{x} + {z} * ({y} - {x})"),
        "v = v + u * (w - v);",
        inputs=3,
        magnitude=40.0,
    ),
    "select3": Binary(
        "a selection by a third tensor",
        ("torch.where({z} > 0, {x}, {y})", "torch.where({z} > 0.0, {x}, {y})"),
        "v = u > 0.0f ? v : w;",
        inputs=3,
    ),
}
