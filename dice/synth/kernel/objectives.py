"""Losses that wide pairs have beside those of `losses.py`."""

from __future__ import annotations

from dice.synth.kernel.losses import ROW_LABELS, Inputs, Loss

_PROBABILITIES: Inputs = (("predictions", "torch.sigmoid(torch.randn({shape}))"), ("targets", "torch.rand({shape})"))
_POSITIVE: Inputs = (("predictions", "torch.rand({shape}) + 0.1"), ("targets", "torch.rand({shape}) + 0.1"))
_SIGNS: Inputs = (
    ("predictions", "torch.randn({shape})"),
    ("targets", "torch.randint(0, 2, ({shape},)).float() * 2 - 1"),
)
_VECTORS: Inputs = (("x1", "torch.randn({shape})"), ("x2", "torch.randn({shape})"))
_LOGITS: Inputs = (("predictions", "torch.randn({shape})"), ("targets", "torch.randn({shape})"))

OBJECTIVES: dict[str, Loss] = {
    "bce_of_probabilities": Loss(
        "binary cross-entropy",
        ("F.binary_cross_entropy({x}, {y}{r})",),
        (),
        "nn.BCELoss({r})",
        "v = -w * fmaxf(logf(v), -100.0f) - (1.0f - w) * fmaxf(logf(1.0f - v), -100.0f);",
        inputs=_PROBABILITIES,
        chain=False,
    ),
    "log_mse": Loss(
        "squared error of logarithms",
        ("F.mse_loss(torch.log1p({x}), torch.log1p({y}){r})",),
        ("((torch.log1p({x}) - torch.log1p({y})) ** 2){R}",),
        "",
        "v = log1pf(v) - log1pf(w);\n        v = v * v;",
        inputs=_POSITIVE,
        chain=False,
    ),
    "poisson_rate": Loss(
        "Poisson loss of rates",
        ("F.poisson_nll_loss({x}, {y}, log_input=False{r})",),
        ("({x} - {y} * torch.log({x} + 1e-8)){R}",),
        "nn.PoissonNLLLoss(log_input=False{r})",
        "v = v - w * logf(v + 1e-8f);",
        inputs=_POSITIVE,
        chain=False,
    ),
    "exponential": Loss(
        "exponential loss",
        (),
        ("torch.exp(-{y} * {x}){R}", "torch.exp(-({x} * {y})){R}"),
        "",
        "v = expf(-w * v);",
        inputs=_SIGNS,
    ),
    "insensitive": Loss(
        "epsilon-insensitive loss",
        (),
        ("torch.relu(torch.abs({x} - {y}) - {a}){R}", "(({x} - {y}).abs() - {a}).clamp(min=0){R}"),
        "",
        "v = fmaxf(fabsf(v - w) - {a}, 0.0f);",
        scalar="margin",
    ),
    "correntropy": Loss(
        "a correntropy loss",
        (),
        ("(1 - torch.exp(-(({x} - {y}) ** 2) / {a})){R}", "(1.0 - torch.exp(-({x} - {y}).pow(2) / {a})){R}"),
        "",
        "v = 1.0f - expf(-(v - w) * (v - w) / {a});",
        scalar="margin",
    ),
    "geman_mcclure": Loss(
        "Geman-McClure loss",
        (),
        ("(({x} - {y}) ** 2 / (({x} - {y}) ** 2 + {a})){R}", "(({x} - {y}).pow(2) / ({a} + ({x} - {y}).pow(2))){R}"),
        "",
        "v = (v - w) * (v - w);\n        v = v / (v + {a});",
        scalar="margin",
    ),
    "symmetric_error": Loss(
        "symmetric relative error",
        (),
        ("(2 * torch.abs({x} - {y}) / (torch.abs({x}) + torch.abs({y}) + {a})){R}",),
        "",
        "v = 2.0f * fabsf(v - w) / (fabsf(v) + fabsf(w) + {a});",
        scalar="margin",
    ),
    "focal_classes": Loss(
        "focal loss over classes",
        (),
        (
            "((1 - torch.exp(-F.cross_entropy({x}, {y}, reduction='none'))) ** 2"
            " * F.cross_entropy({x}, {y}, reduction='none')){R}",
        ),
        "",
        body="float m = -1e30f, s = 0.0f;\n{loop} {{\n    float d = {load}, t = fmaxf(m, d);\n"
        "    s = s * expf(m - t) + expf(d - t);\n    m = t;\n}}\n<top:s>\n<sum:s>\n"
        "float c = logf(s) + m - x[base + y[row]], p = 1.0f - expf(-c);\n",
        result="p * p * c",
        kinds=("max", "sum"),
        inputs=ROW_LABELS,
        chain=False,
    ),
    "cosine_target": Loss(
        "squared deviation of a cosine from one",
        (),
        ("((1 - F.cosine_similarity({x}, {y}, dim=-1)) ** 2){R}",),
        "",
        body="float s = 0.0f, a = 0.0f, b = 0.0f;\n{loop} {{\n    float v = x[base + j], w = y[base + j];\n"
        "    s += v * w;\n    a += v * v;\n    b += w * w;\n}}\n<sum:s>\n<sum:a>\n<sum:b>\n"
        "float c = 1.0f - s / fmaxf(sqrtf(a * b), 1e-8f);\n",
        result="c * c",
        inputs=_VECTORS,
        chain=False,
    ),
    "distillation": Loss(
        "divergence of two softmaxes",
        (),
        ("(F.softmax({y}, dim=1) * (F.log_softmax({y}, dim=1) - F.log_softmax({x}, dim=1))).sum(dim=1){R}",)
        + ("F.kl_div(F.log_softmax({x}, dim=1), F.softmax({y}, dim=1), reduction='none').sum(1){R}",),
        "",
        body="float m = -INFINITY, p = -INFINITY;\n{loop} {{\n    m = fmaxf(m, x[base + j]);\n"
        "    p = fmaxf(p, y[base + j]);\n}}\n<max:m>\n<max:p>\nfloat s = 0.0f, q = 0.0f, c = 0.0f;\n"
        "{loop} {{\n    float v = x[base + j] - m, w = y[base + j] - p, e = expf(w);\n    s += expf(v);\n"
        "    q += e;\n    c += e * (w - v);\n}}\n<sum:s>\n<sum:q>\n<sum:c>\n",
        result="c / q - logf(q) + logf(s)",
        kinds=("max", "sum"),
        inputs=_LOGITS,
        chain=False,
    ),
}
