"""The problem side's habits: each is seen in a sample, none changes what a problem computes."""

from __future__ import annotations

import ast
import random
import re

import pytest
import torch
from drawn_pairs import MOST, sample
from torch import nn

from dice.synth.problem.builder import ProblemBuilder
from dice.synth.problem.layers import written
from dice.synth.problem.rewrites import in_place

pytestmark = pytest.mark.xdist_group("synth")  # one process draws what they share

HABITS: dict[str, str] = {
    "keywords": r"nn\.\w+\(in_(features|channels)=",
    "settings": r"def __init__\(self, .*kernel_size",
    "settings in forward": r"dim=self\.\w+",
    "defaults": r"def __init__\(self, .*\w+: int = ",
    "tuples": r"def __init__\(self, .*: tuple",
    "tuple constants": r"^\w+ = \(\w+, 1, 1\)$",
    "half padding": r"padding=\w+ // 2",
    "stored arguments": r"self\.(\w+) = \1$(.|\n)*nn\.\w+\([^)]*\b\1\b",
    "constructors over several lines": r"def __init__\(\n",
    "numpy docstrings": r"Parameters\n +-{5,}",
    "sphinx docstrings": r":param \w+:",
    "shapes in docstrings": r"of shape \(\w+, ",
    "constants together": r"^\w+, \w+.* = \d+, \d+",
    "chained constants": r"^\w+ = \w+ = \d+$",
    "computed constants": r"^\w+ = (\d+ \* [a-zA-Z]\w*|[a-zA-Z]\w* \* \d+)$",
    "upper case": r"^[A-Z]{3,} = \d+",
    "shared names": r"def __init__\(self, (in_features|in_channels|dim)\b(.|\n)*^\1 = \d+",
    "shape constants": r"^\w*shape = \((.|\n)*\*\w*shape\)",
    "unused constants": r"^dim = 1$",
    "comments on constants": r"^\w+ = \d+  # ",
    "import of nn": r"^from torch import nn$",
    "whole names of functions": r"torch\.nn\.functional\.\w+\(",
    "whole names of modules": r"class Model\(torch\.nn\.Module\)",
    "helper methods": r"return self\._(compute|transform|run)\(",
    "helper functions": r"return (compute|fused|computed)\(",
    "assertions": r"assert .* f\"",
    "operators in place": r"^ +\w+ [-+*/]= ",
    "functions in place": r"inplace=True|torch\.[a-z]+_\(",
    "containers": r"nn\.Sequential\(",
    "lists of layers": r"nn\.ModuleList\((.|\n)*for layer in ",
    "blank lines": r"^        \w+ = .*\n\n        return ",
    "comments behind statements": r"^        \w+ = .*\)  # ",
    "named results": r"^ +\w+, _ = .*(max|min)\(",
    "sizes by keyword": r"torch\.randn?\(size=\(",
    "sizes as tuples": r"torch\.randn?\(\(",
    "types of inputs": r"dtype=torch\.float32",
    "remarks on settings": r"^        \S+,  # \w+$",
    "names of settings": r"return \[.*\]  # \w+, \w+",
    "remarks on their own": r"def get_inputs\(\):\n    # ",
    "renamed attributes": r"self\.(\w+) = (?!\1\b)[a-z]\w+$",
    "numbers as attributes": r"^        self\.\w+ = \d+\.\d*$",
    "factors from sizes": r"self\.\w+ = (1.* / |\w+ ?\*\* ?-0\.5)",
    "numbers as constants": r"^[A-Z]\w+ = \d+\.\d+$",
    "attributes of the class": r"^class Model\(nn\.Module\):\n    [a-z]\w* = ",
    "whole numbers": r"[(, ]\d+\.[,)]| [-+*/] 2[ )]",
    "short exponents": r"1e-[3-9]\b",
    "settings by position": r"nn\.(Conv2d\(\w+, \w+, \w+, \w+|\w+Pool\dd\(\w+, \w+)",
    "strides for each axis": r"stride ?= ?\((1, [23]|2, [13]|3, [12])[,)]",
    "no stride": r"stride(: int)? ?= ?None",
    "sizes as defaults": r"def __init__\(self.*(features|channels|size|dim)\w*(: int)? ?= ?\d\d",
    "copies of inputs": r"^        \w+ = \w+\.(clone|contiguous)\(\)$",
    "results kept for later": r"^        (identity|residual|original|shortcut) = \w+(\.clone\(\))?(\.detach\(\))?$",
    "a module in a module": r"class \w+\((torch\.)?nn\.Module\):(.|\n)*class Model\(",
    "dropout": r"nn\.Dropout\(",
    "containers over several lines": r"nn\.Sequential\($",
    "layers in a loop": r"layers\.append\(",
    "numbers as inputs": r"def get_inputs.*\n(.*\n)?.*(, \d\.\d+\]|= \d\.\d+$)",
    "functions as attributes": r"self\.\w+ = (F|torch)\.\w+$",
    "other samplers": r"\.uniform_\(|\.normal_\(|torch\.randn?\([^)]*\) \* ",
    "checks in the constructor": r"__init__(.*\n){1,3} +assert ",
    "initial values": r"nn\.init\.\w+_\(self",
    "switches": r"(unbiased|p|ord|correction)=self\.",
    "short types": r"^from torch import Tensor$",
}


