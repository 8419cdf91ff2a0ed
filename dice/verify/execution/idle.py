"""What of a reference does nothing on what a problem draws, and inputs on which it does something.

A kernel may leave out unnoticed what no trial gives anything to do: a clamp that no value reaches, a mask that lets
everything through, the end of a sequence that never comes. Tests of programs are measured by mutants, programs in which
one part is left out: a good set of tests tells each of them from the program. The mutants here are the reference with
one operator left out, its operand going on in place of its result, or with one comparison decided beforehand. Of most
operators any draw tells; one that gives an operand back as it was, or the same answer everywhere, is *idle*. So is a
way that the problem's Python did not take (`branches.py`). For what is idle in all planned trials other inputs are
looked for: other sizes, values that the reference itself decides by, equal ones, sorted ones, many draws. Such inputs
are used where the reference stays finite and leaving the operator out changes its output, or the way is taken.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch

from dice.verify.execution import inputs, seldom, steady
from dice.verify.execution.branches import Way, Ways
from dice.verify.execution.changes import is_formed
from dice.verify.execution.dispatch import OperatorMode
from dice.verify.execution.gathered import is_counted
from dice.verify.ipc.operator_counts import family
from dice.verify.tensors import near, sampled, transport, trees

WOKEN = "idle otherwise: "  # begins the family, before the operators that have something to do there
MOST_WOKEN = 6  # families; each costs a trial
PLANNED_S, SEARCH_S = 0.3, 0.25  # of the processor, at most: for a look at what is planned, and for the search
LONGEST = 4096  # calls of a reference that is looked at
MOST_NUMBERS = 8  # that operators compare with
FEW = 3  # inputs of nothing but such numbers; calls that are left out one by one
USUAL = (0.0, 1.0)  # numbers by which Python decides
SCALES = (8.0, 64.0, 1e3, 1e5, 1 / 8, 1 / 64, 1e-3)
SHARES = (0.25, 1.0)  # of the values are a number that the reference compares with

Call = tuple[str, int]  # an operator, and how often it was called before
Given = int | bool  # by an idle call
Change = Callable[[torch.Tensor], torch.Tensor]
Suits = Callable[[torch.Tensor], bool]
Forward = Callable[[Any], Any]  # None where the inputs do not suit

# With numbers alone these do the same to any values, and with a dimension of one, those.
_BY_FORM = frozenset({"mul", "add", "pow", "sum", "max", "cat", "stack", "flip", "roll", "repeat", "constant_pad_nd"})
_COMPARING = inputs.COMPARING | {"eq", "ne", "relu", "remainder", "fmod", "bitwise_and"}  # with numbers that matter


@lru_cache(maxsize=4096)
def _nature(func: Any) -> tuple[str, str, bool]:
    """An operator's name, its family, "" where it computes nothing, and whether it writes to what it is given."""
    return func.name(), "" if func.is_view else family(func.name()), func._schema.is_mutable


class _Counting(OperatorMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def _count(self, name: str) -> Call:
        self.seen[name] += 1
        return name, self.seen[name] - 1


class Idle(_Counting):
    """Notes idle calls (`calls`: what such a call gives, as the place of a tensor among the operands, or as a truth
    value), how often operators are called (`seen`), and the numbers that values are compared with (`numbers`). `state`:
    where parameters and buffers lie; what is computed of them alone no input wakes. `watched`: these calls alone."""

    def __init__(self, state: Collection[int] = (), watched: Container[Call] | None = None) -> None:
        super().__init__()
        self.calls: dict[Call, Given] = {}
        self.numbers: dict[float, None] = {}
        self._state, self._watched = state, watched

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kind, writes = _nature(func)
        if not kind:
            return func(*args, **(kwargs or {}))
        call = self._count(name)
        if self._watched is not None and call not in self._watched:
            return func(*args, **(kwargs or {}))
        operands = _operands(args, kwargs)
        before: Sequence[torch.Tensor] = [operands[0].clone()] if writes and operands else operands
        result = func(*args, **(kwargs or {}))
        if kind in _COMPARING:
            plain = (one for one in args[1:] if isinstance(one, int | float) and not isinstance(one, bool))
            self.numbers.update(dict.fromkeys(float(one) for one in plain if one != seldom.NO_LABEL))
        is_form = kind in _BY_FORM and len(operands) < 2
        if isinstance(result, torch.Tensor) and not is_form and not self._is_of_state(operands):
            self._note(call, before, result)
        return result

    def _note(self, call: Call, operands: Sequence[torch.Tensor], result: torch.Tensor) -> None:
        if result.dtype == torch.bool and result.numel() > 1 and bool(result.any()) == bool(result.all()):
            self.calls[call] = bool(result.all())
            return
        place = next((place for place, one in enumerate(operands) if _is_same(one, result)), -1)
        if place >= 0:
            self.calls[call] = place

    def _is_of_state(self, operands: Iterable[torch.Tensor]) -> bool:
        return all(one.untyped_storage().data_ptr() in self._state for one in operands)


class Without(_Counting):
    """Leaves one call out; what is `given` goes on instead."""

    def __init__(self, call: Call, given: Given) -> None:
        super().__init__()
        self._call, self._given = call, given

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kind, writes = _nature(func)
        if not kind or self._count(name) != self._call:
            return func(*args, **(kwargs or {}))
        operands = _operands(args, kwargs)
        if writes:
            return operands[0]
        if isinstance(self._given, bool):
            return torch.full_like(func(*args, **(kwargs or {})), self._given)
        return operands[self._given].clone()


def _operands(args: Any, kwargs: Any) -> Sequence[torch.Tensor]:
    return transport.tensors((*args, *(kwargs or {}).values()))


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)


