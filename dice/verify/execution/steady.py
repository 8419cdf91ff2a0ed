"""Inputs that every draw of a problem leaves alike, and what else they could be.

A mask of ones, a state of zeros, full lengths, `arange` for an index, a Python number: a kernel that ignores one of
them is right on all that the problem draws. Each can be otherwise within what its own values show: in their range, in
their order, and as what they are (a mask stays a mask). What such a value means nobody tells, so several kinds are
tried, and the reference decides: one is used where its output stays finite, keeps its shape, and changes. Masks that
differ from draw to draw are tried, too: they may all be of one form, as those are that only tell lengths. So are
inputs that every draw makes a copy of an earlier one.

| kind | for | the other values |
|---|---|---|
| `cleared` | masks: bools, 0 and 1, 0 and minus infinity | a quarter of what is set is cleared, but one in each row |
| `set` | masks of bools or floats in which nothing is set | a quarter of it is |
| `shorter` | equal whole numbers, as lengths | from 1 up to that number |
| `repeated` | whole numbers that rise, as offsets, alike or not | the ends stay, some between repeat their neighbour |
| `shuffled` | other whole numbers, and copies of another input | in another order |
| `moved` | numbers, zeros, ones, values that are all equal | off by up to a half |
| `more`, `less`, `far` | a Python whole number | one more, one less; three more than twice |
| `text ...` | a text | another one that the problem's code compares texts with |
| `negated` | a Python bool | the other |
| `brimming ...` | whole numbers drawn from a range, if few, or of which sums overflow 32 bits | the highest |
| `at both ends ...` | few whole numbers drawn from a range | the least or the greatest, in some rows the least alone |
| `crowded ...` | whole numbers drawn one by one from a range, by chance all different | few of them, with both ends |
| `both ...` | two of these, neither of which shows alone what they do together | each of its kind |
| `halved` | an argument of the constructor that is no whole number | half of it |
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from dice.verify.execution import seldom
from dice.verify.execution.dispatch import OperatorMode
from dice.verify.ipc.messages import BOTH, CROWDED, NEGATED, TEXT
from dice.verify.tensors import transport

CLEARED = 0.25  # of what is set in a mask
SHUFFLED, REPEATED = "shuffled", "repeated"
LEAVES = (torch.Tensor, bool, int, float, str)
HALVED = "halved"
ENDS = "at both ends "  # begins the kind, before the range
BRIMMING, BRIM = "brimming ", 8  # begins the kind, before the range; of which the last such part is the brim
AT_END = 0.5  # of these are the greatest
ALL_BRIMMING = "all brimming "  # begins the kind, before the place and the range of each such leaf
DISTINCT = 0.75  # of the numbers of a tensor: fewer repeat themselves in every draw
LONGEST_WORD, MOST_WORDS = 40, 12
USUAL_WORDS = ("sum", "mean", "none")  # of PyTorch's own: what code compares with nothing is its `else`


def leaves(value: Any) -> Iterator[Any]:
    """Tensors, Python numbers and texts of a tree, in order."""
    if isinstance(value, LEAVES):
        yield value
    for item in transport.parts(value) or ():
        yield from leaves(item)


def steady(one: Any, other: Any) -> list[int]:
    """The places, among `leaves`, of what two draws have alike, and of masks. None where the draws are of different
    form."""
    ours, theirs = list(leaves(one)), list(leaves(other))
    if len(ours) != len(theirs):
        return []
    pairs = enumerate(zip(ours, theirs, strict=True))
    return [place for place, pair in pairs if _is_same(*pair) or all(map(_is_varying_mask, pair))]


def copies(one: Any, other: Any) -> list[int]:
    """The places of tensors that in two draws have the values of an earlier tensor, or are it: another caller may give
    another one."""
    ours, theirs = list(leaves(one)), list(leaves(other))
    if len(ours) != len(theirs):
        return []
    found = []
    for place in range(1, len(ours)):
        if not isinstance(ours[place], torch.Tensor) or ours[place].numel() < 2 or _is_same(ours[place], theirs[place]):
            continue
        alike = [i for i in range(place) if _is_same(ours[place], ours[i]) and _is_same(theirs[place], theirs[i])]
        if alike:
            found.append(place)
    return found


def rising(one: Any, other: Any) -> list[int]:
    """The places of whole numbers that rise in two draws, and not by the same steps, as offsets do: two of them may be
    equal as well."""
    ours, theirs = list(leaves(one)), list(leaves(other))
    pairs = enumerate(zip(ours, theirs, strict=False)) if len(ours) == len(theirs) else ()
    return [place for place, pair in pairs if all(map(_is_rising_tensor, pair)) and not _is_same(*pair)]


def kinds(leaf: Any, words: Sequence[str] = ()) -> list[list[str]]:
    """What to try for a leaf: of each list the first that the reference takes. `words`: what texts may be."""
    if isinstance(leaf, bool):
        return [[NEGATED]]
    if isinstance(leaf, int):
        return [["more", "less"], ["far"]]
    if isinstance(leaf, float):  # a rate that is less remembers for longer
        return [["moved"], [HALVED]] if leaf else [["moved"]]
    if isinstance(leaf, str):
        return [[TEXT + word for word in words if word != leaf]]
    if not leaf.numel() or leaf.is_complex() or _is_narrow(leaf):
        return []
    return [[name for name, (suits, _) in _TENSORS.items() if suits(leaf)]]


class Draws(OperatorMode):
    """Notes which tensors a block draws by `randint`: any numbers of its range are another draw of them, as those of a
    permutation are not."""

    def __init__(self) -> None:
        super().__init__()
        self._ranges: dict[
            int, tuple[torch.Tensor, int, int, int]
        ] = {}  # by identity; kept, so that it is nobody else's

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.name()
        if name in ("aten::randint", "aten::randint.low"):
            low, high = (0, args[0]) if name == "aten::randint" else args[:2]
            self._note(result, low, high)
        elif isinstance(result, torch.Tensor) and (func.is_view or name in ("aten::_to_copy", "aten::clone")):
            known = self._range(args[0]) if args else None
            if known is not None and result.numel() == args[0].numel() and _is_whole(result):
                self._note(result, *known)
        return result

    def _note(self, tensor: torch.Tensor, low: int, high: int) -> None:
        self._ranges[id(tensor)] = tensor, tensor._version, low, high

    def _range(self, tensor: Any) -> tuple[int, int] | None:
        _, version, low, high = self._ranges.get(id(tensor), (None, -1, 0, 0))
        return (low, high) if isinstance(tensor, torch.Tensor) and tensor._version == version else None

    def ranges(self, drawn: Any) -> dict[int, tuple[int, int]]:
        """The range of each tensor that was drawn so, by its place among `leaves`."""
        found = {place: self._range(leaf) for place, leaf in enumerate(leaves(drawn))}
        return {place: known for place, known in found.items() if known is not None}


def is_distinct(tensor: torch.Tensor) -> bool:
    """Whether nearly all of its numbers are different."""
    return tensor.numel() > 1 and len(torch.unique(tensor)) > DISTINCT * tensor.numel()


def argument_kinds(leaf: Any) -> list[str]:
    """The same for an argument of the constructor: of these the first that suits. Texts choose what is computed, and
    tensors are parameters, or like them."""
    if isinstance(leaf, bool):
        return [NEGATED]
    if isinstance(leaf, int):
        return ["more", "less"]
    return ["moved", HALVED] if isinstance(leaf, float) else []


def words(source: str) -> tuple[str, ...]:
    """Texts that code compares something with, looks up, or matches, in order."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError):
        return ()
    found: list[object] = []
    for node in nodes:
        if isinstance(node, ast.Compare):
            found += [item for side in (node.left, *node.comparators) for item in _texts(side)]
        elif isinstance(node, ast.Dict):
            found += [item for key in node.keys if key is not None for item in _texts(key)]
        elif isinstance(node, ast.MatchValue):
            found += _texts(node.value)
    texts = dict.fromkeys(text for text in found if isinstance(text, str) and len(text) <= LONGEST_WORD)
    return (*texts, *(word for word in USUAL_WORDS if word not in texts))[:MOST_WORDS]


