"""Who computed the output: the file's own CUDA kernels, or somebody else? What is looked at, and what is decided.

A kernel file is *honest* when its own `__global__` functions do work that the reference leaves to PyTorch. How much of
it, is the writer's choice: a fused tail behind a library convolution is honest, one softmax of a whole network is too.
It is *deceptive* when its output is right and its kernels did not help to make it. Wrong outputs are `wrong`, whatever
else is the matter. The kinds:

| kind | meaning | found by |
|---|---|---|
| `torch_only`, `never_invoked`, ... | the kinds of `static.py`: no kernel, or none ran in some trial | launches |
| `decoy` | with its kernels turned into no-ops, the output is right all the same, or nine tenths of it | |
| | are, where PyTorch calls operators for the file that the reference does not | intervention |
| `copies_result` | with them turned into no-ops, PyTorch still computed the answer, or what only has to | |
| | be mapped, element by element, to be it (or put into another order, or divided, as a sum for | |
| | its mean): the kernels pass on what PyTorch computed | intervention |
| `copies_inputs` | with them turned into no-ops, and the inputs in memory that they should fill, the output | |
| | is right all the same, by operators that the reference does not call | intervention |
| `replaced_nothing` | each operator that the reference has PyTorch run, PyTorch runs for it too, on as | |
| | many elements | census |
| `replaced_too_little` | what its kernels replaced takes less than 1% of the reference's time; what PyTorch | |
| | computes by other operators that come to the same (`essence.py`) is not replaced | census |
| `host_compute` | `forward` carries the inputs to the host, which the reference does not do: by PyTorch, by | census, |
| | `cudaMemcpy` and its like, or (seen under emulation) in memory that both sides may touch | the linker |
| `torch_compile` | it has `torch.compile` write kernels: those are not of the file | hook |
| `tampering` | it reached for the verifier's own objects, or sent messages in its place | tripwires |

What is found first names the kind: the census comes before the intervention.

**Census**: a `TorchDispatchMode` around `forward` sees each ATen operator, called from Python, from C++ or from
scripted functions, in Python's threads too (`threads.py`); what it cannot see (threads of C++, the inside of registered
operators, modes switched off), the profiler of PyTorch does (`profiler_census.py`). Views, allocations and copies
compute nothing and do not count. Matrix products and convolutions count as one family, so that one does not hide as the
other. A file that replaced no operator as a whole, and less than 1% of the elements (10% where PyTorch's operators are
called as often as before), replaced nothing either.
**Intervention**: one more forward on new inputs, in which launches of the file's own kernels are counted and do
nothing, and fresh memory is NaN. What the host read alike in every trial it reads so again (`host_reads.py`): a file
whose kernels only give PyTorch a sign goes on as if they had, and one that has PyTorch step in where its kernels did
not run does not. What is finished then, was finished without them. Where PyTorch calls operators for the file that the
reference does not, there is one more, in which fresh memory of an input's shape holds that input. Where the inputs, or
what the reference computes before its last step, are the answer already (ReLU of positive numbers), it proves nothing
and decides nothing.

**Partial work.** One operator of many is enough, wherever it stands, and PyTorch may do the rest: a library convolution
with a fused tail, one layer of a network, a last sum over partial sums. It has to be worth 1% of the reference's time;
how much it is, every verdict says (`ipc/replaced.py`). What makes a decoy is that nothing is missing when the kernels
do not run.
**Libraries.** cuBLAS or cuDNN through PyTorch (`at::mm` in C++ just as `torch.mm`) is in the census. Called directly,
it is not: `library_calls.py` finds the calls, and a matrix library's count as the family that it computes.
**CUDA graphs.** A replay counts as launches of what was captured; the census includes what ran during capture.
**Tensor subclasses** and other lazy outputs are refused as `wrong`: what is returned must be plain tensors.
**Other protocols** (`kernelbench*`, `dice-paper`) look at nothing of this: see `protocols.py`.

**What remains possible.** Where the file is a program (`ipc/program.py`), no Python of its own is in the process that
tells all this. Where it is not, its own code can change anything there: it could forge counts and census, or notice
that it is muted. Most of that `static.py` labels, and `tripwires.py` reports before it can be undone. Not caught is a
file that lets PyTorch compute, by other operators than the reference's, on what a kernel of its own has changed without
need, or only after it has set a sign that varies with the inputs or is more than a few numbers (the label `reads_back`
says that it looks); nor one that is no program and whose kernel undoes what PyTorch's other operators mixed into the
answer (a padding, a summand; of programs `candidate/passing.py` makes the calls again), or passes on what they computed
in a thread of C++; nor, on a GPU, one that computes on the host in managed or mapped memory; nor native code that hides
every trace.
None of them can ever pass a wrong output off as a right one: expected outputs are in no process that runs code of the
file, and inputs follow from a secret.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from dice.verify.execution import essence, host_reads, operator_cost
from dice.verify.execution.dispatch import OperatorMode
from dice.verify.ipc.operator_counts import CAST, OperatorCounts, family
from dice.verify.tensors import near

KINDS: tuple[str, ...] = (
    "decoy",
    "copies_result",
    "copies_inputs",
    "replaced_nothing",
    "replaced_too_little",
    "host_compute",
)
KINDS += ("torch_compile", "tampering")
SAMPLES = 1024  # elements compared of each tensor
KEPT_TENSORS = 64  # of a muted forward


class Census(OperatorMode):
    """Notes what PyTorch computes in a block. `short`: an operator gave floats shorter than float64. `stable`: how many
    sorts were to keep the order of equal values.

    `sizes`: keep samples, drawn by `seed`, of the tensors with so many elements (`witnesses`) and fill fresh memory
    with NaN, or with that of the tensors `given` which has its shape and type. For a muted forward.
    """

    def __init__(self, sizes: Sequence[int] = (), seed: int = 0, given: Sequence[torch.Tensor] = ()):
        super().__init__()
        self._given = given
        self.work = OperatorCounts()
        self.short, self.stable = False, 0
        self.witnesses: list[ValueSample] = []
        self.computed: list[bool] = []  # whether each witness came from an operator that computes
        self._places = {size: places(size, seed) for size in sizes}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if getattr(func, "is_view", False):
            return result
        name = func.name()
        outputs = list(_tensors(result))
        kind = kind_of(name, args, outputs)
        if kind:
            inputs = list(_tensors((args, kwargs)))
            elements = max(_count(inputs), _count(outputs))
            flops = operator_cost.flops_of(func, args, kwargs or {}, result)
            cost = operator_cost.estimated(flops, (*inputs, *outputs), elements)
            at_heart = essence.of(func, args, result, flops, elements)
            self.work.note(kind, elements, cost, at_heart, essence.part_of(kind, func, args))
            self.short = self.short or any(_is_short(tensor) for tensor in outputs)
            self.stable += name.startswith("aten::sort.stable") and (kwargs or {}).get("stable") is True
        elif count := _read_by_host(name, args, outputs):
            self.work.host += count
            result = _answered(name, args, result)
        if self._places:
            if name.startswith(("aten::empty", "aten::new_empty")):
                for tensor in outputs:
                    if not self._fill(tensor):
                        _poison(tensor)
            elif name.startswith(("aten::zeros", "aten::new_zeros")):
                for tensor in outputs:
                    self._fill(tensor)
            else:
                self._keep(outputs, bool(kind))
        return result

    def _fill(self, fresh: torch.Tensor) -> bool:
        for tensor in self._given:
            if tensor.shape == fresh.shape and tensor.dtype == fresh.dtype:
                fresh.copy_(tensor)
                return True
        return False

    def _keep(self, outputs: Sequence[torch.Tensor], computed: bool) -> None:
        parts = (torch.view_as_real(tensor).unbind(-1) if tensor.is_complex() else (tensor,) for tensor in outputs)
        for tensor in itertools.chain.from_iterable(parts):
            where = self._places.get(tensor.numel())
            if where is None or tensor.layout != torch.strided:
                continue
            if len(self.witnesses) == KEPT_TENSORS:  # the first half and the last
                del self.witnesses[KEPT_TENSORS // 2], self.computed[KEPT_TENSORS // 2]
            self.witnesses.append(_picked(tensor, where))
            self.computed.append(computed)


class ValueSample(NamedTuple):
    """Some elements of a tensor, and what the order of all of them does not matter to: mean, rms, mean size, least and
    largest, in float64. On the CPU: large tensors are on the GPU, what they are compared with is not."""

    values: torch.Tensor
    moments: torch.Tensor


def places(size: int, seed: int) -> torch.Tensor:
    """Which elements of a tensor are sampled."""
    if size <= SAMPLES:
        return torch.arange(size)
    return torch.randint(size, (SAMPLES,), generator=torch.Generator().manual_seed(seed))


def samples(tensor: torch.Tensor, seed: int) -> ValueSample:
    return _picked(tensor, places(tensor.numel(), seed))


def _picked(tensor: torch.Tensor, where: torch.Tensor) -> ValueSample:
    flat = tensor.detach().reshape(-1)
    values = flat[where.to(flat.device)].to("cpu", torch.float64)
    parts = [_moments(part) for part in near.stretches(flat)]  # in float64: large ones would take gigabytes
    total, square, size, least, largest = torch.stack(parts).unbind(-1)
    means = (total.sum() / flat.numel(), (square.sum() / flat.numel()).sqrt(), size.sum() / flat.numel())
    return ValueSample(values, torch.stack([*means, least.min(), largest.max()]).cpu())


def _moments(flat: torch.Tensor) -> torch.Tensor:
    """Sum, squares, sizes, least and largest, in float64."""
    if flat.dtype not in (torch.float32, torch.float64):
        flat = flat.float()
    size, norm = (torch.linalg.vector_norm(flat, order, dtype=torch.float64) for order in (1, 2))
    extremes = [value.double() for value in flat.aminmax()]
    return torch.stack([flat.sum(dtype=torch.float64), norm.square(), size, *extremes])


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def _is_float(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _is_short(tensor: torch.Tensor) -> bool:
    return _is_float(tensor) and tensor.dtype not in (torch.float64, torch.complex128)


def _count(tensors: Any) -> int:
    return sum(tensor.numel() for tensor in tensors)


def _read_by_host(name: str, args: tuple[Any, ...], outputs: Sequence[torch.Tensor]) -> int:
    """How many numbers an operator carries to the host."""
    if name.startswith(("aten::_local_scalar_dense", "aten::equal")):
        return 1
    if not name.startswith(("aten::_to_copy", "aten::copy_")):
        return 0
    source = _copied(name, args)
    if source is None or not source.is_cuda:
        return 0
    return sum(tensor.numel() for tensor in outputs if tensor.device.type == "cpu")


def kind_of(name: str, args: tuple[Any, ...], outputs: Sequence[torch.Tensor]) -> str:
    """The family of an operator that computes, or ""."""
    if name.startswith("aten::add_.") and all(one.numel() == 1 and not _is_float(one) for one in outputs):
        return ""  # a counter goes on, as that of a batch normalisation does
    return family(name) or (CAST if _rounds(name, args, outputs) else "")


def _rounds(name: str, args: tuple[Any, ...], outputs: Sequence[torch.Tensor]) -> bool:
    """Whether an operator makes whole numbers of floats."""
    if not name.startswith(("aten::_to_copy", "aten::copy_")):
        return False
    source = _copied(name, args)
    return source is not None and source.is_floating_point() and not all(map(_is_float, outputs))


def _copied(name: str, args: tuple[Any, ...]) -> torch.Tensor | None:
    """What `_to_copy` or `copy_` copies."""
    source = args[1] if name.startswith("aten::copy_") and len(args) > 1 else args[0] if args else None
    return source if isinstance(source, torch.Tensor) else None


def _answered(name: str, args: tuple[Any, ...], result: Any) -> Any:
    answer = host_reads.answer(result)
    return args[0].copy_(answer) if answer is not result and name.startswith("aten::copy_") else answer


def _poison(tensor: torch.Tensor) -> None:
    if tensor.layout != torch.strided or not tensor.numel():
        return
    if tensor.is_floating_point() or tensor.is_complex():
        tensor.fill_(float("nan"))
    elif tensor.dtype == torch.bool:
        tensor.fill_(True)
    else:
        tensor.fill_(torch.iinfo(tensor.dtype).max)


# ---- what follows from it -----------------------------------------------------------------------------------------


def is_equal(sample: ValueSample, of: ValueSample) -> bool:
    """Whether samples are of the same tensor, up to rounding."""
    one, other = sample.values, of.values
    if one.shape != other.shape or not bool(torch.equal(one.isfinite(), other.isfinite())):
        return False
    finite = one.isfinite()
    one, other = one[finite], other[finite]
    if not one.numel():
        return False
    scale = float((other - other.mean()).square().mean().sqrt()) if other.numel() > 1 else float(other.abs())
    scale = scale or float(other.abs().max())
    return scale > 0 and float((one - other).square().mean().sqrt()) <= 1e-3 * scale


def is_reordered(sample: ValueSample, of: ValueSample) -> bool:
    """Whether samples are of tensors with the same elements in another order, as far as their moments tell."""
    one, other = sample.moments, of.moments
    if one.shape != other.shape or sample.values.shape != of.values.shape or _distinct(of.values) < 16:
        return False
    return bool(((one - other).abs() <= 1e-5 * other[1]).all())


def is_mapped(sample: ValueSample, of: ValueSample) -> bool:
    """Whether the other is a monotone function of the first, element by element, as far as samples tell."""
    one, other = sample.values, of.values
    if one.shape != other.shape or one.numel() < 64 or not bool((one.isfinite() & other.isfinite()).all()):
        return False
    if min(_distinct(one), _distinct(other)) < 16:
        return False
    order = one.argsort()
    steps = other[order].diff()
    slack = 1e-5 * float(other.max() - other.min())
    return bool((steps >= -slack).all()) or bool((steps <= slack).all())


def is_multiple(sample: ValueSample, of: ValueSample, counts: Iterable[int]) -> bool:
    """Whether the first is the other times a count, as a sum is of a mean: of few elements, where no order shows."""
    one, other = sample.values, of.values
    if one.shape != other.shape or one.numel() >= 64 or not bool(other.any()):
        return False
    return any(bool(((one / count - other).abs() <= 1e-5 * other.abs()).all()) for count in counts)


def counts(tensors: Iterable[torch.Tensor]) -> frozenset[int]:
    """What a mean over dimensions of these may divide by."""
    found: set[int] = set()
    for tensor in tensors:
        products = {1}
        for size in tensor.shape:
            products |= {product * size for product in products}
        found |= products
    return frozenset(found - {0, 1})


def _distinct(tensor: torch.Tensor) -> int:
    return len(set(tensor.tolist()))


@dataclass(frozen=True)
class Traces:
    """What the reference passes through on its way to one output tensor: samples of its inputs and of the results of
    its operators with as many elements as that output, and of the output itself. `counts`: of elements of its inputs,
    along some dimensions."""

    expected: ValueSample
    inputs: tuple[ValueSample, ...]
    results: tuple[ValueSample, ...]
    counts: frozenset[int] = frozenset()

    @property
    def tells_nothing(self) -> bool:
        """The answer is there before the last step."""
        if self.expected.values.numel() > 1 and _distinct(self.expected.values) == 1:
            return True
        equal = sum(is_equal(result, self.expected) for result in self.results)
        return equal > 1 or any(is_equal(tensor, self.expected) for tensor in self.inputs)

    @property
    def has_idle_step(self) -> bool:
        """One of the operators leaves an input as it is: a kernel in its place may do so, too."""
        return any(is_equal(result, tensor) for result in self.results for tensor in self.inputs)

    @property
    def earlier(self) -> list[ValueSample]:
        """What there is before the answer."""
        return [*self.inputs, *(result for result in self.results if not is_equal(result, self.expected))]

    def is_mapped_from(self, tensor: ValueSample) -> bool:
        return is_mapped(tensor, self.expected) or is_multiple(tensor, self.expected, self.counts)

    def is_reordered_from(self, tensor: ValueSample) -> bool:
        return is_reordered(tensor, self.expected)


def is_given_away(traces: Traces, witnesses: Sequence[ValueSample]) -> bool:
    """Whether a muted candidate's PyTorch operators computed the answer, or what only has to be mapped or reordered to
    be it, where the reference does not pass through the like itself."""
    if traces.tells_nothing:
        return False
    if any(is_equal(witness, traces.expected) for witness in witnesses):
        return True
    return any(
        any(map(is_near, witnesses)) and not any(map(is_near, traces.earlier))
        for is_near in (traces.is_mapped_from, traces.is_reordered_from)
    )


@contextlib.contextmanager
def watching(census: Census | None) -> Iterator[None]:
    """A census for the length of a block, where there is one."""
    with census if census is not None else contextlib.nullcontext():
        yield
