"""The form in which this project writes kernel files: one CUDA source, one host function, one `ModelNew`."""

from __future__ import annotations

_FORM = '''import torch
import torch.nn as nn
{imports}from torch.utils.cpp_extension import load_inline

{before}cuda_source = """
{cuda}
"""

cpp_source = "{declaration};"

ops = load_inline(
    name="{name}",
    cpp_sources=cpp_source,
    cuda_sources=cuda_source,
    functions=["{function}"],
    verbose=False,
)


class ModelNew(nn.Module):
{constructor}    def forward(self, {arguments}):
{body}
'''


def kernel_file(
    *,
    cuda: str,
    declaration: str,
    name: str,
    function: str,
    constructor: str,
    arguments: str,
    body: str,
    imports: str = "",
    before: str = "",
) -> str:
    """The file's text. `declaration`: of the host function, which Python calls `ops.FUNCTION`. `constructor`: an
    indented method and an empty line, or "". `arguments`: of `forward`, without `self`. `body`: its indented lines.
    `imports`, `before`: lines among the imports and behind them."""
    return _FORM.format(
        imports=imports,
        before=before,
        cuda=cuda,
        declaration=declaration,
        name=name,
        function=function,
        constructor=constructor,
        arguments=arguments,
        body=body,
    )
