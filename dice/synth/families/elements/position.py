"""What depends on a token's position: rotary embeddings in their forms, biases of attention scores, sinusoids."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from dice.synth.kernel.cuda import KernelFile, Tensor, lines
from dice.synth.problem.builder import ProblemBuilder
from dice.synth.problem.chain import ChainState, chain_length, chains, draw_chain
from dice.synth.problem.plan import Draft, Plan
from dice.synth.problem.shapes import describe, sentence
from dice.synth.problem.tensors import Value

NAME = "position"
_STATE = ChainState("any", 12.0, False)
Form = tuple[str, ...]  # statements, the last of them the value; {p}, {q}, ... are names of their own


@dataclass(frozen=True, slots=True)
class Position:
    """`inputs`: name in the kernel -> shape by letter (f: half of d), how it is made. `weights`: parameters alike.
    `forms`: ways to write it. `lines`: set v from i, with sizes by letter."""

    phrase: str
    inputs: dict[str, tuple[str, str]]
    forms: tuple[Form, ...]
    lines: tuple[str, ...]
    sizes: str
    weights: dict[str, str] | None = None


_NORMAL = "torch.randn({shape})"
_ANGLES = "torch.rand({shape}) * 6.28"
_HEADS = {"x": ("bhtd", _NORMAL)}
_HALVES = "{x1} * {c} - {x2} * {s}, {x1} * {s} + {x2} * {c}"
_ROWS = "torch.arange({x}.size(-2), device={x}.device)"
_COLUMNS = "torch.arange({x}.size(-1), device={x}.device)"
_PAIR_LINES = ("float v = i % 2 == 0 ? x[i] * co - x[i + 1] * si : x[i - 1] * si + x[i] * co;",)
_HALF_LINES = ("float v = d < half ? x[i] * co - x[i + half] * si : x[i - half] * si + x[i] * co;",)
_PLACES = "int d = i % D, half = D / 2, t = i / D % T;"
_SCORE = "int c = i % S, r = i / S % T, h = i / S / T % H;"
_SCORES = "H = x.size(1), T = x.size(2), S = x.size(3)"
_TOKENS = "T = x.size(-2), D = x.size(-1)"
POSITIONS: dict[str, Position] = {
    "rotary": Position(
        "a rotary embedding",
        {**_HEADS, "c": ("td", "torch.cos(torch.randn({shape}))"), "s": ("td", "torch.sin(torch.randn({shape}))")},
        (
            (
                "{p} = torch.cat((-{x}[..., {x}.size(-1) // 2 :], {x}[..., : {x}.size(-1) // 2]), dim=-1)",
                "{x} * {c} + {p} * {s}",
            ),
            ("{p}, {q} = {x}.chunk(2, dim=-1)", "({x} * {c}) + (torch.cat([-{q}, {p}], dim=-1) * {s})"),
        ),
        (_PLACES, "float v = x[i] * c[i % (T * D)] + (d < half ? -x[i + half] : x[i - half]) * s[i % (T * D)];"),
        _TOKENS,
    ),
    "rotary_halves": Position(
        "a rotary embedding of halves",
        {**_HEADS, "c": ("tf", "torch.cos(torch.randn({shape}))"), "s": ("tf", "torch.sin(torch.randn({shape}))")},
        (
            ("{p}, {q} = {x}.chunk(2, dim=-1)", "torch.cat([{p} * {c} - {q} * {s}, {p} * {s} + {q} * {c}], dim=-1)"),
            (
                "{p} = {x}[..., : {x}.shape[-1] // 2]",
                "{q} = {x}[..., {x}.shape[-1] // 2 :]",
                "torch.cat(({p} * {c} - {q} * {s}, {q} * {c} + {p} * {s}), dim=-1)",
            ),
        ),
        (_PLACES, "float co = c[t * half + d % half], si = s[t * half + d % half];", *_HALF_LINES),
        _TOKENS,
    ),
    "rotary_pairs": Position(
        "a rotary embedding of neighbours",
        {**_HEADS, "c": ("tf", "torch.cos(torch.randn({shape}))"), "s": ("tf", "torch.sin(torch.randn({shape}))")},
        (
            (
                "{p}, {q} = {x}[..., 0::2], {x}[..., 1::2]",
                "torch.stack(({p} * {c} - {q} * {s}, {p} * {s} + {q} * {c}), dim=-1).flatten(-2)",
            ),
            (
                "{p}, {q} = {x}.unflatten(-1, (-1, 2)).unbind(-1)",
                "torch.stack([{p} * {c} - {q} * {s}, {q} * {c} + {p} * {s}], dim=-1).reshape({x}.shape)",
            ),
        ),
        (
            "int d = i % D, t = i / D % T;",
            "float co = c[t * (D / 2) + d / 2], si = s[t * (D / 2) + d / 2];",
            *_PAIR_LINES,
        ),
        _TOKENS,
    ),
    "rotary_complex": Position(
        "a rotary embedding by complex numbers",
        {**_HEADS, "a": ("tf", _ANGLES)},
        (
            (
                "{p} = torch.view_as_complex({x}.reshape(*{x}.shape[:-1], -1, 2))",
                "{q} = torch.polar(torch.ones_like({a}), {a})",
                "torch.view_as_real({p} * {q}).flatten(-2)",
            ),
            (
                "{p} = torch.view_as_complex({x}.unflatten(-1, (-1, 2)).contiguous())",
                "torch.view_as_real({p} * torch.polar(torch.ones_like({a}), {a})).flatten(3)",
            ),
        ),
        (
            "int d = i % D, t = i / D % T;",
            "float angle = a[t * (D / 2) + d / 2], co = cosf(angle), si = sinf(angle);",
            *_PAIR_LINES,
        ),
        _TOKENS,
    ),
    "rotary_angles": Position(
        "a rotary embedding by angles",
        {**_HEADS, "a": ("tf", _ANGLES)},
        (
            (
                "{p}, {q} = {x}.chunk(2, dim=-1)",
                "{r}, {u} = torch.cos({a}), torch.sin({a})",
                "torch.cat([{p} * {r} - {q} * {u}, {p} * {u} + {q} * {r}], dim=-1)",
            ),
        ),
        (_PLACES, "float angle = a[t * half + d % half], co = cosf(angle), si = sinf(angle);", *_HALF_LINES),
        _TOKENS,
    ),
    "rotary_computed": Position(
        "a rotary embedding whose angles follow from the positions",
        _HEADS,
        (
            (
                "{p} = torch.arange({x}.size(-1) // 2, device={x}.device)",
                "{q} = 10000.0 ** (-2.0 * {p} / {x}.size(-1))",
                f"{{r}} = {_ROWS}.unsqueeze(1) * {{q}}",
                "{p}, {u} = {x}.chunk(2, dim=-1)",
                "torch.cat([{p} * {r}.cos() - {u} * {r}.sin(), {p} * {r}.sin() + {u} * {r}.cos()], dim=-1)",
            ),
            (
                "{p} = 1.0 / 10000 ** (torch.arange(0, {x}.size(-1), 2, device={x}.device).float() / {x}.size(-1))",
                f"{{q}} = torch.outer({_ROWS}.float(), {{p}})",
                "{r}, {u} = {x}.chunk(2, dim=-1)",
                "torch.cat([{r} * {q}.cos() - {u} * {q}.sin(), {r} * {q}.sin() + {u} * {q}.cos()], dim=-1)",
            ),
        ),
        (
            _PLACES,
            "float angle = t * powf(10000.0f, -2.0f * (d % half) / D), co = cosf(angle), si = sinf(angle);",
            *_HALF_LINES,
        ),
        _TOKENS,
    ),
    "linear_bias": Position(
        "scores with a linear bias by distance",
        {"x": ("bhts", _NORMAL), "w": ("h", "torch.rand({shape})")},
        (
            (
                f"{{p}} = {_COLUMNS}.unsqueeze(0) - {_ROWS}.unsqueeze(1)",
                "{x} + {w}.view(-1, 1, 1) * {p}",
            ),
            (f"{{p}} = {_COLUMNS}[None, :] - {_ROWS}[:, None]", "{x} + {w}[:, None, None] * {p}"),
        ),
        (_SCORE, "float v = x[i] + w[h] * (c - r);"),
        _SCORES,
    ),
    "distance_bias": Position(
        "scores that fall with the distance",
        {"x": ("bhts", _NORMAL), "w": ("h", "torch.rand({shape})")},
        (
            (
                f"{{p}} = ({_COLUMNS}.unsqueeze(0) - {_ROWS}.unsqueeze(1)).abs()",
                "{x} - {w}.view(-1, 1, 1) * {p}",
            ),
        ),
        (_SCORE, "float v = x[i] - w[h] * abs(c - r);"),
        _SCORES,
    ),
    "fixed_slopes": Position(
        "scores with a linear bias of fixed slopes",
        {"x": ("bhts", _NORMAL)},
        (
            (
                "{p} = 2.0 ** (-8.0 * torch.arange(1, {x}.size(1) + 1, device={x}.device) / {x}.size(1))",
                f"{{q}} = {_COLUMNS}.unsqueeze(0) - {_ROWS}.unsqueeze(1)",
                "{x} + {p}.view(-1, 1, 1) * {q}",
            ),
        ),
        (_SCORE, "float v = x[i] + exp2f(-8.0f * (h + 1) / H) * (c - r);"),
        _SCORES,
    ),
    "causal_slopes": Position(
        "causal scores with a linear bias",
        {"x": ("bhtt", _NORMAL), "w": ("h", "torch.rand({shape})")},
        (
            (
                f"{{p}} = {_COLUMNS}.unsqueeze(0) - {_ROWS}.unsqueeze(1)",
                "({x} + {w}.view(-1, 1, 1) * {p}).masked_fill({p} > 0, -1e4)",
            ),
        ),
        (_SCORE, "float v = c > r ? -1e4f : x[i] + w[h] * (c - r);"),
        _SCORES,
    ),
    "relative_bias": Position(
        "scores with a learned relative bias",
        {"x": ("bhtt", _NORMAL)},
        (
            (
                f"{{p}} = {_ROWS}.unsqueeze(1) - {_COLUMNS}.unsqueeze(0) + {{x}}.size(-1) - 1",
                "{x} + {w}[:, {p}]",
            ),
        ),
        (_SCORE, "float v = x[i] + w[h * (2 * T - 1) + r - c + T - 1];"),
        _SCORES,
        {"w": "hr"},
    ),
    "learned": Position(
        "learned positions",
        {"x": ("btd", _NORMAL)},
        (
            ("{x} + {w}[: {x}.size(1)]",),
            ("{x} + {w}[: {x}.shape[1]].unsqueeze(0)",),
            ("{p} = {x}.size(1)", "{x} + {w}[:{p}]"),
        ),
        ("float v = x[i] + w[i % (T * D)];",),
        _TOKENS,
        {"w": "td"},
    ),
    "sinusoids": Position(
        "sinusoids of the positions",
        {"x": ("btd", _NORMAL)},
        (
            (
                "{p} = torch.arange(0, {x}.size(2), 2, device={x}.device).float()",
                "{q} = torch.exp(-9.2103404 * {p} / {x}.size(2))",
                "{r} = torch.arange({x}.size(1), device={x}.device).float().unsqueeze(1) * {q}",
                "{x} + torch.stack([torch.sin({r}), torch.cos({r})], dim=-1).flatten(1)",
            ),
            (
                "{p} = torch.exp(torch.arange(0, {x}.size(2), 2, device={x}.device) * (-9.2103404 / {x}.size(2)))",
                "{q} = torch.arange({x}.size(1), device={x}.device)[:, None] * {p}",
                "{x} + torch.stack(({q}.sin(), {q}.cos()), dim=2).reshape({x}.size(1), -1)",
            ),
        ),
        (
            "int d = i % D, t = i / D % T;",
            "float angle = t * expf(-9.2103404f * (d / 2 * 2) / D);",
            "float v = x[i] + (d % 2 == 0 ? sinf(angle) : cosf(angle));",
        ),
        _TOKENS,
    ),
    "relative_decay": Position(
        "scores weighted by a decay",
        {"x": ("bhts", _NORMAL), "w": ("h", "torch.rand({shape}) * 0.5 + 0.4")},
        (
            (
                f"{{p}} = ({_COLUMNS}.unsqueeze(0) - {_ROWS}.unsqueeze(1)).abs()",
                "{x} * {w}.view(-1, 1, 1) ** {p}",
            ),
            (
                f"{{p}} = ({_COLUMNS}[None, :] - {_ROWS}[:, None]).abs()",
                "{x} * torch.pow({w}[:, None, None], {p})",
            ),
        ),
        (_SCORE, "float v = x[i] * powf(w[h], abs(c - r));"),
        _SCORES,
    ),
}
# letter -> role, small sizes, large sizes; widths are even
SIZES: dict[str, tuple[str, tuple[int, ...], tuple[int, ...]]] = {
    "b": ("batch", (1, 2, 3, 4), (2, 4, 8)),
    "h": ("heads", (1, 2, 4, 6), (8, 12, 16)),
    "t": ("sequence", (4, 7, 12, 16), (256, 512, 1024)),
    "s": ("length", (4, 9, 16, 20), (256, 512, 1024)),
    "d": ("head_size", (4, 8, 12, 32), (64, 128)),
}
_NAMES = ("first", "second", "rel", "pos", "freqs", "ang", "left_half", "right_half", "rotated", "dist", "grid", "tt")


def sample(rng: random.Random) -> Plan:
    core = rng.choice(tuple(POSITIONS))
    post = draw_chain(rng, chain_length(rng, (4, 4, 2)), _STATE)
    return Plan(NAME, core, chains(post=post), (f"forms={len(POSITIONS[core].forms)}",))


def render(plan: Plan, rng: random.Random) -> Draft:
    position = POSITIONS[plan.core]
    builder = ProblemBuilder(rng, keep_inputs=True)
    used = "".join(shape for shape, _ in position.inputs.values()) + "".join((position.weights or {}).values())
    marks = {
        letter: builder.tensors.dimension(role, rng.choice(small), rng.choice(large), 2 if letter == "d" else 1)
        for letter, (role, small, large) in SIZES.items()
        if letter in used or (letter == "d" and "f" in used)
    }
    fields, tensors = {}, []
    for name, (shape, make) in position.inputs.items():
        sizes = [f"{marks['d']} // 2" if letter == "f" else marks[letter] for letter in shape]
        role = "x" if name == "x" else "row" if name == "w" else "z"
        fields[name] = builder.tensors.input(role, sizes, make).text
        tensors.append(Tensor(name, name))
    for name, shape in (position.weights or {}).items():
        arguments = {
            letter: builder.constructor.argument(_ARGUMENTS[letter], marks[letter], "int")
            for letter in SIZES
            if letter in shape.replace("r", "t")
        }
        sizes = [f"2 * {arguments['t']} - 1" if letter == "r" else arguments[letter] for letter in shape]
        fields[name] = builder.attributes.parameter("bias", ", ".join(sizes))
        tensors.append(Tensor(name, fields[name]))
    *statements, last = rng.choice(position.forms)
    for name in dict.fromkeys(re.findall(r"\{([pqru])\}", " ".join((*statements, last)))):
        fields[name] = builder.names.fresh(_NAMES)
    builder.forward.lines += [text.format(**fields) for text in statements]
    value = builder.forward.apply(last, Value(fields.pop("x")), position.phrase, **fields)
    value, post = builder.operators.chain(value, plan.chain("post"), state=_STATE)
    builder.finish(value)
    builder.title = sentence(position.phrase, describe(plan.chain("post")))
    file = KernelFile(builder, NAME, tensors)
    body = lines(position.lines, post)
    integers = ["n", *(name for name in ("H", "T", "S", "D") if re.search(rf"\b{name}\b", body))]
    code, launch, style = file.sweep(rng, body, integers)
    host = f"    int {position.sizes}, n = x.numel();\n    auto out = torch::empty_like(x);\n"
    return Draft(builder, file.write(code, host + launch), style)


_ARGUMENTS = {
    "h": ("num_heads", "heads", "n_head"),
    "t": ("max_len", "block_size", "context_length"),
    "d": ("embed_dim", "d_model", "dim"),
}
