"""Kernels written by rule compute what PyTorch does: many operators to a file, since a file takes a second to build."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

from dice.kernel_form import kernel_file
from dice.loading import load
from dice.optimize.graph import Graph
from dice.optimize.printing import function_of, problem_of
from dice.optimize.region import Region
from dice.optimize.regions import cut
from dice.optimize.templates import layout
from dice.optimize.templates.contractions import division, tensor_cores
from dice.optimize.templates.emitter import CannotWrite, Emitter
from dice.optimize.templates.reductions import point
from dice.optimize.templates.shapes import permuted, viewed
from dice.optimize.templates.values import Memory, runs_along
from dice.optimize.templates.write import cuda_source, safe
from dice.optimize.trace.capture_graph import export_graph
from dice.optimize.writers import Templates, Written
from dice.prompts import NO_KERNEL
from dice.verdict import Verdict
from dice.verify.execution.running import Device


class Function(nn.Module):
    """A function of tensors as a module."""

    def __init__(self, function: Callable[..., Any]):
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*inputs)


def graph_of(function: Callable[..., Any], *inputs: torch.Tensor) -> Graph:
    unit = export_graph(Function(function), inputs, {}, Device("emulated"), own_file=__name__)
    return Graph.from_json(unit.graph.to_json())  # as it crosses from the process that traces


def run(
    folder: Path, function: Callable[..., Any], *inputs: torch.Tensor, tensor_cores: bool = False
) -> tuple[str, list[torch.Tensor]]:
    """Write, build and run the function's kernels. Gives the CUDA source and the results."""
    graph = graph_of(function, *inputs)
    _same_as_printed(graph, function, *inputs)
    cuda, declaration, taken = cuda_source(graph, "region", tensor_cores)
    call = ", ".join(taken)
    text = kernel_file(
        cuda=cuda,
        declaration=declaration,
        name="region",
        function="region_cuda",
        constructor="",
        arguments=call,
        body=f"        return ops.region_cuda({call})",
    )
    path = folder / "kernel.py"
    path.write_text(text)
    reached = {node.name: int(node.arguments[0][7:-1]) for node in graph.nodes if node.operator == "input"}
    found = load(path, backend="emulated").ModelNew()(*(inputs[reached[name]] for name in taken))
    return cuda, [found] if isinstance(found, torch.Tensor) else list(found)


def check(folder: Path, function: Callable[..., Any], *inputs: torch.Tensor, tensor_cores: bool = False) -> str:
    """Each result of the function's kernels is near PyTorch's. Gives the CUDA source."""
    cuda, found = run(folder, function, *inputs, tensor_cores=tensor_cores)
    expected = function(*inputs)
    expected = [expected] if isinstance(expected, torch.Tensor) else list(expected)
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        torch.testing.assert_close(
            one, other, rtol=1e-4, atol=1e-4, equal_nan=True, msg=lambda said, n=number: f"result {n}: {said}"
        )
    return cuda


def _same_as_printed(graph: Graph, function: Callable[..., Any], *inputs: torch.Tensor) -> None:
    """What is left to PyTorch is printed from the same graph, and has to compute the same."""
    names = [node.name for node in graph.nodes if node.operator == "input"]
    reached = [int(node.arguments[0][7:-1]) for node in graph.nodes if node.operator == "input"]
    space: dict[str, Any] = {"torch": torch, "F": F}
    region = Region("pointwise", (), graph, tuple(names), (), ())
    exec(function_of(region, "printed", names), space)
    found, expected = space["printed"](*(inputs[one] for one in reached)), function(*inputs)
    expected = expected if isinstance(expected, torch.Tensor) else tuple(expected)
    torch.testing.assert_close(found, expected, equal_nan=True)


