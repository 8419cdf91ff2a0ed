"""Well-known blocks as networks with a marked part (see `networks.py`): residual, mobile, dense, recurrent."""

from __future__ import annotations

from dice.data.synth.networks import IMAGE, SEQUENCE, VECTOR, Network

_ROWS = ("softmax", "log_softmax", "l2_normalize", "activation")
_WIDE = ("conv1", "conv", "nn.Conv2d({c}, {k}, kernel_size=3, padding=1, bias=False)")
_SAME = ("conv2", "conv", "nn.Conv2d({k}, {k}, kernel_size=3, padding=1, bias=False)")

ARCHITECTURES: dict[str, Network] = {
    "sequential_mlp": Network(
        "a perceptron in a container",
        VECTOR,
        ("d", "h", "o"),
        (("net", "network", "nn.Sequential(nn.Linear({d}, {h}), nn.ReLU(), nn.Linear({h}, {o}))"),),
        ("logits = {net}({x})", "return <logits>"),
        _ROWS,
    ),
    "listed_mlp": Network(
        "a perceptron with a list of layers",
        VECTOR,
        ("d", "h", "o"),
        (("net", "network", "nn.ModuleList([nn.Linear({d}, {h}), nn.Linear({h}, {h}), nn.Linear({h}, {o})])"),),
        ("y = {x}", "for layer in {net}[:-1]:", "    y = <layer(y)>", "return {net}[-1](y)"),
    ),
    "sized_mlp": Network(
        "a perceptron with a list of sizes",
        VECTOR,
        (),
        (
            (
                "net",
                "network",
                "nn.ModuleList([nn.Linear(a, b) for a, b in zip({listed}[:-1], {listed}[1:])])",
            ),
        ),
        ("y = {x}", "for layer in {net}[:-1]:", "    y = <layer(y)>", "return {net}[-1](y)"),
        listed=("d", "h", "h", "o"),
    ),
    "plain_cnn": Network(
        "a convolutional classifier",
        IMAGE,
        ("c", "k", "o"),
        (
            ("conv1", "conv", "nn.Conv2d({c}, {k}, kernel_size=3)"),
            ("conv2", "conv", "nn.Conv2d({k}, {k}, kernel_size=3, padding=1)"),
            ("fc1", "linear", "nn.Linear({k} * 4, {o})"),
        ),
        (
            "x = <{conv1}({x})>",
            "x = F.max_pool2d(x, kernel_size=2, stride=2)",
            "x = <{conv2}(x)>",
            "x = F.adaptive_avg_pool2d(x, 2)",
            "x = torch.flatten(x, 1)",
            "return {fc1}(x)",
        ),
    ),
    "stacked_convolutions": Network(
        "two convolutions and a pooling",
        IMAGE,
        ("c", "k"),
        (_WIDE, _SAME, ("pool", "pool", "nn.MaxPool2d(kernel_size=2, stride=2)")),
        ("x = <{conv1}({x})>", "x = <{conv2}(x)>", "return {pool}(x)"),
    ),
    "conv_norm": Network(
        "a convolution with batch norm",
        IMAGE,
        ("c", "k"),
        (_WIDE, ("norm", "norm", "nn.BatchNorm2d({k})")),
        ("x = {conv1}({x})", "x = {norm}(x)", "return <x>"),
    ),
    "double_conv": Network(
        "two convolutions with batch norm",
        IMAGE,
        ("c", "k"),
        (_WIDE, ("bn1", "norm", "nn.BatchNorm2d({k})"), _SAME, ("bn2", "norm", "nn.BatchNorm2d({k})")),
        ("x = <{bn1}({conv1}({x}))>", "return <{bn2}({conv2}(x))>"),
    ),
    "basic_block": Network(
        "a residual block with batch norm",
        IMAGE,
        ("c",),
        (
            ("conv1", "conv", "nn.Conv2d({c}, {c}, kernel_size=3, stride=1, padding=1, bias=False)"),
            ("bn1", "norm", "nn.BatchNorm2d({c})"),
            ("conv2", "conv", "nn.Conv2d({c}, {c}, kernel_size=3, stride=1, padding=1, bias=False)"),
            ("bn2", "norm", "nn.BatchNorm2d({c})"),
        ),
        (
            "skip = {x}",
            "y = {conv1}({x})",
            "y = {bn1}(y)",
            "y = torch.relu(y)",
            "y = {conv2}(y)",
            "y = {bn2}(y)",
            "return <y | skip>",
        ),
        ("residual", "residual", "gate"),
    ),
    "projected_block": Network(
        "a residual block with a projection",
        IMAGE,
        ("c", "k"),
        (
            ("conv1", "conv", "nn.Conv2d({c}, {k}, kernel_size=3, stride=2, padding=1)"),
            ("bn1", "norm", "nn.BatchNorm2d({k})"),
            ("short", "conv", "nn.Conv2d({c}, {k}, kernel_size=1, stride=2)"),
        ),
        ("skip = {short}({x})", "y = {bn1}({conv1}({x}))", "return <y | skip>"),
        ("residual",),
    ),
    "inverted_residual": Network(
        "an inverted residual block",
        IMAGE,
        ("c", "k"),
        (
            ("conv1", "conv", "nn.Conv2d({c}, {k}, kernel_size=1, bias=False)"),
            ("conv2", "conv", "nn.Conv2d({k}, {k}, kernel_size=3, padding=1, groups={k}, bias=False)"),
            ("conv3", "conv", "nn.Conv2d({k}, {c}, kernel_size=1, bias=False)"),
        ),
        ("y = <{conv1}({x})>", "y = <{conv2}(y)>", "return {x} + {conv3}(y)"),
    ),
    "squeeze_excitation": Network(
        "a squeeze-and-excitation block",
        IMAGE,
        ("c", "k"),
        (
            ("pool", "pool", "nn.AdaptiveAvgPool2d(1)"),
            (
                "net",
                "network",
                "nn.Sequential(nn.Linear({c}, {k}), nn.ReLU(), nn.Linear({k}, {c}), nn.Sigmoid())",
            ),
        ),
        (
            "b, c = {x}.size(0), {x}.size(1)",
            "y = {pool}({x}).view(b, c)",
            "y = {net}(y).view(b, c, 1, 1)",
            "return <{x} | y>",
        ),
        ("channel_gate",),
    ),
    "dense_layer": Network(
        "a densely connected layer",
        IMAGE,
        ("c", "k"),
        (("norm", "norm", "nn.BatchNorm2d({c})"), _WIDE),
        ("y = {conv1}(<{norm}({x})>)", "return torch.cat([{x}, y], dim=1)"),
    ),
    "branches": Network(
        "two parallel convolutions",
        IMAGE,
        ("c", "k"),
        (
            ("conv1", "conv", "nn.Conv2d({c}, {k}, kernel_size=1)"),
            ("conv2", "conv", "nn.Conv2d({c}, {k}, kernel_size=3, padding=1)"),
        ),
        ("a = {conv1}({x})", "c = {conv2}({x})", "y = torch.cat([a, c], dim=1)", "return <y>"),
    ),
    "recurrent_classifier": Network(
        "a recurrent network with a linear head",
        SEQUENCE,
        ("d", "h", "o"),
        (("rec", "recurrent", "nn.GRU({d}, {h}, batch_first=True)"), ("fc1", "linear", "nn.Linear({h}, {o})")),
        ("y, _ = {rec}({x})", "y = {fc1}(y[:, -1, :])", "return <y>"),
        _ROWS,
    ),
    "transformer_block": Network(
        "a transformer block",
        SEQUENCE,
        ("d", "h"),
        (
            ("norm", "norm", "nn.LayerNorm({d})"),
            ("qkv", "linear", "nn.Linear({d}, 3 * {d})"),
            ("proj", "linear", "nn.Linear({d}, {d})"),
            ("norm2", "norm", "nn.LayerNorm({d})"),
            ("fc1", "linear", "nn.Linear({d}, {h})"),
            ("fc2", "linear", "nn.Linear({h}, {d})"),
        ),
        (
            "q, k, v = {qkv}({norm}({x})).chunk(3, dim=-1)",
            "y = {x} + {proj}(F.scaled_dot_product_attention(q, k, v))",
            "z = <{fc1}({norm2}(y))>",
            "return y + {fc2}(z)",
        ),
    ),
    "token_mixing": Network(
        "a mixer of features with a residual",
        SEQUENCE,
        ("d", "h"),
        (
            ("norm", "norm", "nn.LayerNorm({d})"),
            ("net", "network", "nn.Sequential(nn.Linear({d}, {h}), nn.GELU(), nn.Linear({h}, {d}))"),
        ),
        ("y = {net}({norm}({x}))", "return <y | {x}>"),
        ("residual", "gate"),
    ),
}
