"""The path that others take, as a program: a fresh Python, PyTorch's own `load_inline`, one run, one comparison.

    python -P stock.py PROBLEM.py KERNEL.py     (TORCH_EXTENSIONS_DIR names an empty folder)

Prints one JSON line. It is the yardstick of `dice bench verify`, and shares nothing with the verifier.
"""

from __future__ import annotations

import json
import sys
import time
import types
from pathlib import Path
from typing import Any

TOLERANCE = 1e-2  # KernelBench's of 2025


def main(problem: Path, kernel: Path) -> dict[str, Any]:
    began = time.time()
    import torch
    from torch.utils import cpp_extension

    report: dict[str, Any] = {"import_s": time.time() - began, "build_began": 0.0, "build_ended": 0.0, "correct": None}
    load_inline: Any = cpp_extension.load_inline

    def timed_load_inline(*args: Any, **keywords: Any) -> Any:
        report["build_began"] = report["build_began"] or time.time()
        try:
            return load_inline(*args, **keywords)
        finally:
            report["build_ended"] = time.time()

    cpp_extension.load_inline = timed_load_inline
    device = "cuda" if torch.cuda.is_available() else "cpu"
    candidate = _load(kernel, "kernel")
    if hasattr(candidate, "ModelNew"):  # a bare extension has none: it is only built and called
        reference = _load(problem, "problem")
        report["correct"] = _agree(reference, candidate, device)
    return report | {"total_s": time.time() - began}


def _load(path: Path, name: str) -> types.ModuleType:
    module = types.ModuleType(name)
    exec(compile(path.read_bytes(), str(path), "exec"), module.__dict__)
    return module


def _agree(reference: types.ModuleType, candidate: types.ModuleType, device: str) -> bool:
    import torch

    outputs = []
    for make in (reference.Model, candidate.ModelNew):
        torch.manual_seed(42)
        model = make(*reference.get_init_inputs()).to(device)
        torch.manual_seed(43)
        inputs = [item.to(device) if isinstance(item, torch.Tensor) else item for item in reference.get_inputs()]
        with torch.no_grad():
            outputs.append(model(*inputs))
    expected, actual = outputs
    return expected.shape == actual.shape and torch.allclose(expected, actual, atol=TOLERANCE, rtol=TOLERANCE)


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), Path(sys.argv[2]))))
