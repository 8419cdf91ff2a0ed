"""Operators that move elements: each output element is read from a place that follows from its index.

Texts hold {p}, {q}, ...: numbers drawn for the problem. The kernel's lines set `v` from `i`; what is baked in as a
number there is a number in the problem too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

Numbers = dict[str, int]


@dataclass(frozen=True, slots=True)
class IndexMap:
    """`shape`: roles of x's dimensions; `multiple`: what must divide them. `sizes`: host declarations of the integers
    after the dimensions of x, which are called by `names`. `out`: the output's shape in host code.
    """

    phrase: str
    shape: tuple[str, ...]
    names: str  # one letter for each dimension of x
    spellings: tuple[str, ...]
    out: str
    lines: tuple[str, ...]
    sizes: tuple[str, ...] = ()  # "NAME = expression"
    draw: Callable[[Random], Numbers] = lambda rng: {}
    multiple: dict[int, str] | None = None  # axis -> the number that must divide it
    two: bool = False  # also reads y, of x's shape


IMAGE = ("batch", "channels", "height", "width")
SIGNAL = ("batch", "channels", "length")
MATRIX = ("m", "n")
TOKENS = ("batch", "sequence", "features")


def _pads(rng: Random) -> Numbers:
    return {name: rng.randint(1, 3) for name in "pqrs"}


def _padded(mode: str, h: str, w: str, phrase: str) -> IndexMap:
    call = f"F.pad({{x}}, ({{p}}, {{q}}, {{r}}, {{s}}), mode='{mode}')"
    return IndexMap(
        phrase,
        IMAGE,
        "BCHW",
        (call, call.replace("'", '"')),
        "{B, C, OH, OW}",
        ("int w = i % OW - {p}, h = i / OW % OH - {r}, c = i / OW / OH;", h, w, "float v = x[(c * H + h) * W + w];"),
        ("OH = H + {r} + {s}", "OW = W + {p} + {q}"),
        _pads,
    )


INDEX_MAPS: dict[str, IndexMap] = {
    "transpose": IndexMap(
        "a transpose",
        MATRIX,
        "MN",
        ("{x}.T", "{x}.t()", "{x}.transpose(0, 1)", "torch.transpose({x}, 0, 1)"),
        "{N, M}",
        ("float v = x[i % M * N + i / M];",),
    ),
    "swap_last": IndexMap(
        "exchanging the last two dimensions",
        TOKENS,
        "BTD",
        ("{x}.transpose(1, 2)", "{x}.permute(0, 2, 1)", "{x}.mT", "torch.transpose({x}, -2, -1)"),
        "{B, D, T}",
        ("float v = x[(i / T / D * T + i % T) * D + i / T % D];",),
    ),
    "channels_last": IndexMap(
        "moving the channels last",
        IMAGE,
        "BCHW",
        ("{x}.permute(0, 2, 3, 1)", "torch.movedim({x}, 1, -1)"),
        "{B, H, W, C}",
        ("int c = i % C, p = i / C % (H * W), b = i / C / (H * W);", "float v = x[(b * C + c) * H * W + p];"),
    ),
    "roll": IndexMap(
        "a roll along the last dimension",
        TOKENS,
        "BTD",
        ("torch.roll({x}, {p}, dims=-1)", "torch.roll({x}, shifts={p}, dims=2)", "{x}.roll({p}, -1)"),
        "{B, T, D}",
        ("int d = (i % D - {p} % D + D) % D;", "float v = x[i / D * D + d];"),
        (),
        lambda rng: {"p": rng.randint(1, 9)},
    ),
    "roll_rows": IndexMap(
        "a roll along the sequence",
        TOKENS,
        "BTD",
        ("torch.roll({x}, {p}, dims=1)", "torch.roll({x}, shifts={p}, dims=-2)"),
        "{B, T, D}",
        ("int t0 = (i / D % T - {p} % T + T) % T;", "float v = x[(i / D / T * T + t0) * D + i % D];"),
        (),
        lambda rng: {"p": rng.randint(1, 3)},
    ),
    "flip": IndexMap(
        "a flip of the last dimension",
        MATRIX,
        "MN",
        ("torch.flip({x}, dims=[-1])", "{x}.flip(-1)", "{x}.flip(1)", "torch.fliplr({x})"),
        "{M, N}",
        ("float v = x[i / N * N + N - 1 - i % N];",),
    ),
    "flip_image": IndexMap(
        "a flip of both spatial dimensions",
        IMAGE,
        "BCHW",
        ("torch.flip({x}, dims=(2, 3))", "{x}.flip(-2, -1)", "torch.rot90({x}, 2, (2, 3))"),
        "{B, C, H, W}",
        ("int w = i % W, h = i / W % H;", "float v = x[i / W / H * H * W + (H - 1 - h) * W + W - 1 - w];"),
    ),
    "pad_zero": IndexMap(
        "constant padding",
        IMAGE,
        "BCHW",
        ("F.pad({x}, ({p}, {q}, {r}, {s}))", "F.pad({x}, ({p}, {q}, {r}, {s}), value=0.0)"),
        "{B, C, OH, OW}",
        (
            "int w = i % OW - {p}, h = i / OW % OH - {r}, c = i / OW / OH;",
            "float v = h >= 0 && h < H && w >= 0 && w < W ? x[(c * H + h) * W + w] : 0.0f;",
        ),
        ("OH = H + {r} + {s}", "OW = W + {p} + {q}"),
        _pads,
    ),
    "pad_last": IndexMap(
        "padding of the last dimension",
        SIGNAL,
        "BCL",
        ("F.pad({x}, ({p}, {q}))", "F.pad({x}, [{p}, {q}])"),
        "{B, C, OL}",
        ("int l = i % OL - {p};", "float v = l >= 0 && l < L ? x[i / OL * L + l] : 0.0f;"),
        ("OL = L + {p} + {q}",),
        _pads,
    ),
    "pad_reflect": _padded(
        "reflect",
        "h = h < 0 ? -h : h >= H ? 2 * H - 2 - h : h;",
        "w = w < 0 ? -w : w >= W ? 2 * W - 2 - w : w;",
        "reflection padding",
    ),
    "pad_replicate": _padded(
        "replicate", "h = min(max(h, 0), H - 1);", "w = min(max(w, 0), W - 1);", "replication padding"
    ),
    "pad_circular": _padded("circular", "h = (h + H) % H;", "w = (w + W) % W;", "circular padding"),
    "pixel_shuffle": IndexMap(
        "a pixel shuffle",
        IMAGE,
        "BCHW",
        ("F.pixel_shuffle({x}, {p})", "torch.pixel_shuffle({x}, {p})"),
        "{B, OC, H * {p}, W * {p}}",
        (
            "int ow = i % (W * {p}), oh = i / (W * {p}) % (H * {p}), oc = i / (W * {p}) / (H * {p}) % OC;",
            "int b = i / (W * {p}) / (H * {p}) / OC, c = (oc * {p} + oh % {p}) * {p} + ow % {p};",
            "float v = x[((b * C + c) * H + oh / {p}) * W + ow / {p}];",
        ),
        ("OC = C / ({p} * {p})",),
        lambda rng: {"p": 2},
        {1: "4"},
    ),
    "pixel_unshuffle": IndexMap(
        "a pixel unshuffle",
        IMAGE,
        "BCHW",
        ("F.pixel_unshuffle({x}, {p})", "torch.pixel_unshuffle({x}, {p})"),
        "{B, C * {p} * {p}, OH, OW}",
        (
            "int ow = i % OW, oh = i / OW % OH, oc = i / OW / OH % (C * {p} * {p}), b = i / OW / OH / (C * {p} * {p});",
            "int c = oc / ({p} * {p}), h = oh * {p} + oc / {p} % {p}, w = ow * {p} + oc % {p};",
            "float v = x[((b * C + c) * H + h) * W + w];",
        ),
        ("OH = H / {p}", "OW = W / {p}"),
        lambda rng: {"p": 2},
        {2: "2", 3: "2"},
    ),
    "upsample_nearest": IndexMap(
        "nearest-neighbour upsampling",
        IMAGE,
        "BCHW",
        (
            "F.interpolate({x}, scale_factor={p})",
            "F.interpolate({x}, scale_factor={p}, mode='nearest')",
            "{x}.repeat_interleave({p}, dim=2).repeat_interleave({p}, dim=3)",
        ),
        "{B, C, H * {p}, W * {p}}",
        (
            "int w = i % (W * {p}) / {p}, h = i / (W * {p}) % (H * {p}) / {p}, c = i / (W * {p}) / (H * {p});",
            "float v = x[(c * H + h) * W + w];",
        ),
        (),
        lambda rng: {"p": rng.choice((2, 2, 3, 4))},
    ),
    "upsample_bilinear": IndexMap(
        "bilinear upsampling",
        IMAGE,
        "BCHW",
        (
            "F.interpolate({x}, scale_factor={p}, mode='bilinear', align_corners=False)",
            "F.interpolate({x}, scale_factor={p}, mode='bilinear')",
        ),
        "{B, C, H * {p}, W * {p}}",
        (
            "int c = i / (W * {p}) / (H * {p}) * H * W;",
            "float fh = fmaxf((i / (W * {p}) % (H * {p}) + 0.5f) / {p}.0f - 0.5f, 0.0f);",
            "float fw = fmaxf((i % (W * {p}) + 0.5f) / {p}.0f - 0.5f, 0.0f);",
            "int h = (int)fh, w = (int)fw, h1 = min(h + 1, H - 1), w1 = min(w + 1, W - 1);",
            "fh -= h;",
            "fw -= w;",
            "float up = x[c + h * W + w] * (1.0f - fw) + x[c + h * W + w1] * fw;",
            "float down = x[c + h1 * W + w] * (1.0f - fw) + x[c + h1 * W + w1] * fw;",
            "float v = up * (1.0f - fh) + down * fh;",
        ),
        (),
        lambda rng: {"p": rng.choice((2, 2, 4))},
    ),
    "upsample_linear": IndexMap(
        "linear upsampling",
        SIGNAL,
        "BCL",
        (
            "F.interpolate({x}, scale_factor={p}, mode='linear', align_corners=False)",
            "F.interpolate({x}, scale_factor={p}, mode='linear')",
        ),
        "{B, C, L * {p}}",
        (
            "float f = fmaxf((i % (L * {p}) + 0.5f) / {p}.0f - 0.5f, 0.0f);",
            "int l = (int)f, l1 = min(l + 1, L - 1), c = i / (L * {p}) * L;",
            "f -= l;",
            "float v = x[c + l] * (1.0f - f) + x[c + l1] * f;",
        ),
        (),
        lambda rng: {"p": rng.choice((2, 2, 4))},
    ),
    "repeat": IndexMap(
        "repeating along the last dimension",
        MATRIX,
        "MN",
        ("{x}.repeat(1, {p})", "torch.tile({x}, (1, {p}))", "torch.cat([{x}] * {p}, dim=1)"),
        "{M, N * {p}}",
        ("float v = x[i / (N * {p}) * N + i % N];",),
        (),
        lambda rng: {"p": rng.choice((2, 3, 4))},
    ),
    "repeat_interleave": IndexMap(
        "repeating each element",
        MATRIX,
        "MN",
        ("{x}.repeat_interleave({p}, dim=-1)", "torch.repeat_interleave({x}, {p}, dim=1)"),
        "{M, N * {p}}",
        ("float v = x[i / {p}];",),
        (),
        lambda rng: {"p": rng.choice((2, 3, 4))},
    ),
    "concat_last": IndexMap(
        "concatenation along the last dimension",
        MATRIX,
        "MN",
        ("torch.cat([{x}, {y}], dim=-1)", "torch.cat(({x}, {y}), dim=1)", "torch.hstack(({x}, {y}))"),
        "{M, 2 * N}",
        ("int c = i % (2 * N), r = i / (2 * N);", "float v = c < N ? x[r * N + c] : y[r * N + c - N];"),
        two=True,
    ),
    "concat_channels": IndexMap(
        "concatenation of channels",
        IMAGE,
        "BCHW",
        ("torch.cat([{x}, {y}], dim=1)", "torch.cat(({x}, {y}), 1)"),
        "{B, 2 * C, H, W}",
        ("int e = C * H * W, b = i / (2 * e), p = i % (2 * e);", "float v = p < e ? x[b * e + p] : y[b * e + p - e];"),
        two=True,
    ),
    "stack": IndexMap(
        "stacking",
        MATRIX,
        "MN",
        ("torch.stack([{x}, {y}], dim=1)", "torch.stack(({x}, {y}), 1)"),
        "{M, 2, N}",
        ("int r = i / (2 * N), c = i % N;", "float v = i / N % 2 == 0 ? x[r * N + c] : y[r * N + c];"),
        two=True,
    ),
    "interleave": IndexMap(
        "interleaving two tensors",
        MATRIX,
        "MN",
        ("torch.stack([{x}, {y}], dim=-1).flatten(1)",),
        "{M, 2 * N}",
        ("float v = i % 2 == 0 ? x[i / 2] : y[i / 2];",),
        two=True,
    ),
    "rotate_half": IndexMap(
        "rotating the halves",
        TOKENS,
        "BTD",
        ("torch.cat((-{x}[..., {x}.size(-1) // 2 :], {x}[..., : {x}.size(-1) // 2]), dim=-1)",),
        "{B, T, D}",
        ("int d = i % D, half = D / 2;", "float v = d < half ? -x[i + half] : x[i - half];"),
        (),
        lambda rng: {},
        {2: "2"},
    ),
    "channel_shuffle": IndexMap(
        "a channel shuffle",
        IMAGE,
        "BCHW",
        (
            "F.channel_shuffle({x}, {p})",
            "{x}.view({x}.size(0), {p}, -1, {x}.size(2), {x}.size(3)).transpose(1, 2).flatten(1, 2)",
        ),
        "{B, C, H, W}",
        (
            "int p = i % (H * W), c = i / (H * W) % C, b = i / (H * W) / C;",
            "float v = x[(b * C + c % {p} * (C / {p}) + c / {p}) * H * W + p];",
        ),
        (),
        lambda rng: {"p": 2},
        {1: "4"},
    ),
    "crop": IndexMap(
        "a crop",
        IMAGE,
        "BCHW",
        ("{x}[:, :, {p}:-{q}, {r}:-{s}]", "{x}[..., {p}:-{q}, {r}:-{s}]"),
        "{B, C, OH, OW}",
        ("int w = i % OW + {r}, h = i / OW % OH + {p};", "float v = x[(i / OW / OH * H + h) * W + w];"),
        ("OH = H - {p} - {q}", "OW = W - {r} - {s}"),
        lambda rng: {name: rng.randint(1, 2) for name in "pqrs"},
    ),
    "stride": IndexMap(
        "every n-th element",
        MATRIX,
        "MN",
        ("{x}[:, ::{p}]", "{x}[..., ::{p}]"),
        "{M, ON}",
        ("float v = x[i / ON * N + i % ON * {p}];",),
        ("ON = (N + {p} - 1) / {p}",),
        lambda rng: {"p": rng.choice((2, 3))},
    ),
    "expand": IndexMap(
        "repeating along a new dimension",
        MATRIX,
        "MN",
        ("{x}.unsqueeze(1).expand(-1, {p}, -1)", "{x}[:, None, :].repeat(1, {p}, 1)"),
        "{M, {p}, N}",
        ("float v = x[i / N / {p} * N + i % N];",),
        (),
        lambda rng: {"p": rng.choice((2, 3, 5))},
    ),
    "difference": IndexMap(
        "differences of neighbours",
        MATRIX,
        "MN",
        ("{x}[:, 1:] - {x}[:, :-1]", "torch.diff({x}, dim=1)", "torch.diff({x})"),
        "{M, ON}",
        ("int p = i / ON * N + i % ON;", "float v = x[p + 1] - x[p];"),
        ("ON = N - 1",),
        lambda rng: {},
    ),
}
