"""The numbers of a kernel file that may be others without another result: where they stand, and the file with one of
them changed.

What is looked for is how CUDA is written: constants with names (`constexpr int BLOCK = 256;`, `#define TILE 32`, the
host's `const int threads = 256;`), arguments of the templates that are launched, blocks that are bare numbers in a
launch, and `#pragma unroll 4`. A number may mean something else than it seems to, the width of a row as much as that of
a block: so nothing here promises that a variant is right. Each is verified as any candidate is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dice.kernel import Kernel, SplitError
from dice.verify.emulator.tokens import CLOSING, OPENING, Tokens

MOST_THREADS = 1024  # of a block on any GPU; other numbers above it are sizes of the problem as a rule
WARP = 32
MOST_UNROLLED = 32

_TYPES = ("int", "unsigned", "long", "short", "auto", "size_t", "int32_t", "uint32_t", "int64_t", "dim3")
_NUMBER = re.compile(r"[1-9]\d{0,3}")


@dataclass(frozen=True, slots=True)
class Place:
    """Characters `start` to `end` of the file, a number that is the constant's value and `offset`: 255, where threads
    are rounded up to 256."""

    start: int
    end: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Constant:
    """`name`: what the source calls it, or what it is. `is_block`: it counts a block's threads."""

    name: str
    value: int
    places: tuple[Place, ...]
    is_block: bool = False
    most: int = MOST_THREADS

    @property
    def others(self) -> tuple[int, ...]:
        """The values next to its own: twice, and half."""
        least = WARP if self.is_block else 1
        near = (self.value * 2, self.value // 2 if self.value % 2 == 0 else 0)
        return tuple(value for value in near if least <= value <= self.most)


def constants_of(kernel: Kernel) -> tuple[Constant, ...]:
    """A kernel's constants, blocks and what else is part of a launch first. None where its CUDA source is in several
    places of the file."""
    try:
        parts = kernel.split()
    except SplitError:
        return ()
    found = _Finder(Tokens(parts.core), len(parts.prefix)).all()
    return tuple(sorted(found, key=lambda one: not one.is_block))


def changed(kernel: Kernel, constant: Constant, value: int) -> Kernel:
    """The kernel with another value of one of its constants."""
    text = kernel.source
    for place in sorted(constant.places, key=lambda one: -one.start):
        text = f"{text[: place.start]}{value + place.offset}{text[place.end :]}"
    return Kernel(text, name=kernel.name)


def differences(kernel: Kernel, origin: Kernel) -> str:
    """What a variant's constants are that were others in the kernel it was made of: `BLOCK 512 instead of 256`."""
    pairs = zip(constants_of(kernel), constants_of(origin), strict=False)
    return ", ".join(
        f"{one.name} {one.value} instead of {old.value}"
        for one, old in pairs
        if one.name == old.name and one.value != old.value
    )


def _sorted(places: Iterable[Place]) -> tuple[Place, ...]:
    return tuple(sorted(places, key=lambda one: one.start))


class _Finder:
    """Looks through the tokens of one CUDA source that begins at `start` in its file."""

    def __init__(self, tokens: Tokens, start: int):
        self.tokens, self.start = tokens, start
        self.launches = [at for at in range(len(tokens)) if tokens.text(at) == "<<<"]
        self.blocks = {at: self._block_argument(at) for at in self.launches}
        self.functions = tuple(self._functions())
        self.bodies = dict(self._bodies())
        self.launched = {tokens.text(index) for at in self.launches for index in self._of_launch(at)}

    def all(self) -> Iterator[Constant]:
        yield from self._named()
        yield from self._of_templates()
        yield from self._of_launches()
        yield from self._unrolled()

    # ---- constants with names ------------------------------------------------------------------------------------

    def _named(self) -> Iterator[Constant]:
        """Those of the file or of a function, and what a launch is given by name, constant or not."""
        tokens, threads = self.tokens, self._names_of_blocks()
        seen: set[str] = set()
        for at in range(2, len(tokens) - 1):
            name = tokens.text(at - 2)
            if tokens.text(at - 1) != "=" or tokens[at - 2].kind != "word" or not self._is_number(at):
                continue
            if tokens.text(at + 1) not in (";", ",", ">") or not (self._is_constant(at - 2) or name in self.launched):
                continue
            if name not in seen and tokens.text(at - 3) in (*_TYPES, ","):
                seen.add(name)
                yield self._constant(name, at, name in threads)
        for name, body in tokens.macros:
            numbers = [at for at in body if tokens.text(at) not in ("(", ")")]
            if len(numbers) == 1 and self._is_number(numbers[0]) and name not in seen:
                seen.add(name)
                yield self._constant(name, numbers[0], name in threads)

    def _is_constant(self, name: int) -> bool:
        """Whether the declaration that the name is in says so: `constexpr`, `const`, or it is a template's."""
        for at in range(name - 1, max(-1, name - 12), -1):
            text = self.tokens.text(at)
            if text in ("constexpr", "const", "template"):
                return True
            if text in (";", "{", "}", "(", ")"):
                return False
        return False

    def _constant(self, name: str, at: int, is_block: bool) -> Constant:
        """A limit of the launch that repeats a block's number goes with it."""
        value, places = int(self.tokens.text(at)), {self._place(at)}
        if is_block:
            places |= self._bounds(value)
        if is_block and self._around(at):  # a name of the host function alone: its kernel knows the bare number
            for launch, block in self.blocks.items():
                if any(self.tokens.text(index) == name for index in block):
                    places |= self._bare(value, launch)
        return Constant(name, value, _sorted(places), is_block)

    def _bare(self, value: int, launch: int) -> set[Place]:
        """Where the function that launches, and the kernel, have the number of a block's threads, or one less."""
        bodies = (self._around(launch), self.bodies.get(self._kernel(launch), range(0)))
        return {
            self._place(at, offset)
            for body in bodies
            for at in body
            for offset in (0, -1)
            if self.tokens.text(at) == str(value + offset)
        }

    def _bounds(self, value: int) -> set[Place]:
        tokens = self.tokens
        return {
            self._place(at + 2)
            for at in range(len(tokens) - 2)
            if tokens.text(at) == "__launch_bounds__" and tokens.text(at + 2) == str(value)
        }

    def _names_of_blocks(self) -> set[str]:
        """Names that stand for a block's threads in a launch, or for a part of what does."""
        return {self.tokens.text(at) for block in self.blocks.values() for at in block}

    # ---- bare numbers --------------------------------------------------------------------------------------------

    def _of_templates(self) -> Iterator[Constant]:
        """`kernel<256, 4><<<...>>>`, all launches that give the same number together."""
        tokens = self.tokens
        found: dict[tuple[str, int, str], list[Place]] = {}
        for launch in self.launches:
            opening = tokens.template_start(launch - 1)
            for number, argument in enumerate(self._split(opening + 1, launch - 1) if opening is not None else ()):
                if len(argument) == 1 and self._is_number(argument[0]):
                    key = (tokens.text((opening or 0) - 1), number, tokens.text(argument[0]))
                    found.setdefault(key, []).append(self._place(argument[0]))
        for (kernel, number, text), places in found.items():
            yield Constant(f"argument {number + 1} of {kernel}", int(text), tuple(places))

    def _of_launches(self) -> Iterator[Constant]:
        """Blocks that are bare numbers: the number is then the name, in the host function and in what it launches."""
        tokens = self.tokens
        found: dict[tuple[str, int], set[Place]] = {}
        for launch, block in self.blocks.items():
            numbers = [at for at in block if self._is_number(at)]
            if not numbers and len(block) == 1:  # `dim3 block(256);` before
                numbers = self._of_dim3(tokens.text(block[0]), self._around(launch))
            elif any(tokens[at].kind == "word" and tokens.text(at) != "dim3" for at in block):
                continue
            if len(numbers) != 1:
                continue
            kernel, value = self._kernel(launch), int(tokens.text(numbers[0]))
            if value % WARP == 0:
                places = found.setdefault((kernel, value), self._bounds(value))
                places |= self._bare(value, launch)
        for (kernel, value), places in found.items():
            yield Constant(f"block of {kernel}", value, _sorted(places), is_block=True)

    def _of_dim3(self, name: str, function: range) -> list[int]:
        tokens = self.tokens
        for at in function:
            text = [tokens.text(index) for index in range(at, at + 5)]
            if text[:3] == ["dim3", name, "("] and text[4] == ")" and self._is_number(at + 3):
                return [at + 3]
        return []

    def _unrolled(self) -> Iterator[Constant]:
        tokens = self.tokens
        for start, end in tokens.directives:
            words = [tokens.text(at) for at in range(start + 1, end)]
            numbers = [at for at in range(start + 3, end) if self._is_number(at)]
            if words[:2] == ["pragma", "unroll"] and len(numbers) == 1:
                value = int(tokens.text(numbers[0]))
                yield Constant("unroll", value, (self._place(numbers[0]),), most=MOST_UNROLLED)

    # ---- tokens --------------------------------------------------------------------------------------------------

    def _is_number(self, at: int) -> bool:
        """A plain number that is worth another value; 1 is one that can only become more."""
        text = self.tokens.text(at)
        return bool(_NUMBER.fullmatch(text)) and int(text) <= MOST_THREADS

    def _place(self, at: int, offset: int = 0) -> Place:
        token = self.tokens[at]
        return Place(self.start + token.start, self.start + token.end, offset)

    def _kernel(self, launch: int) -> str:
        """The name before `<<<`, and before its template's arguments."""
        opening = self.tokens.template_start(launch - 1)
        return self.tokens.text((launch if opening is None else opening) - 1)

    def _of_launch(self, launch: int) -> range:
        """The tokens of grid, block and what follows them."""
        closing = next((at for at in range(launch, len(self.tokens)) if self.tokens.text(at) == ">>>"), launch)
        return range(launch + 1, closing)

    def _block_argument(self, launch: int) -> list[int]:
        """The tokens of the second argument between `<<<` and `>>>`."""
        inside = self._of_launch(launch)
        arguments = self._split(inside.start, inside.stop)
        return arguments[1] if len(arguments) > 1 else []

    def _split(self, start: int, end: int) -> list[list[int]]:
        """At the commas that are in no bracket."""
        parts: list[list[int]] = [[]]
        depth = 0
        for at in range(start, end):
            text = self.tokens.text(at)
            depth += (text in OPENING) - (text in CLOSING)
            if text == "," and depth == 0:
                parts.append([])
            else:
                parts[-1].append(at)
        return parts

    def _functions(self) -> Iterator[range]:
        """The outermost braces, those of namespaces aside."""
        tokens, at = self.tokens, 0
        while at < len(tokens):
            is_space = "namespace" in (tokens.text(at - 1), tokens.text(at - 2))
            if tokens.text(at) == "{" and at in tokens.partner and not is_space:
                yield range(at, tokens.partner[at])
                at = tokens.partner[at]
            at += 1

    def _around(self, at: int) -> range:
        """The function that a token is in."""
        return next((one for one in self.functions if at in one), range(0))

    def _bodies(self) -> Iterator[tuple[str, range]]:
        """The bodies of functions by name: what stands between braces behind a name and its parameters."""
        tokens = self.tokens
        for body in self.functions:
            opening = tokens.partner.get(body.start - 1)
            if opening is not None and tokens.text(opening) == "(":
                yield tokens.text(opening - 1), body