@dataclass
class Left:
    """What nothing has given anything to do so far: idle calls, and ways that the problem's Python did not take."""

    calls: dict[Call, Given]
    ways: set[Way]

    def __bool__(self) -> bool:
        return bool(self.calls or self.ways)

    def without(self, calls: Iterable[Call], ways: Iterable[Way]) -> Left:
        gone = set(calls)
        return Left({call: given for call, given in self.calls.items() if call not in gone}, self.ways.difference(ways))


class Search:
    """For inputs on which a reference does what it does on none that are planned. `forward`: of the reference; `path`:
    the file of its source, `numbers` those that it decides by. `state`: its parameters and buffers. `independent`: the
    inputs whose numbers are drawn one by one."""

    def __init__(
        self,
        forward: Forward,
        path: str = "",
        numbers: Sequence[float] = (),
        state: Iterable[torch.Tensor] = (),
        independent: Collection[int] = (),
    ) -> None:
        self._forward, self._path, self._numbers = forward, path, tuple(numbers)
        self._state = {one.untyped_storage().data_ptr() for one in state}
        self._independent = independent
        self._begun = time.process_time()

    def waking(
        self, drawn: Any, planned: Iterable[Any], draws: Iterable[Any], seed: int, most: int = MOST_WOKEN
    ) -> dict[str, Any]:
        """At most so many inputs by their family, on which something is done that is not done on what is `drawn`, nor
        on all that is `planned`. `draws`: of the problem's own, drawn one by one."""
        left, numbers = self._nothing(drawn)
        before: tuple[set[Call], set[Way]] = set(), set()  # done once: a trial may yet be left out
        for one in planned:
            if not left or self._spent(PLANNED_S):
                break
            calls, ways = self._done(one, left)
            left = left.without(before[0].intersection(calls), before[1] & ways)
            before[0].update(calls)
            before[1].update(ways)
        self._begun, found = time.process_time(), dict[str, Any]()
        decided = tuple(filter(math.isfinite, dict.fromkeys((*numbers, *self._numbers))))
        for one in _moves(drawn, decided, seed, draws, self._independent):
            if not left or len(found) == most or self._spent(SEARCH_S):
                break
            if not _is_other(drawn, one):  # as no draw is of inputs that are always the same
                continue
            calls, ways = self._done(one, left)
            if not any(self._shows(one, call, left.calls[call]) for call in calls[:FEW]):
                calls = []
            if calls or ways:
                names = {family(name) for name, _ in calls} | ({"branch"} if ways else set())
                found[f"{WOKEN}{len(found)} {' '.join(sorted(names))}"] = one
                left = left.without(calls, ways)
        return found

    def _spent(self, seconds: float) -> bool:
        return time.process_time() - self._begun > seconds

    def _nothing(self, drawn: Any) -> tuple[Left, tuple[float, ...]]:
        with Idle(self._state) as mode, Ways(self._path) as ways:
            output = self._forward(drawn)
        if output is None or mode.seen.total() > LONGEST:
            return Left({}, set()), ()
        return Left(mode.calls, ways.left), tuple(mode.numbers)[:MOST_NUMBERS]

    def _done(self, other: Any, left: Left) -> tuple[list[Call], set[Way]]:
        """Which of these calls are made on the other inputs, and not idle there, and which of the ways are taken."""
        with Idle(watched=left.calls) as mode, Ways(self._path if left.ways else "") as ways:
            output = self._forward(other)
        if output is None or not trees.is_finite(output):
            return [], set()
        made = [call for call in left.calls if mode.seen[call[0]] > call[1]]
        return [call for call in made if mode.calls.get(call) != left.calls[call]], left.ways & ways.taken

    def _shows(self, drawn: Any, call: Call, given: Given) -> bool:
        """Whether the output is another one without the call."""
        expected = self._forward(drawn)
        with Without(call, given):
            other = self._forward(drawn)
        if expected is None or other is None:  # without it there is no output at all
            return expected is not None
        return trees.shape_of(other) != trees.shape_of(expected) or not sampled.are_equal(expected, other)


