"""`Operators`: chains of elementwise operators in `forward`, as calls, methods, formulas or layers."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from dice.synth.problem.attributes import Attributes
from dice.synth.problem.chain import ChainState, Step, draw_scalars, renumbered
from dice.synth.problem.constructor import Constructor
from dice.synth.problem.forward import Forward, parsed
from dice.synth.problem.names import Names
from dice.synth.problem.rewrites import IN_PLACE_LAYER, in_place
from dice.synth.problem.style import Style
from dice.synth.problem.tensors import Tensors, Value
from dice.synth.tables.operators import OPERATORS, Operator, Spelling
from dice.synth.tables.phrasing import ATTRIBUTE_NAMES

_LAYER = re.compile(r"\w+ = self\.\w+\(")


class Operators:
    """Writes operators into one problem and says what its kernel has to compute."""

    def __init__(
        self,
        rng: random.Random,
        style: Style,
        names: Names,
        tensors: Tensors,
        constructor: Constructor,
        attributes: Attributes,
        forward: Forward,
    ) -> None:
        self.rng = rng
        self.style = style
        self.names = names
        self.tensors = tensors
        self.constructor = constructor
        self.attributes = attributes
        self.forward = forward
        self._forms: dict[str, Spelling] = {}  # how an operator that occurs several times is written

    def idle(self, value: Value) -> Value:
        """Seldom a layer that does nothing, as dropout in evaluation."""
        if self.rng.random() >= 0.05:
            return value
        layers = ["nn.Dropout(0.0)", "nn.Dropout(p=0.0)", "nn.Dropout(p=0)", "nn.Identity()"]
        if self.rng.random() < 0.3:
            pool = ("dropout", "p_drop", "drop_rate", "dropout_p")
            layers = [f"nn.Dropout({self.constructor.argument(pool, '0.0', 'float')})"]
        attribute = self.attributes.add("dropout", self.rng.choice(layers), shared=False)
        return self.forward.apply(f"{attribute}({{x}})", value, "dropout")

    def chain(
        self,
        value: Value,
        names: Sequence[str],
        *,
        state: ChainState | None = None,
        numbers: Sequence[tuple[float, ...]] | None = None,
    ) -> tuple[Value, list[Step]]:
        """Apply elementwise operators in turn. Returns the value and the steps for the kernel.

        `numbers`: the operators' scalars, where they are given; else they are drawn.
        """
        state = state or ChainState()
        steps: list[Step] = []
        modules = [form for name in names for form in _modules(name)[:1]]
        if self.style.contained and numbers is None and len(names) == len(modules) > 1:
            return self._container(value, names, modules, state)
        lines, made_lines = self.forward.lines, self.constructor.lines
        for index, name in enumerate(names):
            operator = OPERATORS[name]
            given = numbers[index] if numbers is not None else None
            before, made_before = len(lines), len(made_lines)
            # Only a result of this chain or of a layer may be changed: never what the caller passed, nor a view of it.
            may_change = index > 0 or (before > 0 and _LAYER.match(lines[-1]))
            value, step = self._operator(value, operator, state, given)
            if self.forward.in_place and may_change and len(lines) == before + 1:
                lines[-1] = in_place(lines[-1])
                if len(made_lines) == made_before + 1:
                    self._work_in_place()
            state = state.after(operator)
            steps.append(step)
        return value, steps

    def _work_in_place(self) -> None:
        """The layer made last works in place, where its only use is `x = self.act(x)`."""
        made = self.constructor.lines
        layer = IN_PLACE_LAYER.fullmatch(made[-1])
        if layer and re.fullmatch(rf"(\w+) = {re.escape(layer[1])}\(\1\)", self.forward.lines[-1]):
            arguments = ", ".join([*([layer[3]] if layer[3] else []), "inplace=True"])
            made[-1] = f"{layer[1]} = {layer[2]}({arguments})"
            self.attributes.never_again(layer[1])

    def _container(
        self, value: Value, names: Sequence[str], forms: Sequence[Spelling], state: ChainState
    ) -> tuple[Value, list[Step]]:
        """The chain as one `nn.Sequential`."""
        parts, steps = [], []
        for name, form in zip(names, forms, strict=True):
            operator = OPERATORS[name]
            drawn = zip(operator.scalars, draw_scalars(self.rng, operator, state), strict=True)
            scalars = [self.constructor.scalar(role, number) for role, number in drawn]
            parts.append(form.text.format(**dict(zip("ab", (scalar.init for scalar in scalars), strict=False))))
            steps.append(Step(operator, tuple(scalar.cuda for scalar in scalars)))
            state = state.after(operator)
        attribute = self.attributes.add("network", f"nn.Sequential({', '.join(parts)})", shared=False)
        return self.forward.apply(f"{attribute}({{x}})", value, "activations"), steps

    def _operator(
        self, value: Value, operator: Operator, state: ChainState, given: tuple[float, ...] | None
    ) -> tuple[Value, Step]:
        if operator.jumps:  # rounding or comparing numbers of [0, 1) leaves next to nothing of them
            inputs = self.tensors.inputs
            for item in [item for item in inputs if item.name == value.text] or inputs:
                item.make = item.make.replace("torch.rand({shape})", "torch.randn({shape})")
        plain = operator.plain and given in (None, operator.defaults) and self.rng.random() < 0.4
        form = self._pick(operator.plain if plain else operator.spellings)
        if given is not None:  # the same operator again is written as before
            form = self._forms.setdefault(operator.name, form)
            plain = form in operator.plain
        if operator.name == "clamp" and value.text.startswith("-"):
            value = self.forward.bind(value)
        drawn = given if given is not None else draw_scalars(self.rng, operator, state)
        numbers = operator.defaults if plain else drawn
        scalars = [
            self.constructor.scalar(role, number, may_be_argument=not plain)
            for role, number in zip(operator.scalars, numbers, strict=True)
        ]
        step = Step(operator, tuple(scalar.cuda for scalar in scalars))
        if form.kind == "module":
            expression = form.text.format(**dict(zip("ab", (scalar.init for scalar in scalars), strict=False)))
            role = "activation" if len(self.names.taken) % 2 else operator.name
            role = role if role in ATTRIBUTE_NAMES else "activation"
            attribute = self.attributes.add(role, expression, shared=False)
            return self.forward.apply(f"{attribute}({{x}})", value, operator.phrase), step
        fields = dict(zip("ab", (scalar.forward for scalar in scalars), strict=False))
        if form.kind == "call" and form.text.endswith("({x})") and self.rng.random() < 0.04:
            attribute = self.attributes.add("activation", form.text.removesuffix("({x})"), shared=False)
            return self.forward.apply(f"{attribute}({{x}})", value, operator.phrase), step
        text = renumbered(self.rng, form.text)
        return self.forward.apply(form if text == form.text else parsed(text), value, operator.phrase, **fields), step

    def _pick(self, forms: Sequence[Spelling]) -> Spelling:
        weights = [self.style.taste[form.kind] if "(" in form.text else 1.5 for form in forms]
        return self.rng.choices(forms, weights)[0]


def _modules(name: str) -> list[Spelling]:
    return [form for form in OPERATORS[name].spellings if form.kind == "module"]
