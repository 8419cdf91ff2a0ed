"""What a run tells. While it works, events: how the module was cut, and what becomes of each region. At its end what
became of the module: its regions in a table, as text, as JSON, and as one page with the graph in colours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from dice.files import JsonObject
from dice.files.templates import render
from dice.optimize.operators import kind_of
from dice.optimize.region import Region
from dice.optimize.unit import Unit
from dice.verdict import Verdict

PAGE = Path(__file__).parent / "report.html"
COLOURS = (
    *("#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2", "#edc948", "#b07aa1", "#ff9da7", "#9c755f", "#8cd17d"),
    *("#499894", "#d37295", "#b6992d", "#86bcb6", "#fabfd2", "#a0cbe8"),
)
MOST_DRAWN = 600  # operators in the picture


@dataclass(frozen=True, slots=True)
class Listed:
    """One region of the module. `share`: of the module's time before, at all its places."""

    key: str
    title: str
    kind: str
    places: int
    share: float


@dataclass(frozen=True, slots=True)
class GraphCut:
    """The regions, the most valuable first. Comes again where some were cut finer. `reason`: why the module was not
    followed whole, or ""."""

    regions: tuple[Listed, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class RegionBegun:
    """Kernels are being looked for."""

    region: str


@dataclass(frozen=True, slots=True)
class CandidateJudged:
    """`why`: why there is no kernel, where the writer gave none."""

    region: str
    writer: str
    verdict: Verdict
    why: str


@dataclass(frozen=True, slots=True)
class RegionDone:
    """No more kernels are looked for. `writer`: of the one that was right and fastest; "" where none was, and `why`."""

    region: str
    writer: str
    why: str


@dataclass(frozen=True, slots=True)
class WholeJudged:
    """The module with kernels for these regions. There may be several before one is kept."""

    regions: tuple[str, ...]
    verdict: Verdict


Event = GraphCut | RegionBegun | CandidateJudged | RegionDone | WholeJudged
Tell = Callable[[Event], None]
TYPES: dict[type[Event], str] = {
    GraphCut: "graph",
    RegionBegun: "region_begun",
    CandidateJudged: "candidate",
    RegionDone: "region_done",
    WholeJudged: "composed",
}


def tell_nobody(event: Event) -> None:
    """Where nobody follows the run."""


def told(event: Event) -> JsonObject:
    """`type`, and the event's fields."""
    return {"type": TYPES[type(event)]} | {one.name: _plain(getattr(event, one.name)) for one in fields(event)}


def _plain(value: Any) -> Any:
    if isinstance(value, Verdict):
        return value.to_json()
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return asdict(value) if isinstance(value, Listed) else value


@dataclass(frozen=True, slots=True)
class Behind:
    """One region of a region's backward. `writer`: of its kernel; `replaced`: whether the module has it; `why`: there
    is none for it."""

    key: str
    title: str
    writer: str
    replaced: bool
    why: str
    speedup: float | None


@dataclass(frozen=True, slots=True)
class Row:
    """One region. `share`: of the module's time before, at all its places. `why`: it was not replaced. `alone`: why its
    kernel has a build of its own, as the end of a sentence. `backward`: what became of the regions of its backward;
    `backward_why`: that is PyTorch's. `tuned`: what came of tuning its constants."""

    key: str
    title: str
    kind: str
    places: int
    share: float
    flops: int
    bytes_moved: int
    writer: str
    replaced: bool
    why: str
    speedup: float | None
    roofline_share: float | None
    candidates: int
    alone: str = ""
    backward: tuple[Behind, ...] = ()
    backward_why: str = ""
    tuned: str = ""

    @property
    def gradients(self) -> str:
        """Who computes them, in few words."""
        count = sum(one.replaced for one in self.backward)
        if not count:
            return "PyTorch's"
        return "kernels" if count == len(self.backward) else f"{count} of {len(self.backward)} kernels"


@dataclass(frozen=True, slots=True)
class Report:
    """`measured_on`: what the shares were measured on, or how they were estimated. `left`: operators that belong to no
    region, with how often they occur. `reason`: why the module was not followed whole, or "". `training`: gradients
    flow through the module's kernels; `of_gradients`: the verdict on them, where they were asked for. `untuned`: why
    constants were not tuned although that was asked for."""

    module: str
    backend: str
    device: str
    measured_on: str
    reason: str
    rows: tuple[Row, ...]
    left: Mapping[str, int]
    verdict: Verdict | None
    seconds: float
    training: bool = False
    of_gradients: Verdict | None = None
    untuned: str = ""

    @property
    def replaced(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.replaced)

    @property
    def share(self) -> float:
        """Of the module's time, that is now computed by kernels. Of a module that was followed in parts the rows are
        shares of those, and the verdict knows of how much of the whole."""
        share = sum(row.share for row in self.replaced)
        known = self.verdict.replaced if self.verdict and self.reason else None
        return share if known is None else min(share, known.time_share)

    def to_json(self) -> JsonObject:
        return {
            **{
                name: getattr(self, name)
                for name in ("module", "backend", "device", "measured_on", "reason", "seconds")
            },
            "share_replaced": round(self.share, 4),
            "regions": [asdict(row) for row in self.rows],
            "left_to_pytorch": dict(self.left),
            "verdict": self.verdict.to_json() if self.verdict else None,
            "untuned": self.untuned,
            "training": self.training,
            "verdict_on_gradients": self.of_gradients.to_json() if self.of_gradients else None,
        }

    def lines(self) -> list[str]:
        """As text."""
        heads = ("region", "places", "share", "kernel", "speed-up", "of limit", "backward", "what became of it")
        cells = [heads, *map(_cells, self.rows)]
        if self.of_gradients is None:
            cells = [(*row[:-2], row[-1]) for row in cells]
        widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
        table = [
            "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in cells
        ]
        return [*table, "", *self.summary()]

    def summary(self) -> list[str]:
        count = len(self.replaced)
        lines = [
            f"{count} of {len(self.rows)} regions replaced: {self.share:.0%} of the module's time ({self.measured_on})"
        ]
        lines += [f"{row.title} is built by itself: it {row.alone}" for row in self.replaced if row.alone]
        lines += [f"constants of {row.title}: {row.tuned}" for row in self.rows if row.tuned]
        lines += [self.untuned] if self.untuned else []
        lines += self._of_gradients()
        if self.left:
            names = ", ".join(f"{name} x{times}" if times > 1 else name for name, times in self.left.items())
            lines.append(f"left to PyTorch: {names}")
        if self.reason:
            lines.append(f"followed in parts: {self.reason}")
        timing = self.verdict.timing if self.verdict else None
        if timing:
            lines.append(
                f"whole module: {timing.kernel_ms:.4g} ms, PyTorch {timing.reference_ms:.4g} ms: {timing.speedup:.2f}x"
                f" ({timing.speedup_low:.2f} to {timing.speedup_high:.2f})"
            )
            if timing.compile_ms:
                lines.append(f"torch.compile: {timing.compile_ms:.4g} ms, {timing.compile_ms / timing.kernel_ms:.2f}x")
        elif self.backend == "emulated":
            kept = ", and all that are right were kept" if count else ""
            lines.append(f"no speed was measured: kernels were run on the emulated backend{kept}")
        return lines

    def _of_gradients(self) -> list[str]:
        """Whether gradients are right, how fast they are, and why some of them are PyTorch's."""
        verdict = self.of_gradients
        if verdict is None:
            return []
        count = sum(any(one.replaced for one in row.backward) for row in self.replaced)
        said = f": {verdict.message}" if verdict.message and not verdict.correct else ""
        lines = [
            f"{count} of {len(self.replaced)} replaced regions have kernels for their backward; gradients against"
            f" autograd's: {verdict.outcome} ({verdict.provenance or verdict.stage}){said}"
        ]
        if not self.training:
            lines.append(
                "gradients do not flow through the kernels: where they are wanted, the module does what it did"
            )
        timing = verdict.timing
        if timing:
            lines.append(
                f"with gradients: {timing.kernel_ms:.4g} ms, PyTorch {timing.reference_ms:.4g} ms:"
                f" {timing.speedup:.2f}x"
            )
        for row in self.replaced:
            if row.gradients == "PyTorch's":
                lines.append(f"backward of {row.title} is PyTorch's: {row.backward_why}")
                continue
            lines += [
                f"backward of {row.title}: {one.title} is PyTorch's: {one.why}" for one in row.backward if one.why
            ]
        return lines

    def html(self, units: Sequence[tuple[Unit, Sequence[Region]]]) -> str:
        """One page that needs nothing else."""
        colour = {row.key: COLOURS[index % len(COLOURS)] for index, row in enumerate(self.rows)}
        graphs = [_drawn(unit, regions, colour, {row.key for row in self.replaced}) for unit, regions in units]
        rows = [{**asdict(row), "colour": colour[row.key], "gradients": row.gradients} for row in self.rows]
        return render(PAGE, report=self, rows=rows, graphs=graphs, summary=self.summary())


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.title,
        str(row.places),
        f"{row.share:.1%}",
        row.writer or "-",
        "-" if row.speedup is None else f"{row.speedup:.2f}x",
        "-" if row.roofline_share is None else f"{row.roofline_share:.0%}",
        row.gradients,
        "replaced" if row.replaced else row.why,
    )