def test_losses(tmp_path: Path) -> None:
    x, y, label = torch.randn(5, 7), torch.rand(5, 7), torch.randint(0, 7, (5,))

    def several(x: torch.Tensor, y: torch.Tensor, label: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            *(F.mse_loss(x, y), F.l1_loss(x, y, reduction="sum"), F.smooth_l1_loss(x, y, beta=0.3)),
            *(F.huber_loss(x, y, delta=0.4), F.kl_div(F.log_softmax(x, -1), y, reduction="batchmean")),
            *(F.cross_entropy(x, label), F.binary_cross_entropy_with_logits(x, y), F.cosine_similarity(x, y)),
        )

    check(tmp_path, several, x, y, label)


def test_elements(tmp_path: Path) -> None:
    x, y = torch.randn(4, 33), torch.randn(33)

    def several(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        smooth = F.gelu(x) + F.gelu(x, approximate="tanh") + F.silu(x) + F.mish(x) + F.softplus(x) + F.elu(x)
        kinked = F.leaky_relu(x, 0.2) + F.hardtanh(x) + F.relu6(x) + F.hardswish(x) + F.selu(x) + F.logsigmoid(x)
        chosen = torch.where(x > y, x, y.abs().sqrt()).clamp(-0.5, 0.75)
        return smooth, kinked, chosen, torch.sigmoid(x) * y + 0.5, (x * 10).long() // 3, (x * 10).long() % 3 << 2, x**3

    check(tmp_path, several, x, y)


def test_rows(tmp_path: Path) -> None:
    x = torch.randn(3, 5, 40)

    def several(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        top, place = x.max(1)
        return (
            *(F.softmax(x, -1), F.log_softmax(x, 1), F.layer_norm(x, (40,)), F.normalize(x, dim=2)),
            *(x.sum(), x.mean((0, 2)), x.var(1), x.std(-1), x.argmin(-1), torch.logsumexp(x, 1), x.prod(0)),
            *(top, place, F.group_norm(x, 5), x / x.abs().mean(1, keepdim=True)),
            *(*x.cummax(1), *x.cummin(-1), x.logcumsumexp(0), x.norm(3, -1), x.norm(0.5, 1), x.norm(0, 0)),
        )

    check(tmp_path, several, x)


def test_long_rows_take_a_block(tmp_path: Path) -> None:
    cuda = check(tmp_path, lambda x: F.softmax(x * 2, -1), torch.randn(3, 4000))
    assert "block_max" in cuda and cuda.count("__global__") == 1


def test_few_long_rows_are_reduced_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And running sums by blocks, along the last dimension and along others."""
    monkeypatch.setattr(layout, "LEAST_PART", 64)
    x, y, image = torch.randn(6, 1280), torch.randn(6, 1280), torch.randn(2, 600, 5)

    def several(x: torch.Tensor, y: torch.Tensor, image: torch.Tensor) -> tuple[torch.Tensor, ...]:
        normed = F.layer_norm(x.view(3, 2, 1280), (2, 1280))
        return (
            *(F.mse_loss(x, y), torch.norm(x), x.amax(), (x > 3).any(), x.argmax(1), F.softmax(x, -1), normed),
            *(x.cumsum(1), x.flip(1).cumsum(1).flip(1), (x > 0).cumsum(-1), image.cumsum(1), image.cumprod(0)),
        )

    cuda = check(tmp_path, several, x, y, image)
    assert "for (int tile = 0; tile < 1280; tile += BLOCK" in cuda
    assert "c < 16;" in cuda, "vectors of 120 parts of all 7680 elements"


def test_products(tmp_path: Path) -> None:
    x, w, v = torch.randn(2, 17, 20), torch.randn(33, 20), torch.randn(2, 20, 19)

    def several(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return F.gelu(F.linear(x, w)) * 2, x @ v, torch.einsum("bik,bjk->bij", x, x), x @ w[0], x[0] @ w.t()

    check(tmp_path, several, x, w, v)


def test_an_einsum_whose_order_is_chosen(tmp_path: Path) -> None:
    """PyTorch adds the order to the call where opt_einsum is installed, and its Python takes none."""
    x, w, v = torch.randn(2, 7, 5), torch.randn(2, 5, 6), torch.randn(2, 6, 4)
    order = [1, 2, 0, 1]
    check(tmp_path, lambda x, w, v: torch._VF.einsum("bij,bjk,bkl->bil", (x, w, v), path=order), x, w, v)  # type: ignore[attr-defined]


def test_products_on_tensor_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To float32's precision, though they multiply numbers of ten bits; tiles that do not fit, factors that lie turned
    in memory, and sums in parts."""
    monkeypatch.setattr(tensor_cores, "LEAST_WORK", 1)
    monkeypatch.setattr(division, "LEAST_PART", 64)
    monkeypatch.setattr(division, "LAUNCH", 0)
    x, y, weight = torch.randn(70, 96), torch.randn(96, 40), torch.randn(33, 40)
    whole = torch.randint(-9, 9, (64, 32)).half()  # whose sums half precision holds
    image, taps = torch.randn(2, 8, 9, 9), torch.randn(32, 8, 3, 3)

    def several(
        x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, whole: torch.Tensor, *conv: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        product = (x @ y).relu()
        return product, F.linear(product, weight), x[:40].T @ y[:40], whole @ whole.T, F.conv2d(*conv, padding=1)

    cuda = check(tmp_path, several, x, y, weight, whole, image, taps, tensor_cores=True)
    assert cuda.count("multiply_add(sums, a_low[k], b_high[c][k]);") == 4  # and one of half precision
    long = torch.randn(40, 256)
    cuda = check(tmp_path, lambda x: F.softmax(x @ x.T, -1), long, tensor_cores=True)
    assert "int first = part * 64, last = min(first + 64, 256);" in cuda


def test_a_factor_is_read_along_its_memory() -> None:
    square = Memory((1, 6, 6), "float32", "x")
    assert runs_along(square) == 2
    assert runs_along(permuted(square, (0, 2, 1))) == 1
    assert runs_along(viewed(permuted(Memory((6, 2, 3), "float32", "x"), (1, 2, 0)), (1, 6, 6))) == 1
    doubled = point("x + y", "float32", (1, 6, 6), permuted(square, (0, 2, 1)), 1.0)
    assert runs_along(doubled) == 1
    doubled.memory = "mid1"
    assert runs_along(doubled) == 2


def test_an_index_is_taken_apart_where_shapes_have_borders_in_common() -> None:
    e = Emitter()
    for name in "ijk":
        e.declare(name, 0)
    flat = e.flat(e.at((4, 6, 5), ("i", "j", "k")))
    assert e.dims(e.at_flat((24, 5), flat))[1] == "k" and e.dims(e.at_flat((4, 30), flat))[0] == "i"
    first, *between, last = e.dims(e.at_flat((4, 2, 3, 5), flat))
    assert (first, last) == ("i", "k") and len(between) == 2
    written = "\n".join(e.frames[0].lines)
    assert "= j / 3;" in written and "= j % 3;" in written and f"{flat} /" not in written
    assert len(e.dims(e.at_flat((8, 15), flat))) == 2, "no border in common"
    assert len(e.dims(e.at_flat((2, 5), flat))) == 2, "a tensor of fewer elements"


def test_large_products_are_for_tensor_cores_and_plain_where_that_is_not_right() -> None:
    for extent, kernels in ((512, [True, False]), (32, [False])):
        x = torch.randn(extent, extent)
        (region,) = cut(graph_of(lambda x: x @ x, x))
        printed = problem_of(region)
        before: list[Written] = []
        texts = []
        while (answer := Templates().write(region, printed, before)) is not None:
            assert answer.kernel is not None
            texts.append("mma.sync" in answer.kernel.source)
            before.append(Written(answer.kernel, NO_KERNEL))
        assert texts == kernels
        right = Written(before[0].kernel, Verdict("correct", "done"))
        assert Templates().write(region, printed, [right]) is None


def test_what_follows_a_product_is_in_its_kernel(tmp_path: Path) -> None:
    cuda = check(
        tmp_path, lambda x, w, y: torch.relu(F.linear(x, w)) + y, *map(torch.randn, ((9, 20), (30, 20), (9, 30)))
    )
    assert cuda.count("__global__") == 1


def test_attention_takes_three_kernels(tmp_path: Path) -> None:
    query, key, value = (torch.randn(2, 3, 17, 16) for _ in range(3))

    def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)

    assert check(tmp_path, attention, query, key, value).count("__global__") == 3


def test_convolutions_and_pooling(tmp_path: Path) -> None:
    x, w, depth, up = (
        torch.randn(2, 4, 9, 10),
        torch.randn(16, 2, 3, 3),
        torch.randn(4, 1, 3, 3),
        torch.randn(4, 12, 3, 3),
    )

    def several(x: torch.Tensor, w: torch.Tensor, depth: torch.Tensor, up: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            *(F.conv2d(x, w, stride=2, padding=1, groups=2), F.conv2d(x, depth, padding=1, groups=4)),
            F.conv_transpose2d(x, up, stride=2, padding=1, output_padding=1),
            *(F.max_pool2d(x, 3, 2, 1), F.avg_pool2d(x, 2), F.adaptive_avg_pool2d(x, (3, 5))),
        )

    check(tmp_path, several, x, w, depth, up)


def test_windows_of_several_sizes(tmp_path: Path) -> None:
    """At borders, where the result's size does not divide, and where each has its largest element."""
    x = torch.randn(2, 3, 9, 11)

    def several(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        best, place = F.max_pool2d(x, 3, 2, 1, 2, ceil_mode=True, return_indices=True)
        return (
            *(best, place, *F.adaptive_max_pool2d(x, (4, 3), return_indices=True), F.adaptive_avg_pool2d(x, (4, 5))),
            F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
            *(F.avg_pool2d(x, (2, 4), 3, 1, ceil_mode=True), F.avg_pool1d(x[0], 3, 2, 1, False, False)),
            F.avg_pool3d(x, 2, 2, 1, divisor_override=3),
        )

    check(tmp_path, several, x)


def test_one_image_without_a_batch(tmp_path: Path) -> None:
    x, w = torch.randn(3, 7, 8), torch.randn(8, 3, 3, 3)
    check(tmp_path, lambda x, w: F.conv2d(x, w, w[:, 0, 0, 0], padding="same"), x, w)


def test_a_part_of_a_concatenation_is_read_only_where_it_lies(tmp_path: Path) -> None:
    """Before its beginning there is somebody else's memory: reading that ends a kernel on a GPU."""
    parts = [torch.randn(2, extent, 3) for extent in (2, 3, 4)]
    cuda = check(tmp_path, lambda *parts: torch.cat(parts, 1), *parts)
    conditions = re.findall(r"if \((i\d+ [^)]*)\) \{", cuda)
    assert sorted(re.sub(r"i\d+", "i", one) for one in conditions if "2147" not in one) == [
        "i < 2", "i >= 2 && i < 5", "i >= 5"
    ]  # fmt: skip


def test_a_mean_near_zero_keeps_its_digits(tmp_path: Path) -> None:
    """Of a batch normalisation in training, which keeps it: the first element is far from it, and has lost them."""
    x = torch.randn(4, 3, 64, 64)
    x[0, :, 0, 0] = 3.0
    x -= x.mean((0, 2, 3), keepdim=True) - 1e-5

    def statistics(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.var_mean(x, (0, 2, 3))

    (_, found), expected = run(tmp_path, statistics, x), statistics(x.double())
    torch.testing.assert_close(found[1].double(), expected[1], rtol=1e-4, atol=1e-8)


def test_names_that_mean_something_in_cpp() -> None:
    names = ("operator", "threadIdx", "exp", "sqrtf", "std", "namespace", "INFINITY", "true", "round")
    taken = {safe(name) for name in names}
    assert taken == {f"{name}_in" for name in names} and safe("weight") == "weight" and safe("experts") == "experts"


def test_the_mean_of_whole_numbers_is_a_float(tmp_path: Path) -> None:
    whole = torch.randint(-9, 9, (9, 33))
    check(tmp_path, lambda x: (x.mean(1, dtype=torch.float32), (x > 2).mean(0, dtype=torch.float64)), whole)


def test_labels_that_count_for_nothing(tmp_path: Path) -> None:
    """Such as those of padding: they need not be a class, so nothing may be read by them."""
    scores, label = torch.randn(6, 5), torch.tensor([0, 4, -100, 2, -100, 2])

    def several(scores: torch.Tensor, label: torch.Tensor) -> tuple[torch.Tensor, ...]:
        logs = scores.log_softmax(1)
        return (
            *(F.cross_entropy(scores, label), F.cross_entropy(scores, label, reduction="none")),
            *(F.nll_loss(logs, label, reduction="sum"), F.nll_loss(logs, label.clamp(min=0), ignore_index=2)),
            *(F.cross_entropy(scores, label, scores[0].exp()), F.nll_loss(logs, label, logs[1], reduction="sum")),
        )

    cuda = check(tmp_path, several, scores, label)
    assert cuda.count("== -100 ? 0 :") >= 3 and "== 2 ? 0 :" in cuda


def test_arrangements_and_indices(tmp_path: Path) -> None:
    x, table, index = torch.randn(3, 8, 6), torch.randn(10, 6), torch.randint(0, 8, (3, 4))

    def several(x: torch.Tensor, table: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, ...]:
        one, other = x.chunk(2, 1)
        return (
            *(torch.cat([x, one * 2], 1), F.pad(x, (1, 2, 0, 1), value=3.0), x.permute(2, 0, 1).reshape(6, -1) * 2),
            *(F.embedding(index, table), x[..., 0].gather(1, index), torch.tril(x) + torch.triu(x, 1) * 2),
            *(torch.stack([one, -other], 1).flatten(1), x.flip(1), x.roll(1, 2), x.roll((1, 1), (1, 2)), x.cumsum(1)),
            x.masked_fill(torch.arange(6)[None] > torch.arange(8)[:, None], -1e9),
        )

    cuda = check(tmp_path, several, x, table, index)
    assert ">= 8" in cuda, "a part of what is joined is read where another one stands"


def test_what_has_no_rule_is_said() -> None:
    with pytest.raises(CannotWrite, match="digamma has no rule"):
        cuda_source(graph_of(torch.digamma, torch.randn(3, 4)), "region")


def test_what_is_not_a_number_stays_that(tmp_path: Path) -> None:
    """Also in rows that a block works on, and as the place of the largest."""
    x, y, rows = torch.randn(2, 3, 8, 8), torch.randn(2, 3, 8, 8), torch.randn(3, 3000)
    x[0, 0, 1, 2] = x[1, 2, 7, 7] = y[1, 1, 3, 3] = rows[1, 700] = rows[1, 1500] = float("nan")

    def several(x: torch.Tensor, y: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        top, place = x.max(-1)
        return (
            *(F.max_pool2d(x, 2), x.amax((2, 3)), x.amin(1), x.clamp(-1, 1), x.clamp_min(0.0), F.relu6(x), F.relu(x)),
            *(F.hardtanh(x), F.hardswish(x), F.hardsigmoid(x), F.celu(x), F.threshold(x, 0.1, 2.0), F.hardshrink(x)),
            *(torch.maximum(x, y), torch.minimum(x, y), torch.max(x, y), torch.fmax(x, y), torch.fmin(x, y)),
            *(top, place, x.argmin(-1), rows.amax(-1), rows.argmax(-1), rows.min()),
        )

    names = [one.isnan().sum().item() for one in several(x, y, rows) if one.is_floating_point()]
    assert all(names[:16]) and not any(names[16:18])  # fmax and fmin alone give the number of the two
    check(tmp_path, several, x, y, rows)
