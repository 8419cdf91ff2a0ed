"""Operators on two or three tensors that wide pairs have beside those of `binary.py`."""

from __future__ import annotations

from dice.synth.tables.binary import Binary

COMBINATIONS: dict[str, Binary] = {
    "clamp_between": Binary(
        "clamping between two tensors",
        ("torch.clamp({x}, {y}, {z})", "torch.clamp({x}, min={y}, max={z})", "{x}.clamp({y}, {z})")
        + ("torch.minimum(torch.maximum({x}, {y}), {z})", "torch.clip({x}, {y}, {z})"),
        "v = fminf(fmaxf(v, w), u);",
        inputs=3,
    ),
    "clamp_from": Binary(
        "a lower bound by a tensor", ("torch.clamp({x}, min={y})", "{x}.clamp(min={y})"), "v = fmaxf(v, w);"
    ),
    "clamp_to": Binary(
        "an upper bound by a tensor", ("torch.clamp({x}, max={y})", "{x}.clamp(max={y})"), "v = fminf(v, w);"
    ),
    "lerp_sigmoid": Binary(
        "interpolation by a gate",
        ("torch.lerp({x}, {y}, torch.sigmoid({z}))", "{x} + torch.sigmoid({z}) * ({y} - {x})"),
        "v = v + (w - v) / (1.0f + expf(-u));",
        inputs=3,
    ),
    "addcmul_product": Binary(
        "a scaled product added",
        ("torch.addcmul({x}, {y}, {z}, value={a})", "{x}.addcmul({y}, {z}, value={a})", "{x} + {a} * ({y} * {z})"),
        "v = v + {a} * (w * u);",
        "scale",
        3,
        60.0,
    ),
    "addcdiv_square": Binary(
        "a scaled quotient added",
        ("torch.addcdiv({x}, {y}, {z} * {z} + 1.0, value={a})", "{x} + {a} * {y} / ({z} ** 2 + 1.0)"),
        "v = v + {a} * w / (u * u + 1.0f);",
        "scale",
        3,
        20.0,
    ),
    "copysign": Binary(
        "a magnitude with another's sign",
        ("torch.copysign({x}, {y})", "{x}.copysign({y})"),
        "v = copysignf(v, w);",
        plain_second=True,
    ),
    "atan2": Binary(
        "the angle of two coordinates",
        ("torch.atan2({y}, torch.abs({x}) + {a})", "torch.arctan2({y}, {x}.abs() + {a})"),
        "v = atan2f(w, fabsf(v) + {a});",
        "shift",
        magnitude=3.2,
    ),
    "hypotenuse_guarded": Binary(
        "a smoothed length",
        ("torch.sqrt({x} ** 2 + {y} ** 2 + {a})", "({x}.pow(2) + {y}.pow(2) + {a}).sqrt()"),
        "v = sqrtf(v * v + w * w + {a});",
        "shift",
    ),
    "larger_magnitude": Binary(
        "the value of larger magnitude",
        ("torch.where({x}.abs() > {y}.abs(), {x}, {y})", "torch.where(torch.abs({x}) > torch.abs({y}), {x}, {y})"),
        "v = fabsf(v) > fabsf(w) ? v : w;",
        plain_first=True,
        plain_second=True,
    ),
    "logaddexp2": Binary(
        "the base-two log of a sum of powers",
        ("torch.logaddexp2({x}, {y})", "{x}.logaddexp2({y})"),
        "v = fmaxf(v, w) + log1pf(exp2f(-fabsf(v - w))) * 1.44269504f;",
    ),
    "swish_gate": Binary(
        "a Swish whose slope is a tensor",
        ("{x} * torch.sigmoid({a} * {y})", "{x} * ({a} * {y}).sigmoid()"),
        "v = v / (1.0f + expf(-{a} * w));",
        "scale",
    ),
    "mish_gate": Binary(
        "a Mish gate", ("{x} * F.mish({y})", "F.mish({y}) * {x}"), "v = v * w * tanhf(w > 20.0f ? w : log1pf(expf(w)));"
    ),
    "softplus_scale": Binary(
        "a positive scale",
        ("{x} * F.softplus({y})", "F.softplus({y}) * {x}"),
        "v = v * (w > 20.0f ? w : log1pf(expf(w)));",
        magnitude=30.0,
    ),
    "reparametrize": Binary(
        "a sample by mean and log-variance",
        ("{x} + torch.exp(0.5 * {y}) * {z}", "{z} * torch.exp({y} / 2) + {x}"),
        "v = v + expf(0.5f * w) * u;",
        inputs=3,
        magnitude=60.0,
        plain_second=True,
    ),
    "gaussian_weight": Binary(
        "a weight that falls with the distance",
        ("{x} * torch.exp(-(({x} - {y}) ** 2) / {a})", "torch.exp(-({x} - {y}).pow(2) / {a}) * {x}"),
        "v = v * expf(-(v - w) * (v - w) / {a});",
        "scale",
    ),
    "normalized_pair": Binary(
        "one component of a normalised pair",
        ("{x} * torch.rsqrt({x} ** 2 + {y} ** 2 + {a})", "{x} / torch.sqrt({x} * {x} + {y} * {y} + {a})"),
        "v = v * rsqrtf(v * v + w * w + {a});",
        "shift",
        magnitude=1.0,
    ),
    "two_way_softmax": Binary(
        "the first of a softmax of two",
        ("torch.exp({x}) / (torch.exp({x}) + torch.exp({y}))", "torch.softmax(torch.stack([{x}, {y}]), dim=0)[0]"),
        "v = 1.0f / (1.0f + expf(w - v));",
        magnitude=1.0,
        plain_first=True,
        plain_second=True,
    ),
    "huber_difference": Binary(
        "a Huber-like difference",
        ("torch.sqrt(1 + (({x} - {y}) / {a}) ** 2) - 1", "(1 + (({x} - {y}) / {a}).pow(2)).sqrt() - 1"),
        "w = (v - w) / {a}; v = sqrtf(1.0f + w * w) - 1.0f;",
        "scale",
        magnitude=40.0,
    ),
    "momentum_step": Binary(
        "a step of gradient descent with momentum",
        ("{x} - {a} * (0.9 * {z} + {y})", "{x} - {a} * ({z} * 0.9 + {y})"),
        "v = v - {a} * (0.9f * u + w);",
        "scale",
        3,
        40.0,
    ),
    "adam_step": Binary(
        "a step of Adam without bias",
        ("{x} - {a} * {y} / (torch.sqrt(torch.abs({z})) + 0.1)", "{x} - {a} * ({y} / ({z}.abs().sqrt() + 0.1))"),
        "v = v - {a} * w / (sqrtf(fabsf(u)) + 0.1f);",
        "scale",
        3,
        60.0,
        plain_second=True,
    ),
}