# ---- the picture ---------------------------------------------------------------------------------------------------

_WIDTH, _HEIGHT, _GAP_X, _GAP_Y = 132, 22, 14, 16


def _drawn(unit: Unit, regions: Sequence[Region], colour: Mapping[str, str], replaced: set[str]) -> JsonObject:
    """Boxes in layers, one below what it needs, and the lines between them."""
    region_of = {name: region for region in regions for name in region.nodes}
    nodes = [node for node in unit.graph.nodes if kind_of(node) != "source" and node.operator != "getitem"][:MOST_DRAWN]
    shown = {node.name for node in nodes}
    through = {node.name: node.uses for node in unit.graph.nodes if node.operator == "getitem"}
    layer: dict[str, int] = {}
    boxes, lines, widths = [], [], dict[int, int]()
    place: dict[str, tuple[int, int]] = {}
    for node in nodes:
        uses = [use for one in node.uses for use in through.get(one, (one,)) if use in shown and use in place]
        depth = layer[node.name] = max((layer[use] + 1 for use in uses), default=0)
        column = widths.get(depth, 0)
        widths[depth] = column + 1
        x, y = column * (_WIDTH + _GAP_X) + 8, depth * (_HEIGHT + _GAP_Y) + 8
        place[node.name] = (x, y)
        region = region_of.get(node.name)
        boxes.append({
            "x": x,
            "y": y,
            "text": node.base.strip("_")[:20],
            "colour": colour[region.key] if region else "#e0e0e0",
            "faint": region is None or region.key not in replaced,
            "title": f"{node.name}: {region.title if region else 'left to PyTorch'}",
        })  # fmt: skip
        for use in uses:
            lines.append(
                {"x1": place[use][0] + _WIDTH // 2, "y1": place[use][1] + _HEIGHT, "x2": x + _WIDTH // 2, "y2": y}
            )
    wide = max(widths.values(), default=1) * (_WIDTH + _GAP_X) + 16
    tall = (max(layer.values(), default=0) + 1) * (_HEIGHT + _GAP_Y) + 16
    name = ", ".join(path.lstrip(".") or unit.class_name for path in unit.paths[:4])
    more = len(unit.paths) - 4
    title = name + (f" and {more} more" if more > 0 else "")
    return {"title": title, "boxes": boxes, "lines": lines, "width": wide, "height": tall, "box": [_WIDTH, _HEIGHT]}
