"""From a region's graph to a kernel file: values, the kernels that compute them, and the host function around those."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from dice.optimize.graph import Graph, Node, Output, references, substituted
from dice.optimize.templates import indexing, pooling, reductions, shapes  # noqa: F401 - they fill the table of rules
from dice.optimize.templates.contractions import convolutions, products  # noqa: F401 - so do these
from dice.optimize.templates.contractions.tensor_cores import product_on_tensor_cores, suits
from dice.optimize.templates.contractions.tiles import product
from dice.optimize.templates.elements import pointwise
from dice.optimize.templates.emitter import CannotWrite, storage
from dice.optimize.templates.kernels import leaves, scan
from dice.optimize.templates.pointwise import RULES
from dice.optimize.templates.recurrences import Recurrent, one_step
from dice.optimize.templates.rows import Rows, is_window
from dice.optimize.templates.text import KernelText, Store
from dice.optimize.templates.values import Memory, Moved, NeedsMemory, Product, Reduced, Scanned, Value
from dice.optimize.templates.vectors import SIZES

MOST_KERNELS = 200


def values_of(graph: Graph) -> list[Value]:
    """The region's results, as values over its inputs. Raises `CannotWrite`."""
    known: dict[str, Any] = {}
    for node in graph.nodes:
        known[node.name] = _value(node, known)
    names = list(references(graph.output))
    if not names:
        raise CannotWrite("it returns no tensor")
    return [known[name] for name in names]


def has_rule(node: Node, known: Mapping[str, Output]) -> bool:
    """Whether a kernel can be written for the operator on such tensors, as far as that is known without the others."""

    def given(name: str, output: Output) -> Any:
        if isinstance(output, tuple):
            return tuple(given(name, one) for one in output)
        return Memory(output.shape, output.dtype, name) if output is not None else None

    try:
        _value(node, {name: given(name, output) for name, output in known.items()})
    except Exception:  # noqa: BLE001 - a fault in a rule costs this operator its kernel, and not the module
        return False
    return True


def _value(node: Node, known: Mapping[str, Any]) -> Any:
    if node.is_source and node.operator != "constant":
        return Memory(node.spec.shape, node.spec.dtype, safe(node.name))
    if node.operator == "getitem":
        return known[node.arguments[0].name][node.arguments[1]]
    is_known = node.operator == "constant" or node.operator.startswith("aten.")
    rule = RULES.get(node.base) if is_known else None
    if rule is None or node.effect and node.base != "batch_norm":
        raise CannotWrite(f"{node.base} has no rule")
    given = [substituted(argument, lambda ref: known[ref.name]) for argument in node.arguments]
    options = {key: substituted(value, lambda ref: known[ref.name]) for key, value in node.options.items()}
    return rule(node, given, options)


# Names that kernels use themselves.
_TAKEN = re.compile(
    r"[vi]\d+|mid\d+|out\d*|row|lane|[a-cijkm-pr-tvz]|t[xy]|acc|tile_\w|[ab]_tile|sum\d*|top\d*|low\d*|product\d*|any\d*|all\d*"
    r"|own|own_\w+|tap\d*|kept\w*|step|steps|Vector|(load|store)_vector|aligned|higher|mean\d*|seen\d*|near|apart|gap|share|before|tile|column|warp|group|quarter|stages?"
    r"|next|part|other|is_inside|pair|tiles_[mn]|is_last|sums|split|multiply_add|[ab]_(next|high|low)"
    r"|BLOCK\w*|ITEMS\w*|TILE_\w+|STAGES\w*|best\d*|at\d*|table\d*|first|last|totals|guard|stream|workspace|min|max|larger|smaller|\w+_kernel\w*|(block|warp)_\w+"
)


