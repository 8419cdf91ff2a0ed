"""Small problems as text, each with one property that a verifier must notice."""

from __future__ import annotations

import textwrap


def problem(forward: str, inputs: str, init: str = "", arguments: str = "[]") -> str:
    """A problem file: the body of `forward`, the expression of `get_inputs`, the body of `__init__`."""
    lines = [
        "import torch",
        "import torch.nn as nn",
        "import torch.nn.functional as F",
        "batch_size = 16",
        "class Model(nn.Module):",
        "    def __init__(self, *arguments):",
        "        super().__init__()",
        textwrap.indent(textwrap.dedent(init).strip() or "pass", " " * 8),
        "    def forward(self, *inputs):",
        "        x = inputs[0]",
        textwrap.indent(textwrap.dedent(forward).strip(), " " * 8),
        "def get_inputs():",
        f"    return {inputs}",
        "def get_init_inputs():",
        f"    return {arguments}",
    ]
    return "\n".join(lines) + "\n"


RELU = problem("return torch.relu(x)", "[torch.rand(batch_size, 100)]")
LOG = problem("return torch.log(x + 0.01)", "[torch.rand(batch_size, 100)]")
WIDE_SOFTMAX = problem("return torch.softmax(x, dim=1)", "[torch.rand(4, 20000)]")
MEAN_SOFTMAX = problem("return torch.softmax(x, dim=1).mean(dim=1)", "[torch.rand(batch_size, 50)]")
OFFSET = problem("return 1000 + 0.01 * x", "[torch.rand(batch_size, 100)]")
BIASED_NETWORK = problem(
    "return self.last(1e-4 * torch.tanh(self.first(x)))",
    "[torch.rand(batch_size, 64)]",
    "self.first = nn.Linear(64, 64)\nself.last = nn.Linear(64, 32)",
)
WIDE_LAYER_NORM = problem("return self.norm(x)", "[torch.rand(2, 30000)]", "self.norm = nn.LayerNorm(30000)")
WEAK_INPUT = problem("return x + 1e-6 * inputs[1]", "[torch.rand(batch_size, 30), torch.rand(batch_size, 30)]")
UNUSED_INPUT = problem("return x * 2", "[torch.rand(batch_size, 30), torch.rand(5), torch.randint(0, 9, (4,))]")
GATHER = problem("return x.gather(1, inputs[1])", "[torch.rand(16, 30), torch.randint(0, 30, (16, 8))]")
GROUP_NORM = problem("return self.norm(x)", "[torch.rand(4, 8, 10)]", "self.norm = nn.GroupNorm(2, 8)")
BATCH_NORM = problem("return self.norm(x)", "[torch.rand(8, 4, 10)]", "self.norm = nn.BatchNorm1d(4)")
CANCELLING = problem("return (x + 1000.0) - 1000.0 - x", "[torch.rand(batch_size, 100)]")
NOISY_IN_FLOAT64 = problem("return x + torch.randn_like(x)", "[torch.rand(batch_size, 100)]")
THRESHOLD = problem("return (x @ inputs[1] > 16.0).float()", "[torch.rand(64, 64), torch.rand(64, 64)]")
DROPOUT = problem("return F.dropout(x, 0.5)", "[torch.rand(batch_size, 100)]")
IN_PLACE = problem("return x.add_(1)", "[torch.rand(batch_size, 100)]")
VIEW = problem("return x.view(-1)", "[torch.rand(batch_size, 100)]")
CROSS_ENTROPY = problem(
    "return F.cross_entropy(x, inputs[1])", "[torch.rand(batch_size, 10), torch.randint(0, 10, (batch_size,))]"
)
TWO_OUTPUTS = problem("return x + 1, x.argmax(dim=1)", "[torch.rand(batch_size, 10)]")
MATMUL = problem("return x @ inputs[1]", "[torch.rand(48, 512), torch.rand(512, 48)]")
LINEAR = problem("return self.linear(x)", "[torch.rand(batch_size, 64)]", "self.linear = nn.Linear(64, 32)")
