"""Passes of a team's threads over the rows of one kernel, and what they keep of a row between passes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from dice.optimize.templates.emitter import Place, computed
from dice.optimize.templates.layout import Layout
from dice.optimize.templates.teams import team_for
from dice.optimize.templates.text import THREADS, Constants, indented
from dice.optimize.templates.values import Value
from dice.optimize.templates.vectors import HELPERS, VectorEmitter

MOST_KEPT = 32  # numbers of a row that each thread keeps; twice as many in small blocks, which have the registers
MOST_STEPS = 16  # of a thread through a row, up to which the compiler unrolls the loop by itself
IN_FLIGHT = 4  # vectors that a thread has under way in a long row, or twice as many elements


class Passes:
    """`width`: of the vectors that are read; `kept`: values whose elements threads keep."""

    def __init__(self, rows: Layout, constants: Constants, width: int, kept: Sequence[Value]):
        self.rows, self.constants, self.width, self.kept = rows, constants, width, kept
        self.e = VectorEmitter(width)
        self.e.on_value = self._known
        team = team_for(rows.number, rows.length, width, rows.lie)
        self._units = -(-(rows.length // width) // team.shared_by)
        self._most_kept = MOST_KEPT * (2 if team.threads <= THREADS else 1)
        self.team = replace(team, block=constants.name("BLOCK", team.threads))
        self.helpers = {"Vector": HELPERS["Vector"]} if width > 1 else {}
        self._at_once = ""
        self._names: dict[int, str] = {}  # of what is kept
        self._read: set[int] = set()
        self._here = ""  # index of the element that is being written about
        self.e.declare("row", 0, rows.number)

    @property
    def has_room(self) -> bool:
        """Whether a thread can keep its part of a row, and rows can be read in vectors."""
        if self.rows.lie == "down" and self.width > 1:
            return False
        size = sum(2 if computed(value.dtype) in ("double", "int64_t") else 1 for value in self.kept)
        return self._units * self.width * size <= self._most_kept or not self.kept

    @property
    def pays(self) -> bool:
        """Whether vectors are read, and whether what is kept is."""
        return (self.width == 1 or self.e.pays) and self._read == {id(value) for value in self.kept}

    @contextmanager
    def walk(self, before: Sequence[str] = (), after: Sequence[str] = ()) -> Iterator[Place]:
        """A loop of the team over the row: what is written within is about the element at the place that it gives.
        `before` and `after`: lines that stand around a vector's elements."""
        e, outside = self.e, self._here
        own = "c" if self.width > 1 else "j"
        with e.block() as outer:
            e.declare("step")
            e.declare(own, count=self.rows.length // self.width)
            if self.width > 1:
                with e.block() as inner:
                    e.declare("k")
                    place = self.rows.element(e, e.joined("c", self.width, "k", self.rows.length // self.width))
                    self._here = e.flat(place)
                    yield place
                loop = ["#pragma unroll", f"for (int k = 0; k < {self.width}; k++) {{", *indented(inner.lines), "}"]
            else:
                place = self.rows.element(e, "j")
                self._here = e.flat(place)
                yield place
                loop = []
        self._here = outside
        lines = [*outer.lines, *before, *loop, *after] if self.width > 1 else [*before, *outer.lines, *after]
        e.frames[0].lines += self._loop(own, lines)

    def _loop(self, own: str, lines: Sequence[str]) -> list[str]:
        team, count = self.team, self.rows.length // self.width
        if not self.kept:
            unroll = [f"#pragma unroll {self._in_flight()}"] if count > team.shared_by * MOST_STEPS else []
            return [*unroll, team.loop(own, count), *indented(lines), "}"]
        if team.kind == "thread":
            return ["#pragma unroll", team.loop(own, count), *indented(lines), "}"]
        is_full = team.kind == "warp" and count % team.lanes == 0
        guarded = lines if is_full else [f"if ({own} < {count}) {{", *indented(lines), "}"]
        is_read = any(re.search(rf"\b{own}\b", line) for line in guarded)
        place = [f"int {own} = {team.start} + step * {_factor(team.step)};"] if is_read else []
        return [
            "#pragma unroll",
            f"for (int step = 0; step < {self._steps()}; step++) {{",
            *indented([*place, *guarded]),
            "}",
        ]

    def _in_flight(self) -> str:
        if not self._at_once:
            self._at_once = self.constants.name("UNROLL", IN_FLIGHT if self.width > 1 else 2 * IN_FLIGHT)
        return self._at_once

    def _steps(self) -> str:
        """How many times the team has to step through a row that it keeps."""
        if self.team.kind in ("thread", "warp"):
            return str(self._units)
        if not self._at_once:
            count = self.rows.length // self.width
            self._at_once = self.constants.name("STEPS", f"({count} - 1) / {_factor(self.team.step)} + 1")
        return self._at_once

    def keep(self) -> None:
        """Reads what is kept."""
        if not self.kept:
            return
        names = {id(value): self.e.fresh("kept") for value in self.kept}
        vector = f"[{self.width}]" if self.width > 1 else ""
        for value in self.kept:
            self.e.frames[0].lines.append(f"{computed(value.dtype)} {names[id(value)]}[{self._steps()}]{vector};")
        with self.walk() as place:
            for value in self.kept:
                own = value.shape == self.rows.shape
                text = value.load(self.e, place if own else self.e.at_flat(value.shape, self.e.flat(place)))
                self.e.line(f"{names[id(value)]}{self._element()} = {text};")
        self._names = names

    def _element(self) -> str:
        step = ("c" if self.width > 1 else "j") if self.team.kind == "thread" else "step"
        return f"[{step}][k]" if self.width > 1 else f"[{step}]"

    def _known(self, value: Value, place: Place) -> str | None:
        """What is kept of this element."""
        name = self._names.get(id(value))
        if name is None or not self._here or self.e.flat(place) != self._here:
            return None
        self._read.add(id(value))
        return f"{name}{self._element()}"


def _factor(text: str) -> str:
    return f"({text})" if " " in text else text