# Words of C++, and what its headers and CUDA's call functions and variables.
_WORDS = re.compile(
    r"auto|bool|break|case|char|class|const|default|double|else|enum|float|int|long|new|return|short|signed|static|struct|switch"
    r"|template|this|typename|union|unsigned|void|"
    r"alignas|alignof|and_eq|asm|bit(and|or)|catch|char(8|16|32)_t|co_(await|return|yield)|compl|concept|const(eval|expr|init)"
    r"|(const|dynamic|reinterpret|static)_cast|decltype|delete|do|explicit|export|extern|friend|goto|inline|mutable|namespace"
    r"|noexcept|not_eq|nullptr|operator|x?or_eq|private|protected|public|register|requires|sizeof|static_assert|thread_local"
    r"|throw|type(def|id)|using|virtual|volatile|wchar_t|xor|true|false|std|torch|c10|dim3|half|(thread|block)Idx|(block|grid)Dim"
    r"|warpSize|INFINITY|NAN|abs"
    r"|(a?(sin|cos|tan)h?|atan2|exp|exp2|expm1|log|log2|log10|log1p|r?sqrt|cbrt|pow|erf|erfc|[lt]gamma|floor|ceil|trunc|rint"
    r"|l?l?round|fabs|fmax|fmin|fmod|fma|hypot|remainder|copysign|signbit|isnan|isinf|isfinite|[jy][01])f?"
)


def safe(name: str) -> str:
    """What a tensor is called in C++."""
    return f"{name}_in" if _TAKEN.fullmatch(name) or _WORDS.fullmatch(name) else name


class Kernels:
    """The kernels that compute some values, in the order in which they run, and the tensors between them."""

    def __init__(self, stem: str, results: Sequence[Value], tensor_cores: bool = False):
        self._stem, self._tensor_cores = stem, tensor_cores
        self.texts: list[tuple[KernelText, tuple[Store, ...]]] = []
        self.between: list[Store] = []
        self._count = 0
        self.results: list[Store] = []
        for index, value in enumerate(results):
            self.results.append(Store(value, "out" if len(results) == 1 else f"out{index}"))
        # A result that is an input, or another result, is copied.
        self._waiting = list(self.results)
        self._under_way: list[Value] = []  # values whose kernels wait for others
        try:
            while self._waiting:
                self._some()
        except NeedsMemory:
            raise CannotWrite("its sums depend on each other in a way that has no rule") from None

    def _some(self) -> None:
        """Write one kernel for the first of what waits and whatever it can store besides, or for what comes before."""
        first, *rest = self._waiting
        try:
            together = [first]
            for one in rest:
                together += [one] if all(self._fits(other, one) for other in together) else []
            self._add(together)
        except NeedsMemory as need:
            self._compute(need.value)
            return
        self._have(together)

    def _have(self, stored: Sequence[Store]) -> None:
        """What is made of these reads them where they are."""
        for store in stored:
            if not isinstance(store.value, Memory):
                store.value.memory = store.value.memory or store.name
        self._waiting = [store for store in self._waiting if store not in stored]

    def _fits(self, first: Store, other: Store) -> bool:
        if any(isinstance(one.value, Scanned) or _products_of(one.value) for one in (first, other)):
            return False
        rows = _rows_of(first.value) or _rows_of(other.value)
        if rows is not None:
            reds = [one for store in (first, other) for one in leaves(store.value, Reduced)]
            same = {(one.source.shape, one.over) for one in reds if isinstance(one, Reduced)}
            return len(same) == 1 and rows.fits(first.value) and rows.fits(other.value)
        return first.value.numel == other.value.numel

    def _compute(self, value: Value) -> None:
        """A kernel of its own for a value that another one reads, and for what is had with it: sums of the same rows,
        and results that are made of those alone."""
        if len(self.texts) >= MOST_KERNELS:
            raise CannotWrite(f"it takes more than {MOST_KERNELS} kernels")
        self._under_way.append(value)
        try:
            self._compute_with_others(value)
        finally:
            self._under_way.pop()

    def _compute_with_others(self, value: Value) -> None:
        """Alone where those are made of other rows' sums, too. Raises `NeedsMemory` for what waits for this value."""
        stores, alone = [self._store_between(value)], False
        while True:
            try:
                results = [] if alone else self._made_of(stores[0])
                left = set[int]() if alone else _reached([one.value for one in self._waiting if one not in results])
                wanted = [one for one in _had_with(value) if id(one) in left and not one.memory]
                stores = stores[:1] + [self._store_between(one) for one in wanted]
                self._add([*stores, *results])
                break
            except NeedsMemory as need:
                missing = need.value
            try:
                if any(missing is one for one in (*self._under_way, *(store.value for store in stores))):
                    raise NeedsMemory(missing)
                self._compute(missing)
            except NeedsMemory:
                if alone:
                    raise
                alone = True
        self.between += stores
        self._have([*stores, *results])

    def _store_between(self, value: Value) -> Store:
        self._count += 1
        return Store(value, f"mid{self._count}")

    def _made_of(self, sums: Store) -> list[Store]:
        """The results that are made of nothing but these sums, and others of the same rows, a number for each row."""
        number = sums.value.numel
        small = [one for one in self._waiting if one.value.numel == number and leaves(one.value, Reduced)]
        return [one for one in small if self._is_of_same_rows(sums, one)]

    def _is_of_same_rows(self, sums: Store, other: Store) -> bool:
        try:
            return isinstance(sums.value, Reduced) and self._fits(sums, other)
        except NeedsMemory:  # it is made of others, too
            return False

    def _add(self, stores: list[Store]) -> None:
        name = f"{self._stem}_kernel" + (f"_{len(self.texts)}" if self.texts else "")
        value = stores[0].value
        if isinstance(value, Recurrent) and not value.memory:
            text = one_step(name, value, stores[0])
        elif isinstance(value, Scanned) and not value.memory:
            text = scan(name, value, stores[0])
        elif found := _products_of(value):
            for factor in found[0].among:
                _require_plain(factor)
            write = product_on_tensor_cores if self._tensor_cores and suits(found[0]) else product
            text = write(name, found[0], stores[0])
        elif (rows := _rows_for(stores)) is not None:
            text = rows.write(name, stores)
        else:
            text = pointwise(name, stores)
        self.texts.append((text, tuple(stores)))


