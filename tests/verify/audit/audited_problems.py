"""One hand-written problem for every kind of finding, and the command that inspects problems."""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass
from pathlib import Path

from dice.cli import main

LIMITS = ("--timeout", "12", "--memory-mb", "1500")


def problem(forward: str, inputs: str = "torch.rand(64, 256)", init: str = "pass", arguments: str = "x") -> str:
    return f"""import time
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, {arguments}):
        {forward}

batch_size = 4

def get_inputs():
    return [{inputs}]

def get_init_inputs():
    return []
"""


# name -> (source, kinds that must be found, worst severity; None where it is not the point)
CASES: dict[str, tuple[str, set[str], str | None]] = {
    "healthy_gelu": (problem("return torch.nn.functional.gelu(x)", "torch.randn(1024, 2560)"), set(), ""),
    "complex_output": (problem("return torch.fft.fft(x)", "torch.randn(64, 256)"), {"launch_bound"}, "warn"),
    "float8_output": (problem("return x.to(torch.float8_e4m3fn)", "torch.randn(64, 256)"), {"launch_bound"}, "warn"),
    "output_of_any_size": (problem("return x[x > 1]", "torch.randn(64, 256)"), {"unsupported_output"}, "warn"),
    "as_many_as_signs": (problem("return x.sign().unique().abs()", "torch.randn(64, 256)"), {"input_free"}, None),
    "exits": (problem("raise SystemExit(0)"), {"broken"}, "reject"),
    "healthy_linear": (
        problem("return self.linear(x)", "torch.randn(256, 1024)", "self.linear = nn.Linear(1024, 4096)"),
        set(),
        "",
    ),
    "small_but_healthy": (problem("return torch.sin(x)", "torch.randn(64, 256)"), {"launch_bound"}, "warn"),
    "small_and_needs_data": (
        problem("return torch.sin(x) * x.max().item()", "torch.randn(64, 256)"),
        {"launch_bound"},
        "warn",
    ),
    "does_not_import": ("import no_such_module\n" + problem("return x"), {"broken"}, "reject"),
    "not_python": ("class Model(:\n", {"broken"}, "reject"),
    "no_model": ("import torch\ndef get_inputs(): return []\ndef get_init_inputs(): return []\n", {"broken"}, "reject"),
    "inputs_fail": (problem("return x", "torch.rand(-1)"), {"broken"}, "reject"),
    "forward_fails": (problem("return x @ x"), {"broken"}, "reject"),
    "dies": (problem("import os; os._exit(3)"), {"broken"}, "reject"),
    "hangs": (problem("time.sleep(1000); return x"), {"too_slow"}, "warn"),
    "eats_memory": (problem("return x + torch.ones(1 << int(x.shape[0] / 2)).sum()"), {"too_large"}, "warn"),
    "returns_text": (problem("return 'done'"), {"unsupported_output"}, "reject"),
    "returns_sparse": (problem("return x.to_sparse()"), {"unsupported_output"}, "reject"),
    "returns_a_pair": (problem("return x.sin(), x.cos()", "torch.randn(64, 256)"), {"unsupported_output"}, None),
    "returns_nan": (problem("return torch.log(x - 2)"), {"non_finite_output"}, "reject"),
    "only_views": (problem("return x.reshape(-1).view(256, 64)"), {"no_work"}, "reject"),
    "fixed": (problem("return torch.sin(x)", "torch.linspace(0, 9, 4096)"), {"fixed_inputs", "input_free"}, "warn"),
    "fixed_counts": (problem("return torch.sin(x)", "torch.arange(4096.)"), {"fixed_inputs", "input_free"}, "warn"),
    "no_inputs": (problem("return self.w.sin()", "", "self.w = nn.Parameter(torch.randn(999))", "*_"),
                  {"fixed_inputs", "input_free"}, "reject"),
    "mean_of_softmax": (problem("return torch.softmax(x, -1).mean(-1)"), {"input_free", "constant"}, "reject"),
    "times_zero": (problem("return x.sin() * 0"), {"zeros", "input_free", "saturated", "dead_input"}, "reject"),
    "wide_softmax": (problem("return torch.softmax(x, -1)", "torch.rand(4, 100000)"),
                     {"zeros", "input_free", "low_variance"}, "warn"),
    "relu_of_positive": (problem("return torch.relu(x)"), {"identity"}, "warn"),
    "true_identity": (problem("return x * 1.0", "torch.randn(64, 256)"), {"identity"}, "reject"),
    "dropout": (problem("return nn.functional.dropout(x, 0.5)"), {"random_forward"}, "warn"),
    "counts_time": (problem("return x + time.monotonic_ns() % 1000003"), {"nondeterministic"}, "reject"),
    "ignores_second": (
        problem("return torch.sin(x) + 0 * y.sum()", "torch.randn(64, 256), torch.randn(64)", arguments="x, y"),
        {"dead_input"},
        "warn",
    ),
    "hides_second": (
        problem("return torch.sin(x) + 1e-6 * y", "torch.randn(64, 256), torch.rand(256)", arguments="x, y"),
        {"weak_input"},
        "warn",
    ),
    "unused_parameter": (
        problem("return torch.sin(x)", "torch.randn(64, 256)", "self.w = nn.Parameter(torch.ones(3))"),
        {"dead_parameter"},
        "warn",
    ),
    "bias_before_norm": (
        problem(
            "return self.norm(self.linear(x))",
            "torch.randn(64, 256)",
            "self.linear, self.norm = nn.Linear(256, 64), nn.BatchNorm1d(64)",
        ),
        {"weak_parameter"},
        None,
    ),
    "hardly_varies": (problem("return 0.5 + 1e-3 * x.sin()"), {"low_variance"}, None),
    "clamped": (problem("return torch.clamp(x, 0.99, 1.0)"), {"saturated"}, None),
    "writes_to_input": (problem("return x.mul_(2).sin()", "torch.randn(64, 256)"), {"mutates_input"}, None),
    "large_but_shrinks": (
        problem("return torch.sin(x)", "torch.randn(batch_size, 1 << 20)").replace("= 4", "= 512 * 2"),
        {"shrunk"},
        "note",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Result:
    returncode: int
    stdout: str
    stderr: str


def inspect(*arguments: str | Path) -> Result:
    """The command in this process, which has imported PyTorch already; the audit's own processes are as ever."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = main(["data", "inspect", *map(str, arguments)])
    return Result(code, out.getvalue(), err.getvalue())
