"""The losses: elementwise ones that are reduced over everything, and those that work row by row."""

from __future__ import annotations

from dataclasses import dataclass

from dice.synth.kernel.rows import EXP

Inputs = tuple[tuple[str, str | None], ...]  # role and how it is made (None: as the style makes inputs)
_PAIR: Inputs = (("predictions", None), ("targets", None))
_BINARY: Inputs = (("predictions", "torch.randn({shape})"), ("targets", "torch.rand({shape})"))
_LABELLED: Inputs = (("predictions", "torch.randn({shape})"), ("targets", "torch.randint(0, 2, ({shape},)).float()"))
_SIGNS: Inputs = (
    ("predictions", "torch.randn({shape})"),
    ("targets", "torch.randint(0, 2, ({shape},)).float() * 2 - 1"),
)
ROW_LABELS: Inputs = (("predictions", "torch.randn({shape})"), ("labels", "torch.randint(0, {classes}, ({shape},))"))
_VECTORS: Inputs = (("x1", "torch.randn({shape})"), ("x2", "torch.randn({shape})"))
_TRIPLET: Inputs = (
    ("anchor", "torch.randn({shape})"),
    ("positive", "torch.randn({shape})"),
    ("negative", "torch.randn({shape})"),
)


@dataclass(frozen=True, slots=True)
class Loss:
    """`statement` turns v (prediction) and w (target) into the element's loss; row losses have a `body` and `result`.

    Spellings hold {r}, the reduction argument; explicit ones hold {R}, the method that reduces (`.mean()`).
    """

    phrase: str
    spellings: tuple[str, ...]
    explicit: tuple[str, ...] = ()
    module: str = ""
    statement: str = ""
    body: str = ""
    result: str = ""
    kinds: tuple[str, ...] = ("sum",)
    inputs: Inputs = _PAIR
    scalar: str = ""
    chain: bool = True
    default: str = "1.0"  # PyTorch's own threshold or margin, which may be left out


_WEIGHTED: Inputs = (("predictions", None), ("targets", None), ("row", "torch.rand({shape})"))
_VARIANCE: Inputs = (("predictions", None), ("targets", None), ("variance", "torch.rand({shape}) + 0.2"))
_RANKED: Inputs = (("x1", None), ("x2", None), ("targets", "torch.randint(0, 2, ({shape},)).float() * 2 - 1"))
_SOFT: Inputs = (("predictions", "torch.randn({shape})"), ("targets", "torch.softmax(torch.randn({shape}), dim=1)"))

_DISTRIBUTION = "torch.rand({shape}).softmax(dim=-1)"
_DISTRIBUTIONS: Inputs = (("predictions", _DISTRIBUTION), ("targets", _DISTRIBUTION))

_COSINE = """float s = 0.0f, a = 0.0f, b = 0.0f;
{loop} {{
    float v = x[base + j], w = y[base + j];
    s += v * w;
    a += v * v;
    b += w * w;
}}
<sum:s>
<sum:a>
<sum:b>
"""
_DISTANCES = """float s = 0.0f, q = 0.0f;
{loop} {{
    float v = x[base + j] - y[base + j] + 1e-6f, w = x[base + j] - z[base + j] + 1e-6f;
    s += v * v;
    q += w * w;
}}
<sum:s>
<sum:q>
"""

