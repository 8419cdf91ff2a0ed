"""A program (`ipc/program.py`) as one Python function, a line for each step.

A module of a hundred small kernels is as fast as the host that launches them, and who interprets the steps one by one
takes as long again beside them. So they are compiled once, as a file's own `forward` is. The text is made of numbers
and of names that are ours; what a stranger wrote, texts and names, is only a constant of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dice.verify.ipc import program as p
from dice.verify.ipc.program import Program

_FILE = "<program>"
_FIRST_LINE = 2  # of the steps: the function's head is before them


class Departed(Exception):
    """A step gave something else than it gave without data; the message says what."""


def compiled(program: Program, state: Sequence[str], constant: Callable[[str, Any], Any]) -> Callable[..., Any]:
    """What runs the program, given its inputs, its parameters and buffers in the order of `state`, and the functions of
    its steps; it returns the output. `constant`: what a term of a kind and a value stands for, other than these.

    Each value is forgotten after its last use. Raises, besides what the steps raise, `Departed`.
    """
    return _Text(program, state, constant).function()


def step_of(error: BaseException) -> int:
    """The number of the step that an exception came from."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != _FILE:
        trace = trace.tb_next
    return 0 if trace is None else trace.tb_lineno - _FIRST_LINE


class _Text:
    def __init__(self, program: Program, state: Sequence[str], constant: Callable[[str, Any], Any]):
        self._program, self._constant = program, constant
        self._places = {name: place for place, name in enumerate(state)}
        self._known: dict[str, Any] = {"one": _one, "several": _several, "checked": _checked}  # the text's global names
        self._values = 0  # that the steps so far have given

    def function(self) -> Callable[..., Any]:
        lines = [self._step(number, over) for number, over in enumerate(_last_uses(self._program))]
        text = "\n ".join(["def run(inputs, state, functions):", *lines, f"return {self._term(self._program.output)}"])
        exec(compile(text, _FILE, "exec"), self._known)
        run: Callable[..., Any] = self._known["run"]
        return run

    def _step(self, number: int, over: Sequence[int]) -> str:
        step = self._program.steps[number]
        given = [self._term(term) for term in step.arguments]
        if step.options:
            given.append(f"**{{{self._pairs(step.options.items())}}}")
        result = self._result(f"functions[{number}]({', '.join(given)})", step.gives)
        return f"{result}; del {', '.join(f'v{one}' for one in over)}" if over else result

    def _result(self, call: str, gives: object) -> str:
        """Keeps what a step gives that was not there before, where it gives what its program says."""
        before = self._values
        new = list(dict.fromkeys(value for kind, value in p.leaves(gives) if kind == "value" and value >= before))  # type: ignore[operator]
        self._values += len(new)
        names = [f"v{before + place}" for place in range(len(new))]
        if _is_tensor(gives):
            return f"{names[0]} = one({call})" if names else f"one({call})"
        if names and gives == [{"value": value} for value in new]:
            return f"{', '.join(names)}, = several({call}, {len(new)})"
        call = f"checked({call}, {self._name(gives)}, {before})"
        return f"{', '.join(names)}, = {call}" if names else call

    def _term(self, term: object) -> str:
        if term is None or isinstance(term, bool | int):
            return repr(term)
        if isinstance(term, list):
            return f"[{', '.join(map(self._term, term))}]"
        if not isinstance(term, dict):
            return self._name(term)
        ((key, value),) = term.items()
        if key == "value":
            return f"v{int(value)}"
        if key == "input":
            return f"inputs[{int(value)}]"
        if key == "state":
            return f"state[{self._places[value]}]"
        if key == "tuple":
            return f"({''.join(f'{self._term(item)}, ' for item in value)})"
        if key == "dict":
            return f"{{{self._pairs(value)}}}"
        return self._name(self._constant(key, value))

    def _pairs(self, pairs: Any) -> str:
        return ", ".join(f"{self._name(name)}: {self._term(term)}" for name, term in pairs)

    def _name(self, constant: Any) -> str:
        name = f"c{len(self._known)}"
        self._known[name] = constant
        return name


def _one(result: Any) -> torch.Tensor:
    if not isinstance(result, torch.Tensor):
        raise Departed(f"a step gave a {type(result).__name__} in place of a tensor")
    return result


def _several(result: Any, count: int) -> Sequence[torch.Tensor]:
    if not isinstance(result, list | tuple) or len(result) != count:
        raise Departed("a step gave another number of values")
    for one in result:
        _one(one)
    return result


def _checked(result: Any, gives: object, known: int) -> list[torch.Tensor]:
    """What there was not before of a step's result: values whose numbers are those that follow on the `known`."""
    new: list[torch.Tensor] = []
    _note(gives, result, known, new)
    return new


def _note(gives: Any, result: Any, known: int, new: list[torch.Tensor]) -> None:
    if _is_tensor(gives):
        ((key, value),) = gives.items()
        tensor = _one(result)
        if key == "value" and value == known + len(new):
            new.append(tensor)
        return
    if isinstance(gives, dict):
        (gives,) = gives.values()
    if isinstance(gives, list):
        if not isinstance(result, list | tuple) or len(result) != len(gives):
            raise Departed("a step gave another number of values")
        for one, other in zip(gives, result, strict=True):
            _note(one, other, known, new)
    elif gives != result:
        raise Departed(f"a step gave {str(result)[:80]} in place of {str(gives)[:80]}")


def _is_tensor(gives: object) -> bool:
    return isinstance(gives, dict) and next(iter(gives)) in p.LEAVES


def _last_uses(program: Program) -> list[list[int]]:
    """For each step, the values that nobody needs after it."""
    last: dict[int, int] = {}
    for number, step in enumerate(program.steps):
        for kind, value in p.leaves([step.arguments, list(step.options.values()), step.gives]):
            if kind == "value":
                last[int(value)] = number  # type: ignore[call-overload]
    for kind, value in p.leaves(program.output):
        if kind == "value":
            last.pop(int(value), None)  # type: ignore[call-overload]
    over: list[list[int]] = [[] for _ in program.steps]
    for value, number in last.items():
        over[number].append(value)
    return over
