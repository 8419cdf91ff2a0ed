"""Names and habits of the problem side: names that must be copied, and rewritings that leave a computation as it is."""

from __future__ import annotations

import keyword
import math
import random
import re
from collections import Counter

import pytest
import torch
from drawn_pairs import sample
from torch import nn

from dice.synth.problem.builder import ProblemBuilder
from dice.synth.problem.chain import python_number, renumbered
from dice.synth.problem.rewrites import divided, hoisted, opened, wrapped
from dice.synth.tables.names import after_class, composed

pytestmark = pytest.mark.xdist_group("synth")  # one process draws what they share

BODIES = (
    ["return torch.mean(1 - F.cosine_similarity(x, y, dim=1))"],
    ["z = torch.relu(x) + y", "z = z * 2.0", "w = z.sum(dim=1, keepdim=True)", "return z / (w.abs() + 1)"],
    ["x = x * 2.0", "# a comment", "x = torch.tanh(x - y)", "return (x + y).mean()"],
    ["best, _ = torch.max(x, dim=1)", "return best * torch.exp(-best * best)"],
    ["return torch.exp(x) / torch.sum(torch.exp(x), dim=-1, keepdim=True) + y"],
)


def _value(body: list[str], method: list[str] | None = None) -> torch.Tensor:
    lines = ["class M:", *(f"    {line}" for line in method or ()), "    def forward(self, x, y):"]
    scope: dict[str, object] = {"torch": torch, "F": nn.functional}
    exec("\n".join([*lines, *(f"        {line}" for line in body)]), scope)
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(5, 7, generator=generator), torch.randn(5, 7, generator=generator)
    result: torch.Tensor = scope["M"]().forward(x, y)  # type: ignore[operator]
    return result


@pytest.mark.parametrize("body", BODIES)
def test_naming_a_part_changes_nothing(body: list[str]) -> None:
    texts = set()
    for seed in range(40):
        changed = hoisted(random.Random(seed), list(body), {"x", "y"})
        torch.testing.assert_close(_value(changed), _value(body))
        texts.add(tuple(re.sub(r"\b\w+ = ", "", line) for line in changed))
    assert len(texts) > 1


def test_a_call_that_occurs_twice_is_named_once() -> None:
    bodies = ["\n".join(hoisted(random.Random(seed), list(BODIES[-1]), {"x", "y"})) for seed in range(40)]
    assert any(text.count("torch.exp(x)") == 1 for text in bodies)


@pytest.mark.parametrize("body", BODIES[1:4])
def test_a_method_for_the_first_statements_changes_nothing(body: list[str]) -> None:
    methods = 0
    for seed in range(20):
        method, rest, name = divided(random.Random(seed), list(body), ["x", "y"], {"x", "y"})
        torch.testing.assert_close(_value(rest, method), _value(body))
        methods += name != ""
        assert not name or f"self.{name}(" in rest[0]
    assert methods == 20


def test_statements_that_share_several_values_stay_together() -> None:
    body = ["a = x + 1", "b = y * 2", "return a * b"]
    cuts = {divided(random.Random(seed), list(body), ["x", "y"], {"x", "y"})[1][0] for seed in range(20)}
    assert all("= self." in first for first in cuts)
    assert divided(random.Random(0), ["a = x + 1", "return a * a.sum() + x"], ["x"], {"x"})[0]
    looped = ["for layer in self.net:", "    x = layer(x)", "return x"]
    assert divided(random.Random(0), looped, ["x"], {"x"}) == ([], looped, "")


@pytest.mark.parametrize("body", BODIES)
def test_an_idle_first_statement_changes_nothing(body: list[str]) -> None:
    seen = set()
    for seed in range(60):
        changed = opened(random.Random(seed), list(body), "x", 2, True, {"x", "y", "z", "w"})
        torch.testing.assert_close(_value(changed), _value(body))
        seen.add(re.sub(r"\w+ = ", "", changed[0]))
    assert len(seen) > 4


