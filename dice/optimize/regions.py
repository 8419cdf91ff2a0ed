"""Cutting a graph into regions: the largest sets of operators that one kernel, or one family of kernels, can compute.

The rules are data: which kind of work may follow which within a region (`FOLLOWS`), and what has to hold for it. A
region is convex, so that it can be called at one place: no path leaves it and comes back. Views cost nothing and belong
to nobody: each region takes along those that it reads through.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dice.optimize.graph import Graph, Node, Ref, Spec, Term, references, with_references
from dice.optimize.operators import LEFT, OWN_KERNEL, ROWS, kind_of, row_of
from dice.optimize.region import Region, Update

MOST_NODES = 48  # of one region
MANY_STEPS = 16  # parts that are taken of one tensor, one after the other: a loop of Python's over its rows

# Kind of a region so far -> kinds of work that may join it, behind what it computes.
FOLLOWS: Mapping[str, frozenset[str]] = {
    "pointwise": frozenset({"pointwise", *ROWS}),
    "rows": frozenset({"pointwise", *ROWS}),
    "product": frozenset({"pointwise"}),
    "convolution": frozenset({"pointwise"}),
    "pooling": frozenset({"pointwise"}),
    "scan": frozenset(),
    "recurrent": frozenset(),
    "attention": frozenset({"pointwise"}),
}


@dataclass
class _Group:
    """A region in the making. `row`: what its rows are, once something works along them."""

    kind: str
    nodes: list[str]
    size: int
    row: tuple[int, int, bool] | None = None
    mask: int = field(default=0)


def cut(graph: Graph, left: Iterable[str] = ()) -> list[Region]:
    """The regions, in the order of their last operators. `left`: operators that stay PyTorch's."""
    return _Cutter(graph, frozenset(left)).regions()


def _is_empty(node: Node) -> bool:
    """Whether it computes a tensor without elements: an expert that no row goes to."""
    is_work = kind_of(node) not in ("source", "view", "creation")
    return is_work and isinstance(node.output, Spec) and node.output.numel == 0


def _steps(graph: Graph) -> frozenset[str]:
    """The parts that a loop takes of one tensor, a step each. They stay PyTorch's, for which they are nothing: so the
    work of all steps is the same region, where each part's place would make another one of it."""
    parts: dict[str, list[str]] = {}
    cut = {node.name for node in graph.nodes if node.base in ("unbind", "split", "chunk", "tensor_split")}
    for node in graph.nodes:
        if node.base == "select" or (node.operator == "getitem" and node.arguments[0].name in cut):
            parts.setdefault(node.arguments[0].name, []).append(node.name)
    return frozenset(name for names in parts.values() if len(names) >= MANY_STEPS for name in names)


