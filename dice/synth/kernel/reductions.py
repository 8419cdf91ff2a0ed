"""Reductions of a row to one value."""

from __future__ import annotations

from dataclasses import dataclass

from dice.synth.kernel.rows import ARGMAX, ARGMIN, EXP, MAX, MIN, MOMENTS, SQUARES, SUM


@dataclass(frozen=True, slots=True)
class Reduction:
    """{d} is the dimension, {k} the keepdim argument. `body` has {load}, {loop} and reductions as <kind:variable>."""

    phrase: str
    spellings: tuple[str, ...]
    body: str
    result: str
    kinds: tuple[str, ...]
    magnitude: float = 60.0
    several: bool = True  # also over two dimensions at once, or all
    all_spellings: tuple[str, ...] = ()


REDUCTIONS: dict[str, Reduction] = {
    "sum": Reduction(
        "a sum",
        ("torch.sum({x}, dim={d}{k})", "{x}.sum(dim={d}{k})", "{x}.sum({d}{k})", "torch.sum({x}, {d}{k})"),
        SUM,
        "s",
        ("sum",),
        100.0,
        True,
        ("torch.sum({x})", "{x}.sum()"),
    ),
    "mean": Reduction(
        "a mean",
        ("torch.mean({x}, dim={d}{k})", "{x}.mean(dim={d}{k})", "{x}.mean({d}{k})", "torch.mean({x}, {d}{k})"),
        SUM,
        "s / D",
        ("sum",),
        5.0,
        True,
        ("torch.mean({x})", "{x}.mean()"),
    ),
    "max": Reduction(
        "a maximum",
        (
            "torch.amax({x}, dim={d}{k})",
            "{x}.amax(dim={d}{k})",
            "torch.max({x}, dim={d}{k})[0]",
            "torch.max({x}, dim={d}{k}).values",
            "{x}.max(dim={d}{k})[0]",
        ),
        MAX,
        "m",
        ("max",),
        6.0,
        True,
        ("torch.max({x})", "{x}.max()"),
    ),
    "min": Reduction(
        "a minimum",
        (
            "torch.amin({x}, dim={d}{k})",
            "{x}.amin(dim={d}{k})",
            "torch.min({x}, dim={d}{k})[0]",
            "torch.min({x}, dim={d}{k}).values",
            "{x}.min(dim={d}{k})[0]",
        ),
        MIN,
        "m",
        ("min",),
        6.0,
        True,
        ("torch.min({x})", "{x}.min()"),
    ),
    "prod": Reduction(
        "a product",
        ("torch.prod({x}, dim={d}{k})", "{x}.prod(dim={d}{k})"),
        "float s = 1.0f;\n{loop} s *= {load};\n<prod:s>\n",
        "s",
        ("prod",),
        100.0,
        False,
    ),
    "l1": Reduction(
        "an L1 norm",
        (
            "torch.norm({x}, p=1, dim={d}{k})",
            "torch.linalg.vector_norm({x}, ord=1, dim={d}{k})",
            "{x}.abs().sum(dim={d}{k})",
            "torch.sum(torch.abs({x}), dim={d}{k})",
        ),
        "float s = 0.0f;\n{loop} s += fabsf({load});\n<sum:s>\n",
        "s",
        ("sum",),
        100.0,
    ),
    "l2": Reduction(
        "an L2 norm",
        (
            "torch.norm({x}, p=2, dim={d}{k})",
            "torch.norm({x}, dim={d}{k})",
            "{x}.norm(dim={d}{k})",
            "torch.linalg.vector_norm({x}, dim={d}{k})",
            "torch.sqrt(torch.sum({x} ** 2, dim={d}{k}))",
        ),
        SQUARES,
        "sqrtf(s)",
        ("sum",),
        50.0,
        True,
        ("torch.norm({x})", "{x}.norm()"),
    ),
    "var": Reduction(
        "a variance",
        ("torch.var({x}, dim={d}{k})", "{x}.var(dim={d}{k})"),
        MOMENTS,
        "q / (D - 1)",
        ("sum",),
        10.0,
        True,
        ("torch.var({x})", "{x}.var()"),
    ),
    "var_biased": Reduction(
        "a biased variance",
        (
            "torch.var({x}, dim={d}, unbiased=False{k})",
            "{x}.var(dim={d}, unbiased=False{k})",
            "torch.var({x}, dim={d}, correction=0{k})",
        ),
        MOMENTS,
        "q / D",
        ("sum",),
        10.0,
    ),
    "std": Reduction(
        "a standard deviation",
        ("torch.std({x}, dim={d}{k})", "{x}.std(dim={d}{k})"),
        MOMENTS,
        "sqrtf(q / (D - 1))",
        ("sum",),
        5.0,
        True,
        ("torch.std({x})", "{x}.std()"),
    ),
    "logsumexp": Reduction(
        "a log-sum-exp",
        ("torch.logsumexp({x}, dim={d}{k})", "{x}.logsumexp(dim={d}{k})"),
        EXP,
        "m + logf(s)",
        ("max", "sum"),
        15.0,
    ),
    "argmax": Reduction(
        "the index of the maximum",
        (
            "torch.argmax({x}, dim={d}{k})",
            "{x}.argmax(dim={d}{k})",
            "torch.max({x}, dim={d}{k})[1]",
            "torch.max({x}, dim={d}{k}).indices",
        ),
        ARGMAX,
        "k",
        ("max", "min"),
        0.0,
        False,
    ),
    "argmin": Reduction(
        "the index of the minimum",
        ("torch.argmin({x}, dim={d}{k})", "{x}.argmin(dim={d}{k})", "torch.min({x}, dim={d}{k})[1]"),
        ARGMIN,
        "k",
        ("min",),
        0.0,
        False,
    ),
    "sum_squares": Reduction(
        "a sum of squares",
        ("torch.sum({x} ** 2, dim={d}{k})", "{x}.pow(2).sum(dim={d}{k})", "torch.sum(torch.square({x}), dim={d}{k})"),
        SQUARES,
        "s",
        ("sum",),
        100.0,
        True,
        ("torch.sum({x} ** 2)", "{x}.pow(2).sum()"),
    ),
    "mean_square": Reduction(
        "a mean square",
        ("torch.mean({x} ** 2, dim={d}{k})", "{x}.pow(2).mean(dim={d}{k})", "{x}.square().mean(dim={d}{k})"),
        SQUARES,
        "s / D",
        ("sum",),
        20.0,
        True,
        ("torch.mean({x} ** 2)", "{x}.square().mean()"),
    ),
    "rms": Reduction(
        "a root mean square",
        ("torch.sqrt(torch.mean({x} ** 2, dim={d}{k}))", "{x}.pow(2).mean(dim={d}{k}).sqrt()"),
        SQUARES,
        "sqrtf(s / D)",
        ("sum",),
        6.0,
    ),
    "mean_abs": Reduction(
        "a mean absolute value",
        ("torch.mean(torch.abs({x}), dim={d}{k})", "{x}.abs().mean(dim={d}{k})"),
        "float s = 0.0f;\n{loop} s += fabsf({load});\n<sum:s>\n",
        "s / D",
        ("sum",),
        5.0,
        True,
        ("torch.mean(torch.abs({x}))", "{x}.abs().mean()"),
    ),
    "max_abs": Reduction(
        "a maximum norm",
        (
            "torch.amax(torch.abs({x}), dim={d}{k})",
            "{x}.abs().amax(dim={d}{k})",
            "torch.norm({x}, p=float('inf'), dim={d}{k})",
            "torch.linalg.vector_norm({x}, ord=float('inf'), dim={d}{k})",
        ),
        "float m = 0.0f;\n{loop} m = fmaxf(m, fabsf({load}));\n<max:m>\n",
        "m",
        ("max",),
        6.0,
    ),
    "range": Reduction(
        "the range of values",
        (
            "torch.amax({x}, dim={d}{k}) - torch.amin({x}, dim={d}{k})",
            "{x}.amax(dim={d}{k}) - {x}.amin(dim={d}{k})",
        ),
        MAX + "float q = INFINITY;\n{loop} q = fminf(q, {load});\n<min:q>\n",
        "m - q",
        ("max", "min"),
        12.0,
    ),
    "sum_exp": Reduction(
        "a sum of exponentials",
        ("torch.sum(torch.exp({x}), dim={d}{k})", "{x}.exp().sum(dim={d}{k})"),
        "float s = 0.0f;\n{loop} s += expf({load});\n<sum:s>\n",
        "s",
        ("sum",),
        300.0,
    ),
    "std_biased": Reduction(
        "a biased standard deviation",
        (
            "torch.std({x}, dim={d}, unbiased=False{k})",
            "{x}.std(dim={d}, unbiased=False{k})",
            "torch.std({x}, dim={d}, correction=0{k})",
        ),
        MOMENTS,
        "sqrtf(q / D)",
        ("sum",),
        5.0,
    ),
    "logmeanexp": Reduction(
        "a log-mean-exp",
        ("torch.log(torch.mean(torch.exp({x}), dim={d}{k}))", "{x}.exp().mean(dim={d}{k}).log()"),
        EXP,
        "m + logf(s / D)",
        ("max", "sum"),
        10.0,
    ),
}