def test_a_long_call_is_written_over_several_lines() -> None:
    line = "self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2, bias=False))"
    lines = wrapped(line)
    assert lines[1:3] == ["    nn.Linear(4, 8),", "    nn.ReLU(),"] and len(lines) == 5
    assert repr(eval("".join(lines).partition("= ")[2])) == repr(eval(line.partition("= ")[2]))
    assert wrapped("self.scale = scale") == ["self.scale = scale"]
    assert wrapped("self.net = nn.Sequential(*layers)") == ["self.net = nn.Sequential(*layers)"]


@pytest.mark.parametrize("value", [2.0, -1.0, 0.5, 1e-05, 1e-06, 0.001, 3.25, 0.0])
def test_a_number_is_the_same_however_it_is_written(value: float) -> None:
    texts = {python_number(value, random.Random(seed)) for seed in range(200)}
    assert all(float(text) == value for text in texts)
    assert len(texts) > 1 or value in (3.25, 0.001)


def test_a_formula_is_the_same_with_other_numbers() -> None:
    text = "0.5 * {x} * (1 + torch.tanh(math.sqrt(2 / math.pi) * ({x} + 0.044715 * {x} ** 3)))"
    forms = {renumbered(random.Random(seed), text) for seed in range(60)}
    values = {eval(form.replace("{x}", "0.7"), {"math": math, "torch": math}) for form in forms}
    assert len(forms) == 3 and len(values) == 1
    assert renumbered(random.Random(3), "{x}.sum(dim=1)") == "{x}.sum(dim=1)"


def test_composed_names_can_stand_anywhere() -> None:
    names = [composed(random.Random(seed)) for seed in range(6000)]
    assert len(set(names)) > 4000
    for name in names:
        assert name.isidentifier() and not keyword.iskeyword(name) and not hasattr(nn.Module, name), name
        assert name not in ("torch", "nn", "F", "math", "ops", "self", "list", "super", "zip", "isinstance"), name


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("nn.BatchNorm2d(8)", {"batch_norm", "batch_norm2d", "batchnorm", "bn"}),
        ("nn.ConvTranspose2d(4, 8, 3)", {"conv_transpose", "conv_transpose2d", "deconv"}),
        ("nn.LeakyReLU(0.2)", {"leaky_relu", "leakyrelu"}),
        ("nn.GELU()", {"gelu"}),
        ("nn.SiLU()", {"silu"}),
    ],
)
def test_layers_are_called_like_their_class(expression: str, expected: set[str]) -> None:
    assert expected <= {after_class(random.Random(seed), expression) for seed in range(300)}


def test_only_layers_are_called_like_their_class() -> None:
    assert after_class(random.Random(0), "nn.Parameter(torch.ones(3))") == ""
    assert after_class(random.Random(0), "torch.ones(3)") == ""


def test_many_names_are_seen_once() -> None:
    """What ModelNew repeats by name cannot be learnt by heart."""
    seen: Counter[str] = Counter()
    pairs = [_names(pair.kernel.source) for pair in sample()]
    for names in pairs:
        seen.update(names)
    with_names = [names for names in pairs if names]
    rare = sum(any(seen[name] <= 2 for name in names) for names in with_names)
    assert 0.15 < rare / len(with_names) < 0.6
    assert seen.most_common(1)[0][1] < 0.35 * len(with_names)


def _names(kernel: str) -> set[str]:
    _, _, text = kernel.partition("class ModelNew")
    arguments = re.search(r"__init__\(self, ([^)]*)\)", text)
    given = {item.partition("=")[0].strip() for item in arguments[1].split(",")} if arguments else set()
    return given | set(re.findall(r"self\.(\w+) = ", text))


def test_a_size_that_became_a_default_is_the_same_in_both_problems() -> None:
    for seed in range(200):
        builder = ProblemBuilder(random.Random(seed))
        mark = builder.tensors.dimension("features", 8, 64)
        builder.constructor.argument(("dim",), mark, "int")
        builder.tensors.input("x", [mark])
        builder.constructor.settle()
        item, dimension = builder.constructor.arguments[0], builder.tensors.dimensions[0]
        assert (item.default == "8" and dimension.large == 8) or (item.value == mark and dimension.large == 64)