def _moves(
    drawn: Any, numbers: Sequence[float], seed: int, draws: Iterable[Any], independent: Collection[int]
) -> Iterator[Any]:
    """Other inputs of the same form: one of each kind in turns, so that what time there is goes to all of them, of each
    the nearest to what is drawn first."""
    kinds = _kinds_of_moves(drawn, numbers, torch.Generator().manual_seed(seed), independent)
    return (one for turn in itertools.zip_longest(*kinds, draws, fillvalue=drawn) for one in turn if one is not drawn)


def _kinds_of_moves(
    drawn: Any, numbers: Sequence[float], generator: torch.Generator, independent: Collection[int]
) -> Iterator[Iterator[Any]]:
    places = range(len(transport.tensors(drawn)))
    close = tuple(dict.fromkeys(other for one in (*numbers, *USUAL) for other in (one, one + 1, one - 1)))
    near_by = close[: 3 * len(numbers)]
    changes: tuple[Change, ...] = (_constant, _mostly_constant, _bare, _paired, _rising, _falling)

    def meet(index: int, number: float, share: float, suits: Suits = _is_loose) -> Any:
        return _at(drawn, (index,), suits, partial(_meeting, number=number, share=share, generator=generator))

    def largest(index: int, number: float) -> Any:
        return _at(drawn, (index,), _is_loose, partial(_largest_at, number=number, generator=generator))

    yield (_at(drawn, places, _is_measured, partial(_scaled, scale=scale)) for scale in SCALES)
    yield (
        _numbered(drawn, place, number)
        for place, leaf in enumerate(steady.leaves(drawn))
        if isinstance(leaf, int | float) or (isinstance(leaf, torch.Tensor) and leaf.numel() == 1)
        for number in close
    )
    yield (_at(drawn, (index,), _is_loose_mask, torch.zeros_like) for index in places)
    yield (
        meet(index, number, SHARES[0], seldom.is_whole if index in independent else _is_loose)
        for index, number in itertools.product(places, numbers)
    )
    yield (_at(drawn, (index,), _is_loose, change) for index, change in itertools.product(places, changes))
    yield (_at(drawn, places, _is_loose, partial(_among, numbers=close, generator=generator)) for _ in range(FEW))
    yield (meet(*one) for one in itertools.product(places, near_by, SHARES))
    yield (largest(index, number) for _ in range(FEW) for index, number in itertools.product(places, near_by))
    alone = itertools.product(places if len(places) > 1 else (), SCALES)
    yield (_at(drawn, (index,), _is_measured, partial(_scaled, scale=scale)) for index, scale in alone)
    yield (_at(drawn, places, _is_measured, partial(_of_sign, sign=sign)) for sign in (1, -1))


def _is_other(drawn: Any, one: Any) -> bool:
    pairs = zip(steady.leaves(drawn), steady.leaves(one), strict=False)
    return any(
        not near.same_values(own, other) if isinstance(own, torch.Tensor) else own != other
        for own, other in pairs
        if own is not other
    )


def _at(drawn: Any, places: Iterable[int], suits: Suits, change: Change) -> Any:
    """The same with those inputs changed that are at these places and suit."""
    count, chosen = itertools.count(), set(places)
    return transport.map_tensors(lambda one: change(one) if next(count) in chosen and suits(one) else one, drawn)


def _numbered(drawn: Any, place: int, number: float) -> Any:
    """With another number in this place among the leaves, if a Python number stands there, or a tensor of one that is
    whole."""
    count = itertools.count()

    def walk(item: Any) -> Any:
        inner = transport.parts(item)
        if inner is not None:
            return transport.like(item, [walk(one) for one in inner])
        if not isinstance(item, steady.LEAVES) or next(count) != place or isinstance(item, bool | str):
            return item
        if isinstance(item, float):
            return float(number)
        if number != round(number):
            return item
        if isinstance(item, int):
            return int(number)
        return torch.full_like(item, int(number)) if item.numel() == 1 and seldom.is_integer(item) else item

    return walk(drawn)


