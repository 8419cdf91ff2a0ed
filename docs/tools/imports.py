"""Pictures of who imports whom: of the package, and inside its rooms `verify`, `synth`, `data` and `optimize`.

python docs/tools/imports.py            # writes docs/images/imports_*.svg

A box is a file or a folder at the first level of the room. An arrow points from a box to what it imports, from above to
below; one that follows from two others is left out. Imports inside functions and for type checkers count, too. A circle
has no "below": its arrows are red, and `circles` names it.
"""

from __future__ import annotations

import ast
import functools
import html
import math
from pathlib import Path

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
PICTURES = {
    "dice": "imports_dice",
    "dice/verify": "imports_verify",
    "dice/synth": "imports_synth",
    "dice/data": "imports_data",
    "dice/optimize": "imports_optimize",
}
TEXTS = {"hostile", "cases", "parts"}  # folders of Python files that are read and never imported

Graph = dict[str, set[str]]  # a place and the places that it imports

# What runs a stranger's code, what judges it, and what decides: the colours of `dice/verify`.
TRUST = {
    "candidate": ("#ffe3e0", "#c0392b"),
    "reference": ("#e1ecfb", "#2c64b0"),
    "build": ("#fdf0d5", "#b7791f"),
    **dict.fromkeys(("supervisor", "stream", "verifier", "emulated_first", "verdict_cache"), ("#e0f2e3", "#2f7d3b")),
}
PLAIN = ("#f4f4f6", "#6b7280")


def graph(room: str) -> Graph:
    """The places at the first level of `room`, a folder such as "dice/verify", and who imports whom."""
    folder = ROOT / room
    files = [path for path in sorted(folder.rglob("*.py")) if not TEXTS & set(path.relative_to(folder).parts)]
    place_of = {path: path.relative_to(folder).parts[0].removesuffix(".py") for path in files}
    places = set(place_of.values())
    found: Graph = {place: set() for place in sorted(places)}
    package = room.replace("/", ".")
    for path, place in place_of.items():
        for module in imported(path):
            if module == package or not module.startswith(f"{package}."):
                continue
            below = module.removeprefix(f"{package}.").split(".")[0]
            found[place].add(below if below in places else "__init__")
        found[place].discard(place)
    return {
        place: below for place, below in found.items() if below or any(place in others for others in found.values())
    }


@functools.cache
def imported(path: Path) -> tuple[str, ...]:
    """The full name of everything that a file imports; of `from a import b` it is `a.b`."""
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found += (f"{node.module}.{alias.name}" for alias in node.names)
    return tuple(found)


def reach(graph: Graph) -> Graph:
    """All that a place imports, itself or through others."""
    reached = {}
    for start in graph:
        seen: set[str] = set()
        ahead = list(graph[start])
        while ahead:
            place = ahead.pop()
            if place not in seen:
                seen.add(place)
                ahead += graph[place]
        reached[start] = seen
    return reached


def circles(graph: Graph) -> list[list[str]]:
    """Places that import one another, itself or through others, each group sorted."""
    reached = reach(graph)
    groups = {tuple(sorted(p for p in graph if p in reached[q] and q in reached[p])) for q in graph if q in reached[q]}
    return [list(group) for group in sorted(groups)]


def arrows(graph: Graph) -> list[tuple[str, str, bool]]:
    """(from, to, whether on a circle) for each import that does not follow from others."""
    reached = reach(graph)
    kept = []
    for place, below in sorted(graph.items()):
        for other in sorted(below):
            circular = place in reached[other]
            implied = any(other in reached[middle] and place not in reached[middle] for middle in below - {other})
            if circular or not implied:
                kept.append((place, other, circular))
    return kept


def floors(graph: Graph) -> dict[str, int]:
    """How high each place stands: above everything that it imports. Places on one circle share a floor."""
    reached = reach(graph)

    def height(place: str) -> int:
        below = [other for other in reached[place] if place not in reached[other]]
        return 1 + max(map(height, below)) if below else 0

    heights: dict[str, int] = {}
    for place in sorted(graph, key=lambda place: len(reached[place])):
        heights[place] = height(place) if place not in heights else heights[place]
    return heights


# Drawing. Every row is a floor; an arrow that passes a floor without ending there has a bend in it.

ROW, GAP, BOX_HEIGHT, LETTER, MARGIN = 74, 22, 30, 8.0, 24
Node = str | tuple[str, str, int]  # a place, or the bend of an arrow (from, to) on a floor