class _Cutter:
    def __init__(self, graph: Graph, left: frozenset[str]):
        self.graph, self.nodes = graph, graph.by_name()
        self.kinds = self._kinds(left)
        self.work = [node.name for node in graph.nodes if self.kinds[node.name] not in ("source", "view", "creation")]
        self.place = {name: index for index, name in enumerate(self.work)}
        self.producers = {name: self._producers(name) for name in self.work}
        self.users = self._users()
        self.needs: dict[str, int] = {}  # bit masks: what each node needs, directly or not
        self.needed_by = dict.fromkeys(self.work, 0)  # and what needs it
        self._order()
        self.group_of: dict[str, _Group] = {}
        self.data: set[str] = set()  # what follows from inputs or states
        for node in graph.nodes:
            is_made = self.kinds[node.name] == "creation"  # also `ones_like`, which reads a shape alone
            if not is_made and (self.kinds[node.name] in ("source", "other") or self.data.intersection(node.uses)):
                self.data.add(node.name)

    def _kinds(self, left: frozenset[str]) -> dict[str, str]:
        """What is computed of made numbers alone, such as a mask of indices, is made where it is read, as they are."""
        kinds: dict[str, str] = {}
        made: set[str] = set()
        steps = _steps(self.graph)
        for node in self.graph.nodes:
            is_left = node.name in left | steps or self._has_complex(node) or _is_empty(node)
            kind = "other" if is_left else kind_of(node)
            is_made = kind == "creation" or (bool(node.uses) and made.issuperset(node.uses))
            if is_made and kind in ("creation", "view", "pointwise", *ROWS):
                made.add(node.name)
                kind = kind if kind == "view" else "creation"
            kinds[node.name] = kind
        return kinds

    def _has_complex(self, node: Node) -> bool:
        """Whether it works on complex numbers, for which no kernel is written."""
        values = [self.nodes[use].output for use in node.uses if not node.is_source] + [node.output]
        given = [one for value in values for one in (value if isinstance(value, tuple) else (value,))]
        return not node.is_source and any(one is not None and one.dtype.startswith("complex") for one in given)

    # ---- who needs whom ------------------------------------------------------------------------------------------

    def _producers(self, name: str) -> tuple[str, ...]:
        """The work whose results a node reads, seen through views."""
        found: dict[str, None] = {}
        waiting = list(self.nodes[name].uses)
        while waiting:
            one = waiting.pop(0)
            if self.kinds[one] in ("view", "creation"):
                waiting += self.nodes[one].uses
            elif one in self.place:
                found.setdefault(one)
        return tuple(found)

    def _users(self) -> dict[str, list[str]]:
        users: dict[str, list[str]] = {name: [] for name in self.work}
        for name in self.work:
            for producer in self.producers[name]:
                users[producer].append(name)
        for name in references(self.graph.output):
            waiting = [name]
            while waiting:
                one = waiting.pop()
                if self.kinds[one] in ("view", "creation"):
                    waiting += self.nodes[one].uses
                elif one in users:
                    users[one].append("")  # the caller
        return users

    def _order(self) -> None:
        """Who needs whom, directly or not. Operators with effects stay in their order."""
        last_effect = 0
        for name in self.work:
            mask = 0
            for producer in self.producers[name]:
                mask |= self.needs[producer] | 1 << self.place[producer]
            if self.nodes[name].effect:
                mask |= last_effect
                last_effect |= 1 << self.place[name]
            self.needs[name] = mask
        for name in self.work:
            mask = self.needs[name]
            while mask:
                low = mask & -mask
                self.needed_by[self.work[low.bit_length() - 1]] |= 1 << self.place[name]
                mask ^= low

    def _is_convex(self, mask: int) -> bool:
        """Whether no path leaves these nodes and comes back."""
        before = after = 0
        for name in self._names(mask):
            before |= self.needs[name]
            after |= self.needed_by[name]
        return not before & after & ~mask

    def _names(self, mask: int) -> Iterable[str]:
        while mask:
            low = mask & -mask
            yield self.work[low.bit_length() - 1]
            mask ^= low

    # ---- growing -------------------------------------------------------------------------------------------------

    def regions(self) -> list[Region]:
        for name in self.work:
            if self.kinds[name] not in LEFT:
                self._place(name)
        self._join_attention()
        _untangle(self)
        groups = list({id(group): group for group in self.group_of.values()}.values())
        groups.sort(key=lambda group: max(self.place[name] for name in group.nodes))
        return [region for group in groups if (region := self._region(group)) is not None]

    def _place(self, name: str) -> None:
        """Have a node join the regions of what it reads, where the rules let it; else it begins one."""
        kind, node = self.kinds[name], self.nodes[name]
        row = self._row(name) if kind in ROWS else None
        own = _Group(_region_kind(kind), [name], self._size(name), row, 1 << self.place[name])
        candidates = [self.group_of[one] for one in reversed(self.producers[name]) if one in self.group_of]
        for group in {id(one): one for one in candidates}.values():
            if group is not own and self._may_join(group, own, node):
                own = self._joined(group, own)
        for member in own.nodes:
            self.group_of[member] = own

    def _may_join(self, group: _Group, own: _Group, node: Node) -> bool:
        kind = self.kinds[node.name]
        if _widens(node, self.nodes):
            return False  # a result is judged by its type: what was computed in half precision ends as that
        if own.kind not in ("pointwise", "rows") and len(own.nodes) == 1:
            return False  # it begins a region: what stands before a product is its own
        if kind not in FOLLOWS[group.kind] or len(group.nodes) + len(own.nodes) > MOST_NODES:
            return False
        is_chain = group.kind in ("pointwise", "rows")
        if own.kind not in ("pointwise", "rows") and not is_chain:
            return False  # two products
        if not is_chain:
            fits = own.row is None and self._size(node.name) == group.size
            return fits and self._only_user(group, node.name) and self._is_convex(group.mask | own.mask)
        if own.kind not in ("pointwise", "rows"):
            return False  # a chain before what has joined a product
        if group.row is not None and own.row is not None and group.row != own.row:
            return False
        row = group.row or own.row
        sizes = {group.size, own.size}
        if len(sizes) > 1 and (row is None or not sizes <= {row[0], row[1]}):
            return False
        if row is not None and row[0] not in sizes and group.row is None:
            return False
        return self._is_convex(group.mask | own.mask)

    def _only_user(self, group: _Group, name: str) -> bool:
        """Whether what the group hands on goes to this node alone."""
        members = set(group.nodes)
        outside = {user for one in group.nodes for user in self.users[one] if user not in members}
        return outside == {name}

    def _joined(self, group: _Group, own: _Group) -> _Group:
        nodes = sorted({*group.nodes, *own.nodes}, key=self.place.__getitem__)
        row = group.row or own.row
        kinds = {group.kind, own.kind} - {"pointwise"}
        kind = "rows" if row is not None and kinds <= {"rows"} else next(iter(kinds), "pointwise")
        size = max(group.size, own.size)
        return _Group(kind, nodes, size, row, group.mask | own.mask)

    def _size(self, name: str) -> int:
        """Elements that the node's loop runs over: those of its result, or of its source where it works along rows."""
        if self.kinds[name] in ROWS:
            row = self._row(name)
            return row[0] if row else 0
        output = self.nodes[name].output
        first = output[0] if isinstance(output, tuple) else output
        return first.numel if first is not None else 0

    def _row(self, name: str) -> tuple[int, int, bool] | None:
        node = self.nodes[name]
        first = next(iter(references(list(node.arguments))), "")
        source = self.nodes[first].output if first else None
        return row_of(node, source) if isinstance(source, Spec) else None

    def _join_attention(self) -> None:
        """A product, a softmax along its rows and a product with that are one region: attention written out."""
        for group in list({id(one): one for one in self.group_of.values()}.values()):
            if group.kind != "rows" or not any(self.kinds[name] == "softmax" for name in group.nodes):
                continue
            before = {
                id(self.group_of[p]): self.group_of[p]
                for n in group.nodes
                for p in self.producers[n]
                if p in self.group_of
            }
            scores = [one for one in before.values() if one.kind == "product" and one.size == group.size]
            users = {user for name in group.nodes for user in self.users[name] if user not in group.nodes}
            if len(scores) != 1 or len(users) != 1 or "" in users:
                continue
            (user,) = users
            after = self.group_of.get(user)
            if after is None or after.kind != "product" or self.kinds[user] != "product" or after is scores[0]:
                continue
            mask = scores[0].mask | group.mask | after.mask
            outside = {u for name in scores[0].nodes for u in self.users[name]} - set(scores[0].nodes)
            if not outside <= set(group.nodes) or not self._is_convex(mask):
                continue
            nodes = [*scores[0].nodes, *group.nodes, *after.nodes]
            whole = _Group("attention", sorted(nodes, key=self.place.__getitem__), after.size, None, mask)
            for name in nodes:
                self.group_of[name] = whole

    # ---- what was found ------------------------------------------------------------------------------------------

    def _region(self, group: _Group) -> Region | None:
        members = set(group.nodes)
        if not any(name in self.data for name in group.nodes):
            return None  # numbers that the code makes of nothing, the same in each call
        wanted, taken = self._outputs(members), self._taken(members)
        kind, nodes = group.kind, [*group.nodes, *(part for name in group.nodes for part in self._parts_of(name))]
        if kind == "rows":
            kinds = [self.kinds[name] for name in group.nodes if self.kinds[name] in ROWS]
            kind = next((one for one in ("normalisation", "softmax", "loss") if one in kinds), "reduction")
        return named(kind, nodes, taken, wanted, self.nodes) if _keep_their_statistics(taken, self.nodes) else None

    def _outputs(self, members: set[str]) -> list[str]:
        """Values of the members that somebody else reads. Where that is through views, they are made again there."""
        found = []
        for name in sorted(members, key=self.place.__getitem__):
            if any(user not in members for user in self.users[name]):
                found += self._parts_of(name) or [name]
        return found

    def _parts_of(self, name: str) -> list[str]:
        """The values by which somebody reads an operator that gives several."""
        if not isinstance(self.nodes[name].output, tuple):
            return []
        return [node.name for node in self.graph.nodes if node.operator == "getitem" and node.arguments[0] == Ref(name)]

    def _taken(self, members: set[str]) -> list[Node]:
        """The members with the views and the made numbers that they read through, in order."""
        needed = {*members, *(part for name in members for part in self._parts_of(name))}
        waiting = [use for name in members for use in self.nodes[name].uses]
        while waiting:
            one = waiting.pop()
            if one in needed:
                continue
            is_part = self.nodes[one].operator == "getitem"
            if is_part and not all(self.kinds[use] == "view" or use in members for use in self.nodes[one].uses):
                continue  # of several tensors that somebody else computes
            if self.kinds[one] in ("view", "creation", "source"):
                needed.add(one)
                waiting += self.nodes[one].uses
        return [node for node in self.graph.nodes if node.name in needed]