def _is_measured(tensor: torch.Tensor) -> bool:
    return (inputs.is_free(tensor) or inputs.is_scalar(tensor)) and not tensor.is_complex()


def _is_loose(tensor: torch.Tensor) -> bool:
    """Whether any of its values may stand at any place: of measured ones, of codes, and of floats that count, unless
    they are in order or have another form (zeros, a symmetric matrix) on which kernels may rely."""
    if inputs.is_scalar(tensor):
        return True
    if _is_measured(tensor):
        return not is_formed(tensor)
    counts = tensor.is_floating_point() and is_counted(tensor) and not steady.is_distinct(tensor)
    return (counts or seldom.is_coded(tensor)) and not seldom.is_in_order(tensor)


def _is_loose_mask(tensor: torch.Tensor) -> bool:
    is_narrow = tensor.is_floating_point() and tensor.dtype.itemsize < 2  # of which PyTorch compares nothing
    return not is_narrow and seldom.is_mask(tensor) and not seldom.is_one_hot(tensor)


def _scaled(tensor: torch.Tensor, scale: float) -> torch.Tensor:
    return (tensor * scale).to(tensor.dtype)


def _of_sign(tensor: torch.Tensor, sign: int) -> torch.Tensor:
    return sign * tensor.abs()


def _rising(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.sort(-1).values if tensor.dim() else tensor


def _falling(tensor: torch.Tensor) -> torch.Tensor:
    """Along the first dimension."""
    return tensor.sort(0, descending=True).values if tensor.dim() else tensor


def _meeting(tensor: torch.Tensor, number: float, share: float, generator: torch.Generator) -> torch.Tensor:
    """Some of its values are the number, if it is one of the tensor's type."""
    if not tensor.is_floating_point():
        known = torch.iinfo(tensor.dtype)
        if number != round(number) or not known.min <= number <= known.max:
            return tensor
    return seldom.meeting(tensor, (number,), generator, share)


def _among(tensor: torch.Tensor, numbers: Sequence[float], generator: torch.Generator) -> torch.Tensor:
    """Values that are all of these numbers, as far as they lie between those that are drawn."""
    least, most = map(float, tensor.aminmax())
    whole = not tensor.is_floating_point()
    known = [one for one in numbers if least <= one <= most and (not whole or one == round(one))]
    if not known:
        return tensor
    chosen = torch.randint(len(known), tensor.shape, generator=generator)
    return torch.tensor(known, dtype=torch.float64)[chosen].to(tensor)


def _largest_at(tensor: torch.Tensor, number: float, generator: torch.Generator) -> torch.Tensor:
    """Some rows have their largest value where the number says, which exchanges its place with what was there."""
    if not tensor.is_floating_point() or not tensor.dim() or number not in range(tensor.shape[-1]):
        return tensor
    rows = tensor.clone().reshape(-1, tensor.shape[-1])
    some = (torch.rand(len(rows), generator=generator) < SHARES[0]).nonzero().flatten().to(rows.device)
    places = rows[some].argmax(-1)
    there = rows[some, int(number)]
    rows[some, int(number)] = rows[some, places]
    rows[some, places] = there
    return rows.reshape(tensor.shape)


def _bare(tensor: torch.Tensor) -> torch.Tensor:
    """Zeros at one index of each dimension."""
    return seldom.empty(tensor, 0)


def _constant(tensor: torch.Tensor) -> torch.Tensor:
    """Along the first dimension every second index of one value."""
    changed = tensor.clone()
    if tensor.dim():
        changed[::2] = tensor.reshape(-1)[0]
    return changed


def _mostly_constant(tensor: torch.Tensor) -> torch.Tensor:
    """Three quarters of each row of one value."""
    changed = tensor.clone()
    if tensor.dim():
        changed[..., : -(-3 * tensor.shape[-1] // 4)] = tensor[..., :1]
    return changed


def _paired(tensor: torch.Tensor) -> torch.Tensor:
    """Every second index of the first dimension as the one before it."""
    if not tensor.dim() or len(tensor) < 2:
        return tensor
    return tensor[(torch.arange(len(tensor), device=tensor.device) // 2) * 2]
