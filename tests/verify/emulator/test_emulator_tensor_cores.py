"""Tensor-core fragments (nvcuda::wmma): products of tiles, who holds what, and what a warp may not do with them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from emulator_harness import CASES, CompileFailed, Library, call_in_process, case, compile_cuda

from dice.verify import emulator

pytestmark = pytest.mark.xdist_group("tensor cores")  # one process builds what they share

SHAPES = {"square": (16, 16, 16), "tall": (32, 8, 16), "flat": (8, 32, 16)}
# Entry: (dtype of the operands, of the sum)
TYPES = {
    "half": (torch.float16, torch.float32),
    "short": (torch.float16, torch.float16),
    "bfloat": (torch.bfloat16, torch.float32),
    "signed": (torch.int8, torch.int32),
    "unsigned": (torch.uint8, torch.int32),
}
ENTRIES = {f"h_{kind}_{name}": (*TYPES[kind], *shape) for kind in TYPES for name, shape in SHAPES.items()}
ENTRIES |= {"h_tf32": (torch.float32, torch.float32, 16, 16, 8), "h_double": (torch.float64, torch.float64, 8, 8, 4)}


@pytest.fixture
def tiles() -> Library:
    return case("tensor_cores.cu")


def array(tensor: torch.Tensor) -> np.ndarray:
    """Its bytes; numpy has no bfloat16."""
    flat = tensor.contiguous().reshape(-1)
    return (flat.view(torch.int16) if flat.dtype == torch.bfloat16 else flat).numpy()


def drawn(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    if dtype in (torch.int8, torch.uint8, torch.int32):
        return torch.randint(0 if dtype == torch.uint8 else -100, 100, shape, generator=generator).to(dtype)
    values = torch.randn(*shape, generator=generator)
    return (values.view(torch.int32) & ~0x1FFF).view(torch.float32).to(dtype)  # also TF32 holds them


def padded(tensor: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(tensor, (0, max(0, 16 - tensor.shape[-1])))


@pytest.mark.parametrize("form", range(4))
@pytest.mark.parametrize("entry", ENTRIES)
def test_products(tiles: Library, entry: str, form: int) -> None:
    dtype, sum_dtype, m, n, k = ENTRIES[entry]
    a, b, c = drawn(dtype, 2, m, k), drawn(dtype, 2, k, n), drawn(sum_dtype, 2, m, n)
    wide = torch.float64 if sum_dtype.is_floating_point else torch.int64
    expected = (torch.bmm(a.to(wide), b.to(wide)) + c.to(wide)).to(torch.float64)
    a_rows, b_rows, c_rows = form < 2, form % 2 == 0, form in (0, 3)
    stored_a, stored_b = padded(a if a_rows else a.mT), padded(b if b_rows else b.mT)
    d = array(torch.zeros(2 * m * n, dtype=sum_dtype))
    tiles.call(entry, array(stored_a), array(stored_b), array(c if c_rows else c.mT), d, form)
    actual = torch.from_numpy(d).reshape((2, m, n) if c_rows else (2, n, m))
    allowed = {torch.float16: 2e-2, torch.float32: 1e-5, torch.float64: 1e-14}.get(sum_dtype, 0.0)
    torch.testing.assert_close((actual if c_rows else actual.mT).double(), expected, atol=allowed, rtol=allowed)


def test_the_multiplier_sees_the_leading_bits_of_tf32(tiles: Library) -> None:
    a, b, d = (np.zeros(1024, np.float32) for _ in range(3))
    a[0], b[0] = 1.0009765, 1.0  # the last bit of TF32 is 2^-10
    tiles.call("h_tf32", a, b, np.zeros(1024, np.float32), d, 0)
    assert d[0] == 1.0


def test_one_product_after_the_other(tiles: Library) -> None:
    a, b, d = drawn(torch.float32, 16, 8), drawn(torch.float32, 8, 16), np.zeros((16, 16), np.float32)
    tiles.call("h_twice", array(a), array(b), d)
    torch.testing.assert_close(torch.from_numpy(d), 3 * (a @ b), atol=1e-5, rtol=1e-5)


def test_each_element_is_in_one_lane(tiles: Library) -> None:
    a, out = drawn(torch.float16, 16, 16), np.zeros(3, np.float32)
    tiles.call("h_elements", array(a), out)
    assert out[0] == pytest.approx(2 * float(a.double().sum()), abs=1e-3)
    assert out[1] == 256 and out[2] == 1 + 2**-10


def test_sums_of_integers_wrap_or_stay_at_the_limit(tiles: Library) -> None:
    out = np.zeros(2, np.int32)
    tiles.call("h_limits", out)
    assert out.tolist() == [2**31 - 1, 2**31 - 1 + 16 * 127**2 - 2**32]


@pytest.mark.parametrize("how", range(4))
def test_what_a_warp_may_not_do(how: int) -> None:
    death = call_in_process(compile_cuda((CASES / "tensor_cores.cu").read_text()), "h_misused", how)
    expected = {0: "wmma_part_of_a_warp", 1: "wmma_part_of_a_warp", 2: "wmma_alignment", 3: "wmma_alignment"}
    assert death.fault is not None and death.fault["fault"] == expected[how]


@pytest.mark.parametrize(
    ("shape", "supported"),
    [("8, 8, 32, wmma::experimental::precision::u4", False), ("16, 16, 8, __half", True)],
)
def test_narrower_types_are_unsupported_and_other_shapes_an_error(shape: str, supported: bool) -> None:
    text = f"__global__ void k() {{ nvcuda::wmma::fragment<wmma::matrix_a, {shape}, wmma::row_major> a; }}"
    with pytest.raises(CompileFailed) as failure:
        compile_cuda(f"#include <mma.h>\nusing namespace nvcuda;\n{text}\n")
    assert (emulator.explain_failure(str(failure.value)) is None) == supported