def _had_with(value: Value) -> list[Value]:
    """What the kernel that has this value can have besides, of the same rows."""
    together = value.together if isinstance(value, Reduced) else None
    return [one for one in together.members if one is not value] if together else []


def _reached(values: Sequence[Value]) -> set[int]:
    """All that is computed for these, by identity."""
    seen, waiting = set[int](), list(values)
    while waiting:
        value = waiting.pop()
        if id(value) not in seen:
            seen.add(id(value))
            waiting += value.sources if not value.memory else ()
    return seen


def _products_of(value: Value) -> list[Product]:
    """The product that the value is made of element by element, where there is one of its size."""
    found = [one for one in leaves(value, Product) if isinstance(one, Product)]
    same = [one for one in found if one.numel == value.numel]
    if found and (not same or leaves(value, Reduced)):
        raise NeedsMemory(found[0])
    return same


def _require_plain(factor: Value) -> None:
    """A factor that is itself the result of sums is computed once, and not for every tile that reads it."""
    while type(factor) is Moved and not factor.memory:
        factor = factor.source
    if not factor.memory and any(leaves(factor, kind) for kind in (Reduced, Product, Scanned)):
        raise NeedsMemory(factor)


def _rows_for(stores: Sequence[Store]) -> Rows | None:
    return next((rows for store in stores if (rows := _rows_of(store.value)) is not None), None)


def _rows_of(value: Value) -> Rows | None:
    """The rows that the value's own reductions are over; those of other rows are computed before."""
    for one in sorted(leaves(value, Reduced), key=is_window):  # those are written in others' kernels
        assert isinstance(one, Reduced)
        rows = Rows(one)
        if rows.fits(value):
            return rows
        raise NeedsMemory(one)
    return None


# ---- the file ------------------------------------------------------------------------------------------------------

INCLUDES = "#include <torch/extension.h>\n#include <c10/cuda/CUDAGuard.h>\n#include <cuda_runtime.h>\n"
_PIPELINE = "#include <cuda_pipeline_primitives.h>\n"
_DTYPES = {"float32": "torch::kFloat32", "float64": "torch::kFloat64", "float16": "torch::kFloat16",
           "bfloat16": "torch::kBFloat16", "int64": "torch::kInt64", "int32": "torch::kInt32", "int16": "torch::kInt16",
           "int8": "torch::kInt8", "uint8": "torch::kUInt8", "bool": "torch::kBool"}  # fmt: skip


