"""A copy of a model computes with its own parameters, whatever way its forward reaches them."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from dice.verify.execution.copying import copied


def scaled(layer: nn.Module, x: Tensor) -> Tensor:
    return layer(x) * 2


def doubled(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    @functools.wraps(function)
    def twice(x: Tensor) -> Tensor:
        return function(x) * 2

    return twice


class Lambda(nn.Module):
    """As GPT in few lines has it: a function in the place of a method, which closes over a part."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        part = self.layer
        self.function = lambda x: part(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Itself(Lambda):
    def __init__(self) -> None:
        super().__init__()
        self.function = lambda x: self.layer(x)


class Default(Lambda):
    def __init__(self) -> None:
        super().__init__()
        self.function = lambda x, part=self.layer: part(x)


class Partial(Lambda):
    def __init__(self) -> None:
        super().__init__()
        self.function = functools.partial(scaled, self.layer)


class PartialOfLambda(Lambda):
    def __init__(self) -> None:
        super().__init__()
        self.function = functools.partial(self.function)


class Wrapped(Lambda):
    def __init__(self) -> None:
        super().__init__()
        self.function = doubled(lambda x: self.layer(x))


class Listed(Lambda):
    def __init__(self) -> None:
        super().__init__()
        self.functions = [self.function, torch.relu]

    def forward(self, x: Tensor) -> Tensor:
        for function in self.functions:
            x = function(x)
        return x


class Named(Lambda):
    def __init__(self) -> None:
        super().__init__()
        self.functions = {"first": self.function}

    def forward(self, x: Tensor) -> Tensor:
        return self.functions["first"](x)


class Hooked(Lambda):
    def __init__(self) -> None:
        super().__init__()
        part = self.layer
        self.other = nn.Identity()
        self.other.register_forward_hook(lambda module, given, output: part(output))

    def forward(self, x: Tensor) -> Tensor:
        return self.other(x)


class OfItself(Lambda):
    """A function that calls itself, and has a module of Python in its closure."""

    def __init__(self) -> None:
        super().__init__()
        part, library = self.layer, functools

        def again(x: Tensor, times: int = 2) -> Tensor:
            assert library is functools
            return again(part(x), times - 1) if times else x

        self.function = again


class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.jit.script(nn.Linear(3, 3))  # type: ignore[no-untyped-call]

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


KINDS = [Lambda, Itself, Default, Partial, PartialOfLambda, Wrapped, Listed, Named, Hooked, OfItself, Scripted]


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_has_parameters_of_its_own_behind_functions_too(kind: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model, x = kind(), torch.randn(2, 3)
    before, other = model(x), copied(model)
    assert torch.equal(other(x), before)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(-3)
    assert torch.equal(model(x), before)
    assert not torch.allclose(other(x), before)
    assert other.double()(x.double()).dtype == torch.float64
    assert model(x).dtype == torch.float32
