"""Labels of a kernel file's text, on the ways such files are really written."""

from __future__ import annotations

import time

import pytest

from dice.kernel import Kernel
from dice.syntax import MAX_SOURCE
from dice.verify.text.static import KINDS, examine, may_overlap

CUDA = '''
import torch, torch.nn as nn
from torch.utils.cpp_extension import load_inline
source = """
__global__ void scale_kernel(const float* x, float* y, int n) { }
torch::Tensor scale(torch::Tensor x) { return x; }
"""
'''
BUILD = 'ops = load_inline(name="ops", cpp_sources="", cuda_sources=source, functions=["scale"])\n'


def kinds(text: str) -> set[str]:
    found = examine(Kernel(text)).deceptions
    assert set(found) <= set(KINDS)
    return set(found)


HONEST = {
    "direct": "class ModelNew(nn.Module):\n    def forward(self, x):\n        return ops.scale(x)\n",
    "held on self": """
class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.op = ops
    def forward(self, x):
        return self.op.scale(x)
""",
    "function held on self": """
class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.run = ops.scale
    def forward(self, x):
        return self.run(x)
""",
    "helper method": """
class ModelNew(nn.Module):
    def forward(self, x):
        return self._helper(x)
    def _helper(self, x):
        return ops.scale(x)
""",
    "module function": """
def scale(x):
    return ops.scale(x.contiguous())
class ModelNew(nn.Module):
    def forward(self, x):
        return scale(x)
""",
    "submodule": """
class Scale(nn.Module):
    def forward(self, x):
        return ops.scale(x)
class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 3), Scale())
    def forward(self, x):
        return self.body(x)
""",
    "autograd function": """
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return ops.scale(x)
scale = Scale.apply
class ModelNew(nn.Module):
    def forward(self, x):
        return scale(x)
""",
    "class attribute": """
class ModelNew(nn.Module):
    op = ops
    def forward(self, x):
        return self.op.scale(x)
""",
    "inherited forward": """
class Base(nn.Module):
    def forward(self, x):
        return ops.scale(x)
class ModelNew(Base):
    pass
""",
    "alias of the class": """
class Fast(nn.Module):
    def forward(self, x):
        return ops.scale(x)
ModelNew = Fast
""",
    "handed to a helper": """
def run(module, x):
    return module.scale(x)
class ModelNew(nn.Module):
    def forward(self, x):
        return run(ops, x)
""",
}


@pytest.mark.parametrize("name", HONEST)
def test_honest_files_get_no_label(name: str) -> None:
    assert kinds(CUDA + BUILD + HONEST[name]) == set()


def test_builder_function_and_lazy_global() -> None:
    lazy = """
_ops = None
def get_ops():
    global _ops
    if _ops is None:
        _ops = load_inline(name="ops", cpp_sources="", cuda_sources=source, functions=["scale"])
    return _ops
class ModelNew(nn.Module):
    def forward(self, x):
        return get_ops().scale(x)
"""
    assert kinds(CUDA + lazy) == set()


def test_torch_only() -> None:
    text = "import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return torch.relu(x)\n"
    assert kinds(text) == {"torch_only"}
    assert not examine(Kernel(text)).has_cuda


def test_global_in_a_comment_is_no_kernel() -> None:
    text = 'source = """// __global__ void f() {}"""\nclass ModelNew:\n    def forward(self, x):\n        return x\n'
    assert not examine(Kernel(text)).has_cuda


def test_never_invoked_with_and_without_a_build() -> None:
    model = "class ModelNew(nn.Module):\n    def forward(self, x):\n        return x * 2\n"
    assert kinds(CUDA + BUILD + model) == {"never_invoked"}
    assert kinds(CUDA + model) == {"never_invoked"}


def test_not_in_forward() -> None:
    model = """
class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.op = ops
    def unused(self, x):
        return self.op.scale(x)
    def forward(self, x):
        return x * 2
"""
    assert kinds(CUDA + BUILD + model) == {"not_in_forward"}


def test_a_name_shared_with_torch_is_not_mistaken_for_the_kernel() -> None:
    model = """
class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.relu = ops.scale
    def forward(self, x):
        out = torch.relu(x)
        return out
def elsewhere(x):
    out = ops.scale(x)
    return out
"""
    assert kinds(CUDA + BUILD + model) == {"not_in_forward"}


def test_try_fallback_needs_a_handler_that_does_not_raise() -> None:
    template = """
class ModelNew(nn.Module):
    def forward(self, x):
        try:
            return ops.scale(x)
        except RuntimeError as error:
            {handler}
"""
    assert kinds(CUDA + BUILD + template.format(handler="return x * 2")) == {"try_fallback"}
    assert kinds(CUDA + BUILD + template.format(handler="raise ValueError from error")) == set()


def test_inherits_reference() -> None:
    model = "class ModelNew(Model):\n    def forward(self, x):\n        return ops.scale(x)\n"
    assert kinds(CUDA + BUILD + model) == {"inherits_reference"}


def test_example_mimicry() -> None:
    text = CUDA.replace("scale_kernel", "elementwise_add_kernel") + BUILD
    model = "class ModelNew(nn.Module):\n    def forward(self, a, b):\n        return ops.scale({})\n"
    assert kinds(text + model.format("torch.matmul(a, b)")) == {"example_mimicry"}
    assert kinds(text + model.format("a @ b")) == {"example_mimicry"}
    assert kinds(text + model.format("a")) == set()