def cuda_source(graph: Graph, name: str, tensor_cores: bool = False) -> tuple[str, str, tuple[str, ...]]:
    """The CUDA C++ of a region: its text, the host function's declaration, and the tensors that this takes.

    The host function is called `NAME_cuda`; it returns a tensor, or a list of them. `tensor_cores`: large products are
    summed by those, which GPUs of compute capability 8.0 and later have. Raises `CannotWrite`.
    """
    kernels = Kernels(name, values_of(graph), tensor_cores)
    inputs = [node.name for node in graph.nodes if node.operator in ("input", "state")]
    used = {tensor for text, _ in kernels.texts for tensor in text.inputs}
    taken = tuple(one for one in inputs if safe(one) in used)
    if not taken:
        raise CannotWrite("it reads none of its inputs")
    helpers: dict[str, str] = {}
    for text, _ in kernels.texts:
        helpers |= text.helpers
    by_vectors = any(re.search(r"memcpy_async\(.*, 16,", text.code) for text, _ in kernels.texts)
    in_vectors = by_vectors or "Vector" in helpers
    host, declaration = _host(kernels, name, tuple(map(safe, taken)), in_vectors)
    device = [*helpers.values(), *(text.code for text, _ in kernels.texts)]
    includes = INCLUDES + (_PIPELINE if any("__pipeline_" in text.code for text, _ in kernels.texts) else "")
    parts = [includes.strip(), *device, *([_ALIGNED] if in_vectors else ()), host]
    return "\n\n".join(parts), declaration, taken


_ALIGNED = """// The tensor's elements in their order, from an address on where vectors may begin.
torch::Tensor aligned(torch::Tensor x) {
    x = x.contiguous();
    return reinterpret_cast<uintptr_t>(x.data_ptr()) % 16 == 0 ? x : x.clone();
}"""


def _host(kernels: Kernels, name: str, taken: tuple[str, ...], in_vectors: bool) -> tuple[str, str]:
    several = len(kernels.results) > 1
    returned = "std::vector<torch::Tensor>" if several else "torch::Tensor"
    declaration = f"{returned} {name}_cuda({', '.join(f'torch::Tensor {one}' for one in taken)})"
    lines = [
        f"const c10::cuda::CUDAGuard guard({taken[0]}.device());",
        "const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();",
        *(f"{one} = aligned({one});" if in_vectors else f"{one} = {one}.contiguous();" for one in taken),
        *_between(kernels.between, taken[0]),
        *(_empty(store, taken[0]) for store in kernels.results),
    ]
    for text, stores in kernels.texts:
        arguments = [_pointer(tensor, dtype, kernels.between) for tensor, dtype in text.inputs.items()]
        arguments += [_pointer(store.name, store.value.dtype, kernels.between) for store in stores]
        arguments += ["t"] if text.steps else []
        launch = f"{text.name}<<<{text.launch}, 0, stream>>>({', '.join(arguments)});"
        lines += [f"for (int t = 0; t < {text.steps}; t++)", f"    {launch}"] if text.steps else [launch]
    results = ", ".join(store.name for store in kernels.results)
    lines.append(f"return {{{results}}};" if several else f"return {results};")
    body = "\n".join(f"    {line}" for line in lines)
    return f"{declaration} {{\n{body}\n}}", declaration


_ALIGNMENT = 256  # bytes, as PyTorch's allocator has it


def _between(stores: Sequence[Store], like: str) -> list[str]:
    """Memory for what lies between kernels: one allocation, for each takes the host as long as half a launch."""
    if len(stores) < 2:
        return [_empty(store, like) for store in stores]
    lines, offset = [], 0
    for store in stores:
        at = "workspace.data_ptr<uint8_t>()" + (f" + {offset}" if offset else "")
        lines.append(f"auto {store.name} = reinterpret_cast<{storage(store.value.dtype)}*>({at});")
        offset += -(-store.value.numel * SIZES.get(store.value.dtype, 1) // _ALIGNMENT) * _ALIGNMENT
    return [f"auto workspace = torch::empty({{{offset}}}, {like}.options().dtype(torch::kUInt8));", *lines]


def _empty(store: Store, like: str) -> str:
    shape = ", ".join(map(str, store.value.shape))
    return f"auto {store.name} = torch::empty({{{shape}}}, {like}.options().dtype({_DTYPES[store.value.dtype]}));"


def _pointer(tensor: str, dtype: str, between: Sequence[Store]) -> str:
    """What a kernel is given for a tensor."""
    in_workspace = len(between) > 1 and any(store.name == tensor for store in between)
    return tensor if in_workspace else f"{tensor}.data_ptr<{storage(dtype)}>()"