def _texts(node: ast.expr) -> list[object]:
    items = node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node]
    return [item.value for item in items if isinstance(item, ast.Constant)]


def replaced(value: Any, place: int, kind: str, seed: int) -> Any:
    """The same tree with the leaf at `place` of that kind. The seed decides the values."""
    if kind.startswith(ALL_BRIMMING):
        numbers = list(map(int, kind.removeprefix(ALL_BRIMMING).split()))
        for own, low, high in zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True):
            value = replaced(value, own, f"{BRIMMING}{low} {high}", seed + own)
        return value
    if kind.startswith(BOTH):
        for number, (own, one) in enumerate(json.loads(kind.removeprefix(BOTH))):
            value = replaced(value, own, one, seed + number)
        return value
    generator = torch.Generator().manual_seed(seed)
    count = iter(range(1 << 30))

    def walk(item: Any) -> Any:
        inner = transport.parts(item)
        if inner is not None:
            return transport.like(item, [walk(one) for one in inner])
        if isinstance(item, LEAVES) and next(count) == place:
            return _other(item, kind, generator)
        return item

    return walk(value)


def _other(leaf: Any, kind: str, generator: torch.Generator) -> Any:
    if kind == NEGATED:
        return not leaf
    if kind.startswith(TEXT):
        return kind.removeprefix(TEXT)
    if kind in _WHOLE:
        return _WHOLE[kind](leaf)
    if kind == HALVED:
        return leaf / 2
    if isinstance(leaf, float):
        return leaf + (0.25 + 0.25 * float(torch.rand((), generator=generator))) * max(1.0, abs(leaf))
    if kind.startswith(BRIMMING):
        low, high = map(int, kind.removeprefix(BRIMMING).split())
        brim = torch.randint(high - max(1, (high - low) // BRIM), high, leaf.shape, generator=generator)
        at_end = torch.rand(leaf.shape, generator=generator) < AT_END
        return brim.masked_fill(at_end, high - 1).to(leaf)
    if kind.startswith(ENDS):
        low, high = map(int, kind.removeprefix(ENDS).split())
        ends = torch.where(torch.rand(leaf.shape, generator=generator) < AT_END, low, high - 1)
        rows = ends.reshape(-1, leaf.shape[-1]) if leaf.dim() else ends.reshape(1, 1)
        rows[:: len(rows) // 2 or 1] = low
        return rows.reshape(leaf.shape).to(leaf)
    if kind.startswith(CROWDED):
        low, high = map(int, kind.removeprefix(CROWDED).split())
        return _crowded(leaf.detach().cpu(), low, high, generator).to(leaf.device)
    # On the CPU, whose generators give the same everywhere; such inputs are seldom large.
    return _TENSORS[kind][1](leaf.detach().cpu(), generator).to(leaf.device)


_WHOLE: dict[str, Callable[[int], int]] = {
    "more": lambda number: number + 1,
    "less": lambda number: number - 1,
    "far": lambda number: 2 * number + 3,
}


def _is_varying_mask(leaf: Any) -> bool:
    if not isinstance(leaf, torch.Tensor) or _is_whole(leaf) or _is_narrow(leaf):
        return False
    return bool(leaf.numel()) and _is_filled_mask(leaf) and not seldom.is_one_hot(leaf)


def _is_narrow(leaf: torch.Tensor) -> bool:
    """Floats of eight bits, which few of PyTorch's operators take."""
    return leaf.is_floating_point() and leaf.dtype.itemsize < 2


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        if not isinstance(other, torch.Tensor) or one.shape != other.shape or one.dtype != other.dtype:
            return False
        return torch.equal(*(side.view(torch.uint8) if _is_narrow(side) else side for side in (one, other)))
    return type(one) is type(other) and one == other


def _is_set(mask: torch.Tensor) -> torch.Tensor:
    """Which elements of a mask let their place take part."""
    infinite = mask.is_floating_point() and bool(torch.isneginf(mask).any())
    return ~torch.isneginf(mask) if infinite else mask != 0


def _is_mask(tensor: torch.Tensor) -> bool:
    if tensor.dtype == torch.bool:
        return True
    if not tensor.is_floating_point():
        return bool(((tensor == 0) | (tensor == 1)).all())
    return bool(((tensor == 0) | (tensor == 1)).all()) or bool(((tensor == 0) | torch.isneginf(tensor)).all())


def _is_filled_mask(tensor: torch.Tensor) -> bool:
    return _is_mask(tensor) and bool(_is_set(tensor).any())


def _is_empty_mask(tensor: torch.Tensor) -> bool:
    """Not of whole numbers: those may be indices into what has but one row, which would end a GPU's context."""
    return not _is_whole(tensor) and _is_mask(tensor) and not bool(_is_set(tensor).any())


def _is_whole(tensor: torch.Tensor) -> bool:
    return not tensor.is_floating_point() and not tensor.is_complex() and tensor.dtype != torch.bool


def _is_length(tensor: torch.Tensor) -> bool:
    first = tensor.reshape(-1)[0]
    return _is_whole(tensor) and int(first) > 1 and bool((tensor == first).all())


def _is_rising(tensor: torch.Tensor) -> bool:
    return _is_whole(tensor) and tensor.dim() == 1 and len(tensor) > 2 and bool((tensor[1:] > tensor[:-1]).all())


def _is_rising_tensor(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and _is_rising(leaf)


def _is_shuffled(tensor: torch.Tensor) -> bool:
    finite = tensor.is_floating_point() and bool(torch.isfinite(tensor).all())
    whole = _is_whole(tensor) or (finite and bool((tensor == tensor.round()).all()))
    return whole and tensor.numel() > 1 and not bool((tensor == tensor.reshape(-1)[0]).all())


def _is_constant(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and bool((tensor == tensor.reshape(-1)[0]).all())


def _cleared(mask: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    taking_part = _is_set(mask)
    clear = (torch.rand(mask.shape, generator=generator) < CLEARED) & taking_part
    if mask.dim():
        # The first place that takes part stays: a row in which none does has no softmax and no mean.
        first = taking_part & (taking_part.cumsum(-1) == 1)
        clear &= ~first
    return mask.masked_fill(clear, float("-inf") if bool(torch.isneginf(mask.float()).any()) else 0)


def _set(mask: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return mask.masked_fill(torch.rand(mask.shape, generator=generator) < CLEARED, 1)


def _shorter(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    most = int(tensor.reshape(-1)[0])
    return torch.randint(1, most + 1, tensor.shape, generator=generator).to(tensor.dtype)


def _repeated(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    places = torch.randint(0, len(tensor), (len(tensor),), generator=generator).sort().values
    places[0], places[-1] = 0, len(tensor) - 1
    return tensor[places]


def _shuffled(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return tensor.reshape(-1)[torch.randperm(tensor.numel(), generator=generator)].reshape(tensor.shape)


def _crowded(tensor: torch.Tensor, low: int, high: int, generator: torch.Generator) -> torch.Tensor:
    few = torch.randint(low, high, (max(2, tensor.numel() // 4),), generator=generator)
    few[0], few[1] = low, high - 1
    places = torch.randint(0, len(few), (tensor.numel(),), generator=generator)
    places[:2] = torch.tensor([0, 1])[: tensor.numel()]
    return few[places[torch.randperm(len(places), generator=generator)]].reshape(tensor.shape).to(tensor.dtype)


def _moved(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return tensor + (torch.rand(tensor.shape, generator=generator) - 0.5).to(tensor.dtype)


_TENSORS: dict[str, tuple[Callable[[torch.Tensor], bool], Callable[[torch.Tensor, torch.Generator], torch.Tensor]]] = {
    "cleared": (_is_filled_mask, _cleared),
    "set": (_is_empty_mask, _set),
    "shorter": (_is_length, _shorter),
    REPEATED: (_is_rising, _repeated),
    SHUFFLED: (_is_shuffled, _shuffled),
    "moved": (_is_constant, _moved),
}