LOSSES: dict[str, Loss] = {
    "mse": Loss(
        "mean squared error",
        ("F.mse_loss({x}, {y}{r})",),
        ("(({x} - {y}) ** 2){R}", "torch.square({x} - {y}){R}", "({x} - {y}).pow(2){R}"),
        "nn.MSELoss({r})",
        "v = (v - w) * (v - w);",
    ),
    "l1": Loss(
        "absolute error",
        ("F.l1_loss({x}, {y}{r})",),
        ("torch.abs({x} - {y}){R}", "({x} - {y}).abs(){R}"),
        "nn.L1Loss({r})",
        "v = fabsf(v - w);",
    ),
    "smooth_l1": Loss(
        "smooth L1 loss",
        ("F.smooth_l1_loss({x}, {y}{r}, beta={a})",),
        (),
        "nn.SmoothL1Loss({r}, beta={a})",
        "v = fabsf(v - w);\n        v = v < {a} ? 0.5f * v * v / {a} : v - 0.5f * {a};",
        scalar="beta",
    ),
    "huber": Loss(
        "Huber loss",
        ("F.huber_loss({x}, {y}{r}, delta={a})",),
        (),
        "nn.HuberLoss({r}, delta={a})",
        "v = fabsf(v - w);\n        v = v < {a} ? 0.5f * v * v : {a} * (v - 0.5f * {a});",
        scalar="beta",
    ),
    "bce": Loss(
        "binary cross-entropy of a sigmoid",
        ("F.binary_cross_entropy(torch.sigmoid({x}), {y}{r})",),
        (),
        "",
        "v = 1.0f / (1.0f + expf(-v));\n"
        "        v = -w * fmaxf(logf(v), -100.0f) - (1.0f - w) * fmaxf(logf(1.0f - v), -100.0f);",
        inputs=_BINARY,
        chain=False,
    ),
    "bce_with_logits": Loss(
        "binary cross-entropy with logits",
        ("F.binary_cross_entropy_with_logits({x}, {y}{r})",),
        (),
        "nn.BCEWithLogitsLoss({r})",
        "v = fmaxf(v, 0.0f) - v * w + log1pf(expf(-fabsf(v)));",
        inputs=_BINARY,
    ),
    "hinge": Loss(
        "hinge loss",
        (),
        ("torch.clamp(1 - {x} * {y}, min=0){R}", "F.relu(1 - {x} * {y}){R}", "torch.relu(1.0 - {y} * {x}){R}"),
        "",
        "v = fmaxf(1.0f - v * w, 0.0f);",
        inputs=_SIGNS,
    ),
    "squared_hinge": Loss(
        "squared hinge loss",
        (),
        ("torch.clamp(1 - {x} * {y}, min=0).pow(2){R}", "(torch.relu(1 - {x} * {y}) ** 2){R}"),
        "",
        "v = fmaxf(1.0f - v * w, 0.0f);\n        v = v * v;",
        inputs=_SIGNS,
    ),
    "margin": Loss(
        "hinge loss with a margin",
        (),
        ("torch.clamp({a} - {x} * {y}, min=0){R}", "F.relu({a} - {x} * {y}){R}"),
        "",
        "v = fmaxf({a} - v * w, 0.0f);",
        inputs=_SIGNS,
        scalar="margin",
    ),
    "soft_margin": Loss(
        "soft margin loss",
        ("F.soft_margin_loss({x}, {y}{r})",),
        ("torch.log1p(torch.exp(-{y} * {x})){R}",),
        "nn.SoftMarginLoss({r})",
        "v = log1pf(expf(-v * w));",
        inputs=_SIGNS,
    ),
    "log_cosh": Loss("log-cosh loss", (), ("torch.log(torch.cosh({x} - {y})){R}",), "", "v = logf(coshf(v - w));"),
    "poisson_nll": Loss(
        "Poisson negative log-likelihood",
        ("F.poisson_nll_loss({x}, {y}{r})",),
        ("(torch.exp({x}) - {y} * {x}){R}",),
        "nn.PoissonNLLLoss({r})",
        "v = expf(v) - w * v;",
        inputs=_BINARY,
    ),
    "charbonnier": Loss(
        "Charbonnier loss",
        (),
        ("torch.sqrt(({x} - {y}) ** 2 + {a}){R}",),
        "",
        "v = sqrtf((v - w) * (v - w) + {a});",
        scalar="eps",
    ),
    "cross_entropy": Loss(
        "cross-entropy",
        ("F.cross_entropy({x}, {y}{r})", "F.nll_loss(F.log_softmax({x}, dim=1), {y}{r})"),
        (),
        "nn.CrossEntropyLoss({r})",
        body=EXP,
        result="logf(s) + m - {target}",
        kinds=("max", "sum"),
        inputs=ROW_LABELS,
    ),
    "nll": Loss(
        "negative log-likelihood",
        ("F.nll_loss({x}, {y}{r})",),
        (),
        "nn.NLLLoss({r})",
        body="",
        result="-{target}",
        kinds=(),
        inputs=ROW_LABELS,
    ),
    "kl_div": Loss(
        "Kullback-Leibler divergence",
        ("F.kl_div({x}, {y}{r})",),
        (),
        "nn.KLDivLoss({r})",
        "v = (w == 0.0f ? 0.0f : w * logf(w)) - w * v;",
        inputs=_BINARY,
    ),
    "cosine": Loss(
        "one minus cosine similarity",
        (),
        ("(1 - F.cosine_similarity({x}, {y}, dim=1)){R}", "(1 - F.cosine_similarity({x}, {y}, dim=-1)){R}"),
        "",
        body=_COSINE,
        result="1.0f - s / fmaxf(sqrtf(a * b), 1e-8f)",
        inputs=_VECTORS,
        chain=False,
    ),
    "triplet": Loss(
        "triplet margin loss",
        ("F.triplet_margin_loss({x}, {y}, {z}, margin={a}{r})",),
        (),
        "nn.TripletMarginLoss(margin={a}{r})",
        body=_DISTANCES,
        result="fmaxf(sqrtf(s) - sqrtf(q) + {a}, 0.0f)",
        inputs=_TRIPLET,
        scalar="margin",
        chain=False,
    ),
    "gaussian_nll": Loss(
        "Gaussian negative log-likelihood",
        ("F.gaussian_nll_loss({x}, {y}, {z}{r})",),
        ("(0.5 * (torch.log({z}) + ({x} - {y}) ** 2 / {z})){R}",),
        "nn.GaussianNLLLoss({r})",
        "u = fmaxf(u, 1e-6f);\n        v = 0.5f * (logf(u) + (v - w) * (v - w) / u);",
        inputs=_VARIANCE,
    ),
    "weighted_mse": Loss(
        "weighted squared error",
        (),
        ("({z} * ({x} - {y}) ** 2){R}", "(({x} - {y}).pow(2) * {z}){R}"),
        "",
        "v = u * (v - w) * (v - w);",
        inputs=_WEIGHTED,
    ),
    "weighted_l1": Loss(
        "weighted absolute error",
        (),
        ("({z} * torch.abs({x} - {y})){R}", "(({x} - {y}).abs() * {z}){R}"),
        "",
        "v = u * fabsf(v - w);",
        inputs=_WEIGHTED,
    ),
    "margin_ranking": Loss(
        "margin ranking loss",
        ("F.margin_ranking_loss({x}, {y}, {z}, margin={a}{r})",),
        ("torch.clamp({a} - {z} * ({x} - {y}), min=0){R}",),
        "nn.MarginRankingLoss(margin={a}{r})",
        "v = fmaxf({a} - u * (v - w), 0.0f);",
        inputs=_RANKED,
        scalar="margin",
        default="0.0",
    ),
    "hinge_embedding": Loss(
        "hinge embedding loss",
        ("F.hinge_embedding_loss({x}, {y}, margin={a}{r})",),
        (),
        "nn.HingeEmbeddingLoss(margin={a}{r})",
        "v = w > 0.0f ? v : fmaxf({a} - v, 0.0f);",
        inputs=_SIGNS,
        scalar="margin",
    ),
    "quantile": Loss(
        "quantile loss",
        (),
        ("torch.maximum({a} * ({y} - {x}), ({a} - 1) * ({y} - {x})){R}",),
        "",
        "v = w - v;\n        v = fmaxf({a} * v, ({a} - 1.0f) * v);",
        scalar="quantile",
    ),
    "focal": Loss(
        "focal loss",
        (),
        (
            "((1 - torch.exp(-F.binary_cross_entropy_with_logits({x}, {y}, reduction='none'))) ** 2"
            " * F.binary_cross_entropy_with_logits({x}, {y}, reduction='none')){R}",
        ),
        "",
        "v = fmaxf(v, 0.0f) - v * w + log1pf(expf(-fabsf(v)));\n        w = 1.0f - expf(-v);\n        v = w * w * v;",
        inputs=_BINARY,
    ),
    "relative_error": Loss(
        "relative error",
        (),
        ("(torch.abs({x} - {y}) / (torch.abs({y}) + {a})){R}", "(({x} - {y}).abs() / ({y}.abs() + {a})){R}"),
        "",
        "v = fabsf(v - w) / (fabsf(w) + {a});",
        scalar="margin",
    ),
    "cauchy": Loss(
        "Cauchy loss",
        (),
        ("torch.log1p((({x} - {y}) / {a}) ** 2){R}", "torch.log(1 + (({x} - {y}) / {a}).pow(2)){R}"),
        "",
        "v = (v - w) / {a};\n        v = log1pf(v * v);",
        scalar="margin",
    ),
    "kl_div_of_probabilities": Loss(
        "Kullback-Leibler divergence of probabilities",
        ("F.kl_div(torch.log({x}), {y}{r})", "F.kl_div({x}.log(), {y}{r})"),
        (),
        "",
        "v = (w == 0.0f ? 0.0f : w * logf(w)) - w * logf(v);",
        inputs=_DISTRIBUTIONS,
        chain=False,
    ),
    "kl_div_log": Loss(
        "Kullback-Leibler divergence of log-probabilities",
        ("F.kl_div({x}, {y}{r}, log_target=True)",),
        (),
        "",
        "v = expf(w) * (w - v);",
    ),
    "label_smoothing": Loss(
        "cross-entropy with label smoothing",
        ("F.cross_entropy({x}, {y}, label_smoothing={a}{r})",),
        (),
        "nn.CrossEntropyLoss(label_smoothing={a}{r})",
        body=EXP + "float q = 0.0f;\n{loop} q += {load};\n<sum:q>\n",
        result="logf(s) + m - (1.0f - {a}) * {target} - {a} * q / D",
        kinds=("max", "sum"),
        inputs=ROW_LABELS,
        scalar="smoothing",
    ),
    "soft_cross_entropy": Loss(
        "cross-entropy with soft targets",
        ("F.cross_entropy({x}, {y}{r})",),
        ("-({y} * F.log_softmax({x}, dim=1)).sum(dim=1){R}", "(-{y} * torch.log_softmax({x}, dim=1)).sum(1){R}"),
        "nn.CrossEntropyLoss({r})",
        body=EXP + "float q = 0.0f, p = 0.0f;\n"
        "{loop} {{\n    q += y[base + j];\n    p += y[base + j] * {load};\n}}\n<sum:q>\n<sum:p>\n",
        result="(logf(s) + m) * q - p",
        kinds=("max", "sum"),
        inputs=_SOFT,
    ),
    "multi_margin": Loss(
        "multi-class margin loss",
        ("F.multi_margin_loss({x}, {y}, margin={a}{r})",),
        (),
        "nn.MultiMarginLoss(margin={a}{r})",
        body="float s = 0.0f;\n{loop} if (j != y[row]) s += fmaxf({a} - x[base + y[row]] + x[base + j], 0.0f);\n"
        "<sum:s>\n",
        result="s / D",
        inputs=ROW_LABELS,
        scalar="margin",
        chain=False,
    ),
    "multilabel_soft_margin": Loss(
        "multi-label soft margin loss",
        ("F.multilabel_soft_margin_loss({x}, {y}{r})",),
        (),
        "nn.MultiLabelSoftMarginLoss({r})",
        body="float s = 0.0f;\n{loop} {{\n    float v = {load};\n    s += fmaxf(v, 0.0f) - v * y[base + j]"
        " + log1pf(expf(-fabsf(v)));\n}}\n<sum:s>\n",
        result="s / D",
        inputs=_LABELLED,
    ),
    "pairwise_distance": Loss(
        "the Euclidean distance of pairs",
        (),
        ("F.pairwise_distance({x}, {y}){R}", "torch.norm({x} - {y} + 1e-6, dim=1){R}"),
        "",
        body="float s = 0.0f;\n{loop} {{\n    float v = x[base + j] - y[base + j] + 1e-6f;\n    s += v * v;\n}}\n"
        "<sum:s>\n",
        result="sqrtf(s)",
        inputs=_VECTORS,
        chain=False,
    ),
    "dice": Loss(
        "soft Dice loss",
        (),
        (
            "(1 - (2 * (torch.sigmoid({x}) * {y}).sum(dim=1) + 1)"
            " / (torch.sigmoid({x}).sum(dim=1) + {y}.sum(dim=1) + 1)){R}",
        ),
        "",
        body="float s = 0.0f, q = 0.0f;\n{loop} {{\n    float v = {load}, w = y[base + j];\n"
        "    v = 1.0f / (1.0f + expf(-v));\n"
        "    s += v * w;\n    q += v + w;\n}}\n<sum:s>\n<sum:q>\n",
        result="1.0f - (2.0f * s + 1.0f) / (q + 1.0f)",
        inputs=_LABELLED,
    ),
    "jensen_shannon": Loss(
        "a Jensen-Shannon divergence",
        (),
        (
            "(0.5 * ({x} * torch.log(2 * {x} / ({x} + {y}))).sum(dim=1)"
            " + 0.5 * ({y} * torch.log(2 * {y} / ({x} + {y}))).sum(dim=1)){R}",
        ),
        "",
        body="float s = 0.0f;\n{loop} {{\n    float v = x[base + j], w = y[base + j];\n"
        "    s += 0.5f * v * logf(2.0f * v / (v + w)) + 0.5f * w * logf(2.0f * w / (v + w));\n}}\n<sum:s>\n",
        result="s",
        inputs=(
            ("predictions", "torch.softmax(torch.randn({shape}), dim=1)"),
            ("targets", "torch.softmax(torch.randn({shape}), dim=1)"),
        ),
        chain=False,
    ),
}
