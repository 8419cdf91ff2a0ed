"""What a model is asked, and how its reply becomes a `Kernel`.

Three prompts: the KernelBench one-shot statement (paper A.1.2: evaluation and the generation stage of RL), its
infilling variant (paper A.1.1; with the example cut into parts too, or not), and a compact one without example for
small models that know the answer's form.
"""

from __future__ import annotations

import ast
import re
import textwrap

from dice import syntax
from dice.kernel import Kernel, KernelParts
from dice.problem import Problem
from dice.verdict import Verdict

EXAMPLE_PROBLEM = """import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()

    def forward(self, a, b):
        return a + b


def get_inputs():
    return [torch.randn(1, 128), torch.randn(1, 128)]


def get_init_inputs():
    return []
"""

EXAMPLE_KERNEL = '''import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

cuda_source = """
#include <torch/extension.h>
#include <cuda_runtime.h>

__global__ void add_kernel(const float* a, const float* b, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        out[i] = a[i] + b[i];
    }
}

torch::Tensor add_cuda(torch::Tensor a, torch::Tensor b) {
    auto out = torch::empty_like(a);
    int n = a.numel();
    int threads = 256;
    int blocks = (n + threads - 1) / threads;
    add_kernel<<<blocks, threads>>>(a.data_ptr<float>(), b.data_ptr<float>(), out.data_ptr<float>(), n);
    return out;
}
"""

cpp_source = "torch::Tensor add_cuda(torch::Tensor a, torch::Tensor b);"

add = load_inline(name="add", cpp_sources=cpp_source, cuda_sources=cuda_source, functions=["add_cuda"])


class ModelNew(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.add = add

    def forward(self, a, b):
        return self.add.add_cuda(a.contiguous(), b.contiguous())
'''

_STATEMENT = """You speed up PyTorch models by writing CUDA kernels for them.

You may replace any operators of the given architecture with your own CUDA kernels and leave the others as they are. \
Choose freely which to replace, fuse several into one kernel (a matrix product with its activation, say), or use a \
better algorithm (an online softmax, say).
"""

_EXAMPLE = f"""Here is the form of an answer, on a small architecture whose kernel is compiled inline:
```python
{EXAMPLE_PROBLEM}```

The same architecture with its operator replaced by a CUDA kernel:
```python
{EXAMPLE_KERNEL}```
"""

_INSTRUCTION = """Optimise the architecture named Model with custom CUDA kernels. Call the optimised architecture \
ModelNew. Give the whole new file in one code block. It must be real code that compiles and runs, not pseudo-code. \
Write no tests and no text besides the code.
"""

_INFILL_STATEMENT = """You speed up PyTorch models by writing CUDA kernels for them.

You are given an architecture, which says what is to be computed, and the beginning and end of a file that computes \
the same with CUDA. Write the C++ code that is missing between them, so that the file computes what the architecture \
does. Keep to the names and the launch code that the given parts use.
"""

_INFILL_INSTRUCTION = """Write the missing core: the CUDA C++ source that stands between this beginning and this end. \
Then give the whole file, beginning and end unchanged, in one code block. It must be real code that compiles and runs. \
Write no tests and no text besides the code.
"""


_COMPACT = "Write ModelNew with a CUDA kernel.\n```python\n"


def one_shot(problem: Problem) -> str:
    """KernelBench's one-shot prompt in our words: statement, example pair, architecture, instruction (paper A.1.2)."""
    return "\n".join((_STATEMENT, _EXAMPLE, _architecture(problem), _INSTRUCTION))


def infill(problem: Problem, parts: KernelParts) -> str:
    """The one-shot prompt with the kernel's prefix and suffix given (paper A.1.1); the reply is the whole file."""
    return "\n".join((_STATEMENT, _EXAMPLE, _architecture(problem), _given(parts), _INFILL_INSTRUCTION))


def infill_with_example(problem: Problem, parts: KernelParts) -> str:
    """The infilling prompt in the released code's form, in our words and with our example kernel (paper A.1.1).

    The example shows what is asked for: an architecture, the beginning and end of its kernel file, and then the whole
    file. The reply is the whole file.
    """
    example = "\n".join((
        f"Here is an example. The architecture:\n```python\n{EXAMPLE_PROBLEM}```\n",
        _given(Kernel(EXAMPLE_KERNEL).split()),
        f"The whole file, with the missing core between the two:\n```python\n{EXAMPLE_KERNEL}```\n",
    ))  # fmt: skip
    return "\n".join((_INFILL_STATEMENT, example, _architecture(problem), _given(parts), _INFILL_INSTRUCTION))


def _given(parts: KernelParts) -> str:
    return f"The file begins:\n```python\n{parts.prefix}\n```\nand ends:\n```python\n{parts.suffix}\n```\n"


def compact(problem: Problem) -> str:
    """The compact prompt that DICE's small models are trained on: one line, then the architecture."""
    return f"{_COMPACT}{problem.source.strip()}\n```"


def is_compact(prompt: str) -> bool:
    """Whether it is of the form of `compact` or `infill_compact`."""
    return _COMPACT in prompt