@pytest.mark.parametrize("habit", HABITS)
def test_every_habit_is_seen_and_none_prevails(habit: str) -> None:
    pattern = re.compile(HABITS[habit], re.MULTILINE)
    seen = sum(pattern.search(pair.problem.source) is not None for pair in sample())
    assert 0 < seen < 0.6 * MOST


def test_signatures_show_other_defaults_than_are_given() -> None:
    """What the constructor is given counts, not its default."""
    other = 0
    for pair in sample():
        arguments, given = _constructor(pair.problem.source)
        shown = dict(zip(reversed([item.arg for item in arguments.args]), reversed(arguments.defaults), strict=False))
        names = [item.arg for item in arguments.args[1:]]
        for name, value in zip(names, given, strict=False):
            is_number = isinstance(value, ast.Constant) and isinstance(shown.get(name), ast.Constant)
            other += is_number and ast.dump(value) != ast.dump(shown[name])
    assert other > 0.01 * MOST


def test_both_constructors_take_what_is_given() -> None:
    for pair in sample():
        _, given = _constructor(pair.problem.source)
        for source in (pair.problem.source, pair.kernel.source):
            arguments, _ = _constructor(source)
            most = len(arguments.args) - 1
            assert most - len(arguments.defaults) <= len(given) <= most, pair.composition


def _constructor(source: str) -> tuple[ast.arguments, list[ast.expr]]:
    """The signature of the file's module, and what `get_init_inputs` returns (nothing in a kernel's file)."""
    tree = ast.parse(source)
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    made, given = functions.get("__init__"), functions.get("get_init_inputs")
    empty = ast.parse("lambda self: 0", mode="eval").body
    assert isinstance(empty, ast.Lambda)
    values = given.body[-1].value.elts if given else []  # type: ignore[attr-defined]
    return (made.args if made else empty.args), values


def test_no_name_of_a_problem_hides_one_of_its_base_class() -> None:
    for pair in sample():
        names = set(re.findall(r"def (\w+)\(self|self\.(\w+) = ", pair.problem.source))
        made = {name for pair_of_names in names for name in pair_of_names} - {"", "__init__", "forward"}
        assert not [name for name in made if hasattr(nn.Module, name)], pair.composition


def test_the_inputs_are_left_as_they_were() -> None:
    """Operators in place work on results, never on what the caller passed."""
    hasty = [pair for pair in sample() if re.search(r"[-+*/]= |inplace=True|torch\.[a-z]+_\(", pair.problem.source)]
    assert len(hasty) > 20
    for pair in hasty:
        scope: dict[str, object] = {}
        exec(compile(pair.check_problem.source, "problem", "exec"), scope)
        inputs = scope["get_inputs"]()  # type: ignore[operator]
        copies = [torch.as_tensor(item).clone() for item in inputs]
        with torch.no_grad():
            scope["Model"](*scope["get_init_inputs"]())(*inputs)  # type: ignore[operator]
        assert all(map(torch.equal, map(torch.as_tensor, inputs), copies)), pair.composition


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("x = x * 2.0", "x *= 2.0"),
        ("x = x - self.shift", "x -= self.shift"),
        ("x = x * 2.0 + 1.0", "x = x * 2.0 + 1.0"),
        ("y = x * 2.0", "y = x * 2.0"),
        ("x = torch.relu(x)", "x = torch.relu_(x)"),
        ("x = F.leaky_relu(x, 0.1)", "x = F.leaky_relu(x, 0.1, inplace=True)"),
        ("x = F.relu(x).square()", "x = F.relu(x).square()"),
        ("x = x.mul(2.0)", "x = x.mul_(2.0)"),
        ("x = torch.softmax(x, dim=1)", "x = torch.softmax(x, dim=1)"),
    ],
)
def test_statements_in_place_mean_the_same(line: str, expected: str) -> None:
    assert in_place(line) == expected


@pytest.mark.parametrize(
    "expression",
    [
        "nn.Conv2d(4, 8, 3, stride=2, padding=1, bias=False)",
        "nn.Conv2d(4, 8, kernel_size=(3, 5), padding=(1, 2), groups=2)",
        "nn.ConvTranspose2d(4, 8, 3, stride=2, output_padding=1)",
        "nn.MaxPool2d(3, stride=2, dilation=2)",
        "nn.AvgPool1d(kernel_size=4, ceil_mode=True)",
        "nn.GroupNorm(2, 8, eps=1e-06, affine=False)",
        "nn.Linear(4, 8, bias=False)",
        "nn.LeakyReLU(0.2)",
        "nn.Hardtanh(-0.5, 1.5)",
        "nn.AdaptiveAvgPool2d((2, 3))",
        "nn.Softmax(dim=1)",
    ],
)
def test_a_layer_written_otherwise_is_the_same_layer(expression: str) -> None:
    texts = set()
    for seed in range(60):
        builder = ProblemBuilder(random.Random(seed))
        text = written(builder.rng, builder.style, builder.constructor.setting, expression)
        settings = {item.name: ast.literal_eval(item.value) for item in builder.constructor.arguments}
        assert repr(eval(text, {"nn": nn}, settings)) == repr(eval(expression, {"nn": nn})), text
        texts.add(text)
    assert len(texts) > 3