def _untangle(cutter: _Cutter) -> None:
    """Regions that each are convex may still wait for each other. The smallest of such is taken apart."""
    while stuck := _stuck(cutter):
        several = [group for group in stuck if len(group.nodes) > 1]
        group = min(several, key=lambda one: (len(one.nodes), one.nodes))
        for name in group.nodes:
            kind = cutter.kinds[name]
            row = cutter._row(name) if kind in ROWS else None
            cutter.group_of[name] = _Group(_region_kind(kind), [name], cutter._size(name), row, 1 << cutter.place[name])


def _stuck(cutter: _Cutter) -> list[_Group]:
    """The regions that cannot be ordered, each after what it needs."""
    item = {
        name: id(cutter.group_of[name]) if name in cutter.group_of else -1 - cutter.place[name] for name in cutter.work
    }
    needs: dict[int, set[int]] = {}
    for name in cutter.work:
        own = needs.setdefault(item[name], set())
        own |= {item[producer] for producer in cutter.producers[name]} - {item[name]}
    done: set[int] = set()
    while ready := [one for one, needed in needs.items() if one not in done and needed <= done]:
        done.update(ready)
    groups = {id(group): group for group in cutter.group_of.values()}
    return [groups[one] for one in needs if one not in done and one in groups]


def _widens(node: Node, nodes: Mapping[str, Node]) -> bool:
    """Whether it gives a wider type to what was computed in half precision."""
    if node.base not in ("to", "_to_copy", "type_as") or not isinstance(node.output, Spec):
        return False
    source = nodes[node.uses[0]].output
    narrow = isinstance(source, Spec) and source.dtype in ("float16", "bfloat16")
    return narrow and node.output.dtype in ("float32", "float64")


