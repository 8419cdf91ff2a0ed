"""Calling a built library: arguments, defaults, exceptions, identity, launch counts, and PyTorch's own headers."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from dice.verify.build.build import Sources, build
from dice.verify.candidate import binding
from dice.verify.options import default_cache_dir

pytestmark = pytest.mark.xdist_group("binding")  # one process builds what they share

SOURCE = """
#include <torch/extension.h>
__global__ void add_one(float* x, int n) { if (threadIdx.x < n) x[threadIdx.x] += 1; }
__global__ void never(float* x) { x[0] = 0; }
torch::Tensor bump(torch::Tensor x, int64_t times, double bias) {
  for (int64_t i = 0; i < times; ++i) add_one<<<1, 32>>>(x.data_ptr<float>(), x.numel());
  return bias == 0 ? x : x + bias;
}
torch::Tensor checked(torch::Tensor x) { TORCH_CHECK(x.dim() == 2, "need 2 dims, got ", x.sizes()); return x; }
void fails(int kind) {
  if (kind == 0) throw std::invalid_argument("bad value");
  if (kind == 1) AT_ERROR("at error ", 7);
  TORCH_CHECK_INDEX(kind != 2, "index ", kind);
  TORCH_CHECK_VALUE(kind != 3, "value");
  TORCH_CHECK_TYPE(kind != 4, "type");
  TORCH_CHECK_NOT_IMPLEMENTED(kind != 5, "not yet");
  torch::zeros({2, 3}).view({7});
}
std::string which(int64_t) { return "int"; }
std::string which_float(double) { return "float"; }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("bump", &bump, "adds", py::arg("x"), py::arg("times") = 1, py::kw_only(), py::arg("bias") = 0.0);
  m.def("checked", &checked);
  m.def("fails", &fails);
  m.def("which", &which);
  m.def("which", &which_float);
  m.def("maybe", [](std::optional<torch::Tensor> x) { return x.has_value(); });
  m.def("undefined", []() { return torch::Tensor(); });
  m.def("describe", [](torch::Tensor x) {
    return std::make_tuple(x.is_cuda(), x.device().str(), std::string(x.dtype().name()), x.size(-1), x.get_device());
  });
  m.def("past_the_end", [](torch::Tensor x) { return x.size(5); });
  m.def("as_double", [](torch::Tensor x) { return x.data_ptr<double>() != nullptr; });
  m.def("small", [](int8_t x) { return x; });
}
"""


@pytest.fixture(scope="module")
def module() -> ModuleType:
    built = build(Sources((), (SOURCE,)), backend="emulated", cache_dir=default_cache_dir())
    assert built.headers == "slim"
    return binding.load(built, "ext")


def test_positional_keyword_and_default_arguments(module: ModuleType) -> None:
    assert module.bump(torch.zeros(3)).tolist() == [1, 1, 1]
    assert module.bump(torch.zeros(2), 3).tolist() == [3, 3]
    assert module.bump(x=torch.zeros(1), times=2, bias=0.5).tolist() == [2.5]


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {}),
        ((torch.zeros(1), 1, 0.5), {}),
        ((torch.zeros(1),), {"unknown": 1}),
        ((torch.zeros(1),), {"x": torch.zeros(1)}),
        ((None,), {}),
        (([1.0],), {}),
        ((torch.zeros(1), 1.5), {}),
        ((torch.zeros(1), "2"), {}),
    ],
)
def test_arguments_that_do_not_fit_are_a_type_error(module: ModuleType, args: tuple, kwargs: dict) -> None:
    with pytest.raises(TypeError, match="incompatible function arguments") as caught:
        module.bump(*args, **kwargs)
    assert "(x: torch.Tensor, times: int, bias: float)" in str(caught.value)


def test_integers_must_fit_their_type(module: ModuleType) -> None:
    assert module.small(-128) == -128
    for value in (128, -129, 2**80):
        with pytest.raises(TypeError):
            module.small(value)


def test_overloads_are_tried_in_order(module: ModuleType) -> None:
    assert (module.which(3), module.which(3.5)) == ("int", "float")


def test_none_and_undefined_tensors(module: ModuleType) -> None:
    assert (module.maybe(None), module.maybe(torch.zeros(1))) == (False, True)
    assert module.undefined() is None


def test_returned_input_is_the_same_object(module: ModuleType) -> None:
    x = torch.zeros(2)
    parameter = torch.nn.Parameter(torch.zeros(2, 2))
    assert module.bump(x) is x
    assert module.checked(parameter) is parameter


def test_tensors_are_released(module: ModuleType) -> None:
    import gc
    import weakref

    x = torch.zeros(2, 2)
    gone = weakref.ref(x)
    for _ in range(3):
        module.checked(x)
    del x
    gc.collect()
    assert gone() is None


def test_failed_check_is_a_runtime_error_with_its_message(module: ModuleType) -> None:
    with pytest.raises(RuntimeError, match=r"need 2 dims, got \[2, 1, 3\]"):
        module.checked(torch.zeros(2, 1, 3))
    with pytest.raises(RuntimeError, match="expected scalar type Double but found Float"):
        module.as_double(torch.zeros(1))
    with pytest.raises(IndexError, match="Dimension out of range"):
        module.past_the_end(torch.zeros(1))


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        (0, RuntimeError, "bad value"),
        (1, RuntimeError, "at error 7"),
        (2, IndexError, "index 2"),
        (3, ValueError, "value"),
        (4, TypeError, "type"),
        (5, NotImplementedError, "not yet"),
        (6, RuntimeError, r"shape '\[7\]' is invalid for input of size 6"),
    ],
)
def test_exceptions_keep_type_and_message(module: ModuleType, kind: int, error: type, message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        module.fails(kind)
    assert type(caught.value) is error


def test_emulated_tensors_answer_as_cuda_tensors(module: ModuleType) -> None:
    assert module.describe(torch.zeros(2, 5)) == (True, "cuda:0", "float", 5, 0)


def test_launches_count_kernels_that_ran_and_only_those(module: ModuleType) -> None:
    binding.reset_launches()
    assert binding.launches() == {}
    module.bump(torch.zeros(3), 4)
    assert binding.launches() == {"add_one": 4}


def test_documentation_and_missing_module(module: ModuleType) -> None:
    assert "adds" in module.bump.__doc__
    built = build(Sources((), ("int unused;",)), backend="emulated", cache_dir=default_cache_dir())
    with pytest.raises(binding.LoadError, match="PyInit_nothing"):
        binding.load(built, "nothing")


def test_module_must_have_the_name_it_is_loaded_by() -> None:
    source = SOURCE.replace("TORCH_EXTENSION_NAME", "my_module")
    built = build(Sources((), (source,)), backend="emulated", cache_dir=default_cache_dir())
    assert binding.load(built, "my_module").maybe(None) is False
    with pytest.raises(binding.LoadError, match="PyInit_other"):
        binding.load(built, "other")


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("_Z12scale_kernelPKfPffi", "scale_kernel"),
        ("void ns::tiled<16, float>(float const*)", "tiled"),
        ("(anonymous namespace)::k(int)", "k"),
        ("void outer<std::pair<int, float> >::inner<(int)3>(float*)", "inner"),
        ("plain_c_name", "plain_c_name"),
    ],
)
def test_kernel_names_are_those_of_the_source(symbol: str, name: str) -> None:
    assert binding.function_name(symbol) == name


def test_muted_launches_are_counted_and_do_nothing(module: ModuleType) -> None:
    binding.reset_launches()
    binding.set_muted(True)
    try:
        assert module.bump(torch.zeros(2), 3).tolist() == [0, 0]
        other = SOURCE.replace("+= 1;", "+= 2;").replace("add_one", "add_two")
        late = binding.load(build(Sources((), (other,)), backend="emulated", cache_dir=default_cache_dir()), "ext")
        assert late.bump(torch.zeros(1)).tolist() == [0]
    finally:
        binding.set_muted(False)
    assert binding.launches() == {"add_one": 3, "add_two": 1}
    assert module.bump(torch.zeros(1)).tolist() == [1] and late.bump(torch.zeros(1)).tolist() == [2]