PROMPTS = {"one-shot": one_shot, "compact": compact}


def infill_compact(problem: Problem, parts: KernelParts) -> str:
    """The compact prompt with the kernel's prefix and suffix given before it, so that it ends as `compact` does."""
    return _given(parts) + compact(problem)


def reply(kernel: Kernel) -> str:
    """The reply a model should give: the kernel file in one code fence. `extract_kernel` is its inverse."""
    return f"```python\n{kernel.source.strip()}\n```"


NO_KERNEL = Verdict("no_kernel", "extract", "The answer holds no kernel.")


MAX_REPLY = 4 << 20  # characters


def extract_kernel(text: str) -> Kernel | None:
    """The kernel file inside a model's reply, or None when the reply holds nothing that looks like one.

    Takes the first code fence with a `ModelNew`; else the first that imports torch or compiles something; else the
    text from the first line of code on when fences are missing. A fence that never closes (a truncated reply) counts.
    Thinking and chat control tokens are dropped first. A reply of more than `MAX_REPLY` characters holds none: no model
    writes so much but one that repeats itself.
    """
    if len(text) > MAX_REPLY:
        return None
    text = _without_thoughts(text)
    text = text.rpartition("</think>")[2]  # some chat templates open the thinking themselves
    text = re.sub(r"<\|[A-Za-z_]+\|>", "", text)
    if "<think>" in text:
        return None
    blocks = _fenced_blocks(text) or _unfenced(text)
    named = [block for block in blocks if re.search(r"\bModelNew\b", block)]
    plausible = [
        block for block in blocks if re.search(r"^[^\S\n]*(?:import|from)\s+torch\b|load_inline", block, re.MULTILINE)
    ]
    chosen = next(iter(named + plausible), "")
    return Kernel(chosen) if chosen.strip() else None


def first_fence(text: str) -> Kernel | None:
    """What the first code fence of a reply holds, whatever it is, without its language tag; None where none closes.

    So KernelBench reads a reply, and the paper with it: a reply that explains in a first fence and answers in a second
    has no right answer. Thoughts that close are dropped first, as an endpoint that separates them does.
    """
    if len(text) > MAX_REPLY:
        return None
    found = re.search(r"```(.*?)```", _without_thoughts(text).rpartition("</think>")[2], re.DOTALL)
    code = found[1].strip() if found else ""
    for tag in ("python", "cpp"):
        code = code.removeprefix(tag).strip()
    return Kernel(code) if code else None


def extract_problem(text: str) -> str | None:
    """The source of the problem inside a prompt, or None: the last code fence that defines `Model` with `get_inputs`.

    The last, because a one-shot prompt shows its example first. Templates indent what they should not: a fence that is
    Python only without its indentation, or without that of its first line, is taken so. A text of more than `MAX_REPLY`
    characters has none.
    """
    if len(text) > MAX_REPLY:
        return None
    for block in reversed(_fenced_blocks(text)):
        for source in (block, textwrap.dedent(block), block.lstrip()):
            if _defines(source, "Model", "get_inputs"):
                return source
    return None


def _defines(source: str, *names: str) -> bool:
    if not all(name in source for name in names):
        return False
    try:
        tree = syntax.parse(source)
    except (SyntaxError, ValueError):
        return False
    return {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)} >= set(names)


def _architecture(problem: Problem) -> str:
    return f"You are given this architecture:\n```python\n{problem.source.strip()}\n```\n"


def _without_thoughts(text: str) -> str:
    """Without every `<think>` and what follows it up to the next `</think>`; one that never closes is kept."""
    kept, position = [], 0
    while (start := text.find("<think>", position)) >= 0 and (end := text.find("</think>", start)) >= 0:
        kept.append(text[position:start])
        position = end + len("</think>")
    return "".join([*kept, text[position:]])


_FENCE = re.compile(r"[ \t]*(```+|~~~+)(.*)", re.DOTALL)
_TAG = re.compile(r"[\w+#.-]*")


def _fenced_blocks(text: str) -> list[str]:
    """Contents of ``` fences in order. An opening fence stands at the start of a line; a missing close is the end."""
    blocks: list[str] = []
    block: list[str] = []
    fence = ""  # that of the block at hand
    for line in re.findall(r"[^\n]*\n|[^\n]+", text):
        found = _FENCE.fullmatch(line)
        rest = found[2].removesuffix("\n").removesuffix("\r").strip(" \t") if found else ""
        if not fence:
            if found and line.endswith("\n") and _TAG.fullmatch(rest):
                fence = found[1]
        elif found and found[1] == fence and not rest:
            blocks.append("".join(block))
            block, fence = [], ""
        else:
            block.append(line)
    return [*blocks, "".join(block)] if fence else blocks


def _unfenced(text: str) -> list[str]:
    """The reply from its first line of Python on, without a stray fence line or a bare language tag."""
    lines = text.splitlines(keepends=True)
    for index, line in enumerate(lines):
        if re.match(r"(import|from)\s+\w+|class\s+ModelNew\b|@", line):
            return ["".join(rest for rest in lines[index:] if not rest.strip().startswith("```"))]
    return []
