"""Small networks with one part marked: what a kernel-writer replaces, while PyTorch's libraries do the rest.

In a line of `forward`, `<a | b>` is the marked part with its operands; the text of the problem computes it by `part`,
ModelNew calls its kernel. {name} is a layer, an input or a size.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """What is marked. `text`: of the operands {x}, {y}, {z}; a chain follows it. `statement`: the same on v, w and u.

    `along`: a map along the last dimension (of softmax's table), or a layer norm, instead of a statement.
    """

    phrase: str
    text: str = "{x}"
    statement: str = ""
    operands: int = 1
    along: str = ""
    second: str = "i"  # place of the second operand's element; `inner`: how many elements share one


@dataclass(frozen=True, slots=True)
class Network:
    phrase: str
    inputs: tuple[tuple[str, str, tuple[str, ...]], ...]  # name, role, sizes
    sizes: tuple[str, ...]  # constructor arguments, by size
    layers: tuple[tuple[str, str, str], ...]  # name, role, constructor
    lines: tuple[str, ...]
    parts: tuple[str, ...] = ("activation",)
    listed: tuple[str, ...] = ()  # sizes that the constructor takes as one list, {listed}
    setup: tuple[str, ...] = ()  # lines of the constructor before the layers; {act} is the activation as a layer
    replaced: tuple[str, ...] = ()  # forward of ModelNew where the lines mark nothing: {Act} is the activation's class


PARTS: dict[str, Part] = {
    "activation": Part("its activation"),
    "module": Part("its activation"),
    "residual_relu": Part("its residual sum", "torch.relu({x} + {y})", "v = v + w; v = v < 0.0f ? 0.0f : v;", 2),
    "residual": Part("its residual sum", "{x} + {y}", "v = v + w;", 2),
    "gate": Part("its gate", "{x} * torch.sigmoid({y})", "v = v / (1.0f + expf(-w));", 2),
    "channel_gate": Part("its gate", "{x} * {y}", "v = v * w;", 2, second="i / inner"),
    "expanded_gate": Part("its gate", "{x} * {y}.expand_as({x})", "v = v * w;", 2, second="i / inner"),
    "silu_gate": Part("its gate", "F.silu({x}) * {y}", "v = v / (1.0f + expf(-v)) * w;", 2),
    "gelu_gate": Part("its gate", "F.gelu({x}) * {y}", "v = 0.5f * v * (1.0f + erff(v * 0.70710678f)) * w;", 2),
    "highway": Part(
        "its highway gate",
        "torch.sigmoid({y}) * {x} + (1 - torch.sigmoid({y})) * {z}",
        "w = 1.0f / (1.0f + expf(-w)); v = w * v + (1.0f - w) * u;",
        3,
    ),
    "cross": Part("its cross term", "{x} * {y} + {z}", "v = v * w + u;", 3),
    "tanh_gate": Part("its gate", "torch.tanh({x}) * torch.sigmoid({y})", "v = tanhf(v) / (1.0f + expf(-w));", 2),
    "tanh_sum": Part("its state update", "torch.tanh({x} + {y})", "v = tanhf(v + w);", 2),
    "update": Part("its update", "(1 - {x}) * {y} + {x} * {z}", "v = (1.0f - v) * w + v * u;", 3),
    "softmax": Part("its softmax", along="softmax"),
    "log_softmax": Part("its log-softmax", along="log_softmax"),
    "l2_normalize": Part("its normalization", along="l2_normalize"),
    "standardize": Part("its standardization", along="standardize"),
    "rms_scale": Part("its scaling", along="rms_scale"),
}
VECTOR = (("x", "x", ("b", "d")),)
SEQUENCE = (("x", "x", ("b", "t", "d")),)
IMAGE = (("x", "x", ("b", "c", "s", "s")),)
_STATE = (("x", "x", ("b", "d")), ("h", "state", ("b", "h")))
_FC = ("fc1", "linear", "nn.Linear({d}, {h})")

NETWORKS: dict[str, Network] = {
    "mlp": Network(
        "a two-layer perceptron",
        VECTOR,
        ("d", "h", "o"),
        (_FC, ("fc2", "linear", "nn.Linear({h}, {o})")),
        ("x = <{fc1}({x})>", "return {fc2}(x)"),
    ),
    "mlp3": Network(
        "a three-layer perceptron",
        VECTOR,
        ("d", "h", "o"),
        (_FC, ("fc2", "linear", "nn.Linear({h}, {h})"), ("fc3", "linear", "nn.Linear({h}, {o})")),
        ("x = <{fc1}({x})>", "x = <{fc2}(x)>", "return {fc3}(x)"),
    ),
    "autoencoder": Network(
        "an autoencoder",
        VECTOR,
        ("d", "h"),
        (_FC, ("fc2", "linear", "nn.Linear({h}, {d})")),
        ("code = <{fc1}({x})>", "return {fc2}(code)"),
    ),
    "classifier": Network(
        "a classifier",
        VECTOR,
        ("d", "h", "o"),
        (_FC, ("fc2", "linear", "nn.Linear({h}, {o})")),
        ("x = torch.relu({fc1}({x}))", "logits = {fc2}(x)", "return <logits>"),
        ("softmax", "log_softmax", "l2_normalize", "standardize"),
    ),
    "residual_mlp": Network(
        "a residual perceptron block",
        VECTOR,
        ("d", "h"),
        (_FC, ("fc2", "linear", "nn.Linear({h}, {d})")),
        ("y = torch.relu({fc1}({x}))", "return <{fc2}(y) | {x}>"),
        ("residual", "gate"),
    ),
    "feed_forward": Network(
        "a feed-forward block behind a layer norm",
        SEQUENCE,
        ("d", "h"),
        (("norm", "norm", "nn.LayerNorm({d})"), _FC, ("fc2", "linear", "nn.Linear({h}, {d})")),
        ("y = <{fc1}({norm}({x}))>", "return {x} + {fc2}(y)"),
    ),
    "gated_mlp": Network(
        "a gated feed-forward block",
        SEQUENCE,
        ("d", "h"),
        (
            ("gate", "linear", "nn.Linear({d}, {h}, bias=False)"),
            ("up", "linear", "nn.Linear({d}, {h}, bias=False)"),
            ("down", "linear", "nn.Linear({h}, {d}, bias=False)"),
        ),
        ("y = <{gate}({x}) | {up}({x})>", "return {down}(y)"),
        ("silu_gate", "gelu_gate", "gate"),
    ),
    "highway": Network(
        "a highway layer",
        VECTOR,
        ("d",),
        (("carry", "linear", "nn.Linear({d}, {d})"), ("plain", "linear", "nn.Linear({d}, {d})")),
        ("y = torch.relu({plain}({x}))", "return <y | {carry}({x}) | {x}>"),
        ("highway",),
    ),
    "cross_layer": Network(
        "a cross layer",
        VECTOR,
        ("d",),
        (("cross", "linear", "nn.Linear({d}, {d})"),),
        ("return <{x} | {cross}({x}) | {x}>",),
        ("cross",),
    ),
    "rnn_cell": Network(
        "a recurrent cell",
        _STATE,
        ("d", "h"),
        (_FC, ("rec", "linear", "nn.Linear({h}, {h}, bias=False)")),
        ("return <{fc1}({x}) | {rec}({h0})>",),
        ("tanh_sum",),
    ),
    "gru_cell": Network(
        "a gated recurrent cell",
        _STATE,
        ("d", "h"),
        (
            ("zx", "linear", "nn.Linear({d}, {h})"),
            ("zh", "linear", "nn.Linear({h}, {h})"),
            ("nx", "linear", "nn.Linear({d}, {h})"),
            ("nh", "linear", "nn.Linear({h}, {h})"),
        ),
        (
            "z = torch.sigmoid({zx}({x}) + {zh}({h0}))",
            "n = torch.tanh({nx}({x}) + z * {nh}({h0}))",
            "return <z | n | {h0}>",
        ),
        ("update",),
    ),
    "small_cnn": Network(
        "a small convolutional network",
        IMAGE,
        ("c", "k", "o"),
        (
            ("conv1", "conv", "nn.Conv2d({c}, {k}, 3, padding=1)"),
            ("conv2", "conv", "nn.Conv2d({k}, {k}, 3, padding=1)"),
            ("head", "linear", "nn.Linear({k}, {o})"),
        ),
        (
            "x = <{conv1}({x})>",
            "x = F.max_pool2d(x, 2)",
            "x = <{conv2}(x)>",
            "x = x.mean(dim=(2, 3))",
            "return {head}(x)",
        ),
    ),
    "residual_block": Network(
        "a residual block of convolutions",
        IMAGE,
        ("c",),
        (
            ("conv1", "conv", "nn.Conv2d({c}, {c}, 3, padding=1)"),
            ("conv2", "conv", "nn.Conv2d({c}, {c}, 3, padding=1)"),
        ),
        ("y = torch.relu({conv1}({x}))", "y = {conv2}(y)", "return <y | {x}>"),
        ("residual",),
    ),
    "norm_block": Network(
        "a convolution with group norm",
        IMAGE,
        ("c", "k"),
        (("conv1", "conv", "nn.Conv2d({c}, {k}, 3, padding=1)"), ("norm", "norm", "nn.GroupNorm(1, {k})")),
        ("return <{norm}({conv1}({x}))>",),
    ),
    "separable": Network(
        "a depthwise-separable convolution",
        IMAGE,
        ("c", "k"),
        (
            ("conv1", "conv", "nn.Conv2d({c}, {c}, 3, padding=1, groups={c})"),
            ("conv2", "conv", "nn.Conv2d({c}, {k}, 1)"),
        ),
        ("x = <{conv1}({x})>", "return <{conv2}(x)>"),
    ),
    "attention_head": Network(
        "a self-attention head",
        SEQUENCE,
        ("d",),
        (
            ("q", "linear", "nn.Linear({d}, {d})"),
            ("k", "linear", "nn.Linear({d}, {d})"),
            ("v", "linear", "nn.Linear({d}, {d})"),
        ),
        (
            "scores = {q}({x}) @ {k}({x}).transpose(1, 2) / math.sqrt({x}.size(-1))",
            "weights = <scores>",
            "return weights @ {v}({x})",
        ),
        ("softmax",),
    ),
    "attention_residual": Network(
        "a self-attention block",
        SEQUENCE,
        ("d",),
        (("qkv", "linear", "nn.Linear({d}, 3 * {d})"), ("proj", "linear", "nn.Linear({d}, {d})")),
        (
            "q, k, v = {qkv}({x}).chunk(3, dim=-1)",
            "y = F.scaled_dot_product_attention(q, k, v)",
            "return <{proj}(y) | {x}>",
        ),
        ("residual", "gate"),
    ),
    "squeeze_excite": Network(
        "a gate from two projections",
        SEQUENCE,
        ("d", "h"),
        (("value", "linear", "nn.Linear({d}, {h})"), ("gate", "linear", "nn.Linear({d}, {h})")),
        ("return <{value}({x}) | {gate}({x})>",),
        ("gate", "silu_gate", "gelu_gate", "tanh_gate"),
    ),
    "token_mixer": Network(
        "a normalised projection",
        SEQUENCE,
        ("d", "h"),
        (_FC,),
        ("y = {fc1}({x})", "return <y>"),
        ("rms_scale", "l2_normalize", "standardize", "softmax"),
    ),
}