@pytest.mark.parametrize("text", ["", "  \n", "def f(:\n", "x = 1\n", "\0", "class Model: pass\n", "(" * 5000])
def test_unusable_files_say_why(text: str) -> None:
    assert examine(Kernel(text)).unusable.endswith(".")


LABELLED = {
    "library:cublas": 'source += """int f() { cublasSgemm(handle); return 0; }"""\n',
    "library:thrust": 'source += """int f() { thrust::sort(first, last); return 0; }"""\n',
    "dynamic_code": 'compute = getattr(torch, "re" + "lu")\n',
    "reflection": "names = ops.scale.__globals__\n",
}


@pytest.mark.parametrize("label", LABELLED)
def test_remarkable_text_is_labelled(label: str) -> None:
    assert examine(Kernel(CUDA + BUILD + LABELLED[label] + HONEST["direct"])).labels == (label,)


@pytest.mark.parametrize(
    "text",
    [
        "import sys\nloaded = sys.modules\n",
        "from sys import modules\n",
        "from torch.utils._python_dispatch import _disable_current_modes as quiet\n",
        "quiet = torch.utils._python_dispatch._disable_current_modes\n",
        "quiet = torch._C._DisableTorchDispatch()\n",
        "numbers = (ctypes.c_float * 4).from_address(x.data_ptr())\n",
    ],
)
def test_what_reaches_into_its_process_is_labelled(text: str) -> None:
    assert examine(Kernel(CUDA + BUILD + text + HONEST["direct"])).labels == ("reflection",)


@pytest.mark.parametrize("name", HONEST)
def test_plain_text_has_no_label(name: str) -> None:
    talk = 'source += """// cublasSgemm( and thrust::sort( are not called; printf("cub::Sum(") { is text"""\n'
    plain = "model_eval = ops.eval()\nscale = getattr(ops, name)\n"
    assert examine(Kernel(CUDA + BUILD + talk + plain + HONEST[name])).labels == ()


def test_a_matrix_librarys_calls_count_as_a_contraction() -> None:
    def families(call: str) -> tuple[str, ...]:
        return examine(Kernel(f'{CUDA}{BUILD}more = """void f() {{ {call}; }}"""\n{HONEST["direct"]}')).library_families

    for call in ("cublasSgemm(h)", "cublasLtMatmul(h)", "cublasGemmStridedBatchedEx(h)", "cudnnConvolutionForward(h)"):
        assert families(call) == ("contraction",), call
    assert families("cudnnSoftmaxForward(h)") == ("softmax",)
    assert families("cublasSetStream(h, s)") == families("cub::DeviceReduce::Sum(p)") == ()


ONE_STREAM = ("kernel<<<g, b, 0, at::cuda::getCurrentCUDAStream()>>>(x)", "cudaStream_t s = c10::cuda::CUDAStream(q)")
SEVERAL = (
    "cudaStreamCreate(&side)", "cudaStreamCreateWithFlags(&s, 1)", "at::cuda::getStreamFromPool()",
    "cudaGraphLaunch(g)", "torch.cuda.stream(torch.cuda.Stream())", "torch.cuda.CUDAGraph()", "nn.LSTM(8, 8)", "GRU(1)",
)  # fmt: skip


@pytest.mark.parametrize("text", ONE_STREAM + SEVERAL)
def test_streams_may_overlap_only_in_what_can_make_several(text: str) -> None:
    assert may_overlap(text) == (text in SEVERAL)


def chain(length: int) -> str:
    """Names that are handles one after the other: the first because of the last."""
    links = "".join(f"a{number} = a{number + 1}\n" for number in range(length))
    return links + f"a{length} = load_inline()\n" + HONEST["direct"].replace("ops.scale(x)", "a0.scale(x)")


def diamonds(levels: int) -> str:
    classes = "".join(f"class C{number}(C{number + 1}, C{number + 1}): pass\n" for number in range(levels))
    return classes + f"class C{levels}:\n    def forward(self, x): return ops.f(x)\nclass ModelNew(C0): pass\n"


LONG = {
    "conditions": "x = " + "1 if 1 else " * 340 + "1\n" + HONEST["direct"],
    "names": chain(3000),
    "one value of many names": "a = " * 20_000 + "[" + "f, " * 20_000 + "]\n" + HONEST["direct"],
    "diamonds": diamonds(40),
    "classes in a row": "".join(f"class C{number}(C{number + 1}): pass\nC{number}\n" for number in range(3000)),
    "functions": "".join(f"def f{number}(): f{number + 1}(); return f{number + 1}\n" for number in range(3000)),
    "calls": "x = f" + "()" * 900 + "\n" + HONEST["direct"],
    "comments": 's = """{;' + "/*" * 100_000 + '"""\n' + HONEST["direct"],
}


@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
def test_a_text_is_read_in_time_that_grows_with_it(text: str) -> None:
    began = time.process_time()
    examine(Kernel(CUDA + BUILD + text))
    assert time.process_time() - began < 5


def test_a_handle_is_found_behind_many_names() -> None:
    assert kinds(CUDA + chain(2000)) == set()
    assert kinds(CUDA + BUILD + diamonds(10)) == set()
    assert kinds(CUDA + chain(2000).replace("load_inline", "unknown")) == {"never_invoked"}


def test_a_file_that_no_one_writes_is_refused_in_a_sentence() -> None:
    assert examine(Kernel("a\n" * MAX_SOURCE)).unusable == "the file is larger than 256 KiB."
    deep = "x = " + "1 + " * 1500 + "1\n" + HONEST["direct"]
    assert examine(Kernel(deep)).unusable == "the file is not valid Python: it is nested too deeply."