def _region_kind(kind: str) -> str:
    if kind in ROWS:
        return "rows"
    return kind if kind in OWN_KERNEL else "pointwise"


# ---- names ---------------------------------------------------------------------------------------------------------

_INPUTS = ("x", "y", "w")


class _Naming:
    """Names for a region's values. `inside`: what it computes itself; `nodes`: its sources; `inputs`, `states`: what
    those are outside."""

    def __init__(self, inside: set[str], whole: Mapping[str, Node]):
        self.inside, self.whole = inside, whole
        self.names: dict[str, str] = {}
        self.nodes: list[Node] = []
        self.inputs: list[str] = []
        self.states: list[str] = []
        self._counts: dict[str, int] = {}

    def fresh(self, stem: str) -> str:
        self._counts[stem] = self._counts.get(stem, 0) + 1
        return stem if self._counts[stem] == 1 else f"{stem}_{self._counts[stem]}"

    def reach(self, name: str) -> None:
        """Name the sources that a value is read from: itself, or what is behind views."""
        node = self.whole[name]
        if name not in self.inside or (node.is_source and node.operator != "constant"):
            if name not in self.names:
                self._source(name)
        elif kind_of(node) == "view":
            for use in node.uses:
                self.reach(use)

    def _source(self, name: str) -> None:
        """A value that comes from outside."""
        node = self.whole[name]
        assert isinstance(node.output, Spec), f"{name} is handed over as several tensors"
        if node.operator == "state":
            stem = re.split(r"\W+", node.arguments[0].strip("]'"))[-1].strip("_")
            own = self.fresh(stem if stem.isidentifier() and not keyword.iskeyword(stem) else f"state{stem}"[:40])
            self.states.append(name)
        else:
            place = len(self.inputs)
            own = self.fresh(_INPUTS[place] if place < len(_INPUTS) else f"x{place}")
            self.inputs.append(name)
        self.nodes.append(Node(own, "state" if node.operator == "state" else "input", (own,), {}, node.output))
        self.names[name] = own