class Drawing:
    """One graph as SVG: floors as rows, ordered and moved sideways so that arrows are short and cross little."""

    def __init__(self, graph: Graph):
        self.floor = floors(graph)
        self.rows: list[list[Node]] = [[] for _ in range(max(self.floor.values(), default=0) + 1)]
        for place in sorted(graph):
            self.rows[self.floor[place]].append(place)
        self.paths = []
        self.near: dict[Node, list[Node]] = {place: [] for place in graph}
        for place, other, circular in arrows(graph):
            path: list[Node] = [place]
            for floor in range(self.floor[place] - 1, self.floor[other], -1):
                path.append((place, other, floor))
                self.rows[floor].append(path[-1])
            path.append(other)
            self.paths.append((path, circular))
            for one, two in zip(path, path[1:], strict=False):
                self.near.setdefault(one, []).append(two)
                self.near.setdefault(two, []).append(one)
        self.level = {node: index for index, row in enumerate(self.rows) for node in row}
        self.x: dict[Node, float] = {}
        self._place()

    def _place(self) -> None:
        for row in self.rows:
            self._spread(row, [0.0] * len(row))
        for sweep in range(40):
            order = range(len(self.rows)) if sweep % 2 else reversed(range(len(self.rows)))
            for index in order:
                row = self.rows[index]
                side = 1 if sweep % 2 == 0 else -1  # look at the floor that this sweep comes from; at last at both
                wanted = [self._wanted(node, side if sweep < 30 else 0) for node in row]
                pairs = sorted(zip(wanted, range(len(row)), strict=True))
                self.rows[index] = [row[place] for _, place in pairs]
                self._spread(self.rows[index], [value for value, _ in pairs])
        left = min((self.x[node] - width(node) / 2 for node in self.x), default=0)
        for node in self.x:
            self.x[node] += MARGIN - left

    def _wanted(self, node: Node, side: int) -> float:
        beside = [other for other in self.near[node] if not side or self.level[other] == self.level[node] + side]
        middle = math.fsum(self.x[other] for other in beside) / len(beside) if beside else self.x[node]
        return 0.95 * middle  # a pull to the middle holds parts together that no arrow joins

    def _spread(self, row: list[Node], wanted: list[float]) -> None:
        """As near as can be (least squares) to where each wants to be, with room between neighbours."""
        offsets = [0.0]
        for one, two in zip(row, row[1:], strict=False):
            offsets.append(offsets[-1] + (width(one) + width(two)) / 2 + GAP)
        groups: list[tuple[float, int]] = []  # neighbours that touch: where the first wants to be on average, how many
        for want, offset in zip(wanted, offsets, strict=False):
            groups.append((want - offset, 1))
            while len(groups) > 1 and groups[-2][0] >= groups[-1][0]:
                (start, many), (other, more) = groups[-2:]
                groups[-2:] = [((start * many + other * more) / (many + more), many + more)]
        starts = [start for start, count in groups for _ in range(count)]
        for node, start, offset in zip(row, starts, offsets, strict=False):
            self.x[node] = round(start + offset, 1)

    def svg(self, title: str, colours: dict[str, tuple[str, str]]) -> str:
        right = max((self.x[node] + width(node) / 2 for node in self.x), default=0) + MARGIN
        height = len(self.rows) * ROW + MARGIN
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {right:.0f} {height}" width="{right:.0f}" '
            f'font-family="ui-monospace, Menlo, Consolas, monospace" font-size="13" role="img">',
            f"<title>{html.escape(title)}</title>",
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            'orient="auto">'
            '<path d="M0 0L8 4L0 8z" fill="context-stroke"/></marker></defs>',
            f'<rect width="{right:.0f}" height="{height}" rx="8" fill="#ffffff"/>',
        ]
        for path, circular in self.paths:
            colour = "#d62728" if circular else "#9aa1ad"
            look = f'fill="none" stroke="{colour}" stroke-width="1.3" marker-end="url(#head)"'
            parts.append(f'<path d="{self._curve(path)}" {look}/>')
        for node in sorted(node for node in self.x if isinstance(node, str)):
            fill, stroke = colours.get(node, PLAIN)
            left, top = self.x[node] - width(node) / 2, self._y(node) - BOX_HEIGHT / 2
            parts.append(
                f'<rect x="{left:.1f}" y="{top:.1f}" width="{width(node):.0f}" height="{BOX_HEIGHT}" rx="6" '
                f'fill="{fill}" stroke="{stroke}"/>'
                f'<text x="{self.x[node]:.1f}" y="{top + 20:.1f}" text-anchor="middle" fill="#1f2430">{node}</text>'
            )
        return "\n".join([*parts, "</svg>", ""])

    def _y(self, node: Node) -> float:
        return (len(self.rows) - 1 - self.level[node]) * ROW + MARGIN / 2 + ROW / 2

    def _curve(self, path: list[Node]) -> str:
        points = [(self.x[node], self._y(node)) for node in path]
        upward = points[0][1] >= points[-1][1]
        points[0] = (points[0][0], points[0][1] + (-BOX_HEIGHT / 2 if upward else BOX_HEIGHT / 2))
        points[-1] = (points[-1][0], points[-1][1] - BOX_HEIGHT / 2)
        text = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
        for (x, y), (next_x, next_y) in zip(points, points[1:], strict=False):
            middle = y - ROW / 2 if y == next_y else (y + next_y) / 2  # between neighbours an arc over both
            text += f"C{x:.1f} {middle:.1f} {next_x:.1f} {middle:.1f} {next_x:.1f} {next_y:.1f}"
        return text


def width(node: Node) -> float:
    return len(node) * LETTER + 20 if isinstance(node, str) else 2.0


def picture(room: str) -> str:
    """The SVG of one room."""
    colours = TRUST if room == "dice/verify" else {}
    return Drawing(graph(room)).svg(f"Imports inside {room}", colours)


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    for room, name in PICTURES.items():
        (IMAGES / f"{name}.svg").write_text(picture(room))
        for circle in circles(graph(room)):
            print(f"{room}: a circle of imports: {' '.join(circle)}")


if __name__ == "__main__":
    main()