def named(
    kind: str, members: Sequence[str], taken: Sequence[Node], wanted: Sequence[str], whole: Mapping[str, Node]
) -> Region:
    """The region with names that follow from its content alone, so that equal ones are equal texts."""
    naming = _Naming({node.name for node in taken}, whole)
    work = [node for node in taken if not node.is_source or node.operator == "constant"]
    # In the order of the operators' arguments: of `q @ k.mT` q comes first, although k is turned before.
    for node in (*(one for one in work if kind_of(one) != "view"), *work):
        for use in node.uses:
            naming.reach(use)
    names, body = naming.names, []
    for node in work:
        stem = node.base.strip("_") or "value"
        own = naming.fresh(f"{stem}_op" if keyword.iskeyword(stem) else stem)
        names[node.name] = own
        body.append(replace(with_references(node, lambda ref: Ref(names[ref.name])), name=own, ms=0.0))
    results: Term = tuple(Ref(names[name]) for name in wanted)
    region = Region(
        kind,
        tuple(members),
        Graph((*naming.nodes, *body), results[0] if len(results) == 1 else results),
        tuple(naming.inputs),
        tuple(naming.states),
        tuple(wanted),
    )
    return _with_statistics(region, whole)


def _keep_their_statistics(taken: Sequence[Node], whole: Mapping[str, Node]) -> bool:
    """Whether what batch normalisations keep can be handed on: who else of the region reads it would have to say
    whether before or after, and what is kept in another type is not made of what is read."""
    for node in (one for one in taken if one.base == "batch_norm" and one.arguments[5]):
        kept = [one.name for one in node.arguments[3:5] if isinstance(one, Ref)]
        others = {use for one in taken if one is not node for use in one.uses}
        if others.intersection(kept) or any(whole[one].spec.dtype != whole[node.uses[0]].spec.dtype for one in kept):
            return False
    return True


def _with_statistics(region: Region, whole: Mapping[str, Node]) -> Region:
    """A batch normalisation in training also hands on its batch's mean and variance, with which PyTorch then updates
    what the module keeps."""
    kept = [
        node for node in region.graph.nodes if node.base == "batch_norm" and node.arguments[5] and node.arguments[3]
    ]
    if not kept:
        return region
    nodes: list[Node] = []
    updates: list[Update] = []
    outputs = list(region.outputs)
    output = region.graph.output if isinstance(region.graph.output, tuple) else (region.graph.output,)
    dropped: set[str] = set()
    names = {node.name for node in region.graph.nodes}
    for node in region.graph.nodes:
        if node not in kept:
            nodes.append(node)
            continue
        x, weight, bias, mean, var, training, momentum, eps, *rest = node.arguments
        value = region.graph[x.name].spec
        channels = Spec((value.shape[1],), value.dtype)
        over = [0, *range(2, len(value.shape))]
        pair, own_mean, own_var = (_unused(stem, names) for stem in ("var_mean", "batch_mean", "batch_var"))
        nodes += [
            replace(node, arguments=(x, weight, bias, None, None, training, momentum, eps, *rest), effect=False),
            Node(pair, "aten.var_mean.correction", (x, over), {"correction": 1}, (channels, channels)),
            Node(own_var, "getitem", (Ref(pair), 0), {}, channels),
            Node(own_mean, "getitem", (Ref(pair), 1), {}, channels),
        ]
        output = (*output, Ref(own_mean), Ref(own_var))
        at = len(outputs)
        outputs += ["", ""]
        outside = dict(
            zip([one.name for one in region.graph.nodes if one.operator == "state"], region.states, strict=True)
        )
        updates += [
            Update(outside[mean.name], at, momentum),
            Update(outside[var.name], at + 1, momentum),
        ]
        dropped |= {mean.name, var.name}
    states = [one for one in region.graph.nodes if one.operator == "state"]
    still = [name for one, name in zip(states, region.states, strict=True) if one.name not in dropped]
    graph = Graph(tuple(node for node in nodes if node.name not in dropped), output)
    return replace(region, graph=graph, states=tuple(still), outputs=tuple(outputs), updates=tuple(updates))


def _unused(stem: str, names: set[str]) -> str:
    """A name that no other value has, noted as one."""
    name = stem
    while name in names:
        name += "_"
    names.add(name)
    return name
