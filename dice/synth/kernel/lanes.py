"""Elements four at a time: what a kernel that is bound by memory gains most from."""

from __future__ import annotations

import random
import re

from dice.synth.kernel.cuda import KernelFile

_HERE = re.compile(r"\b([a-z]+)\[i\]")
_PLACE = re.compile(r"\bi\b")


def spread(file: KernelFile, rng: random.Random, text: str, integers: tuple[str, ...] = ("n",)) -> tuple[str, str, str]:
    """Kernel, launch and style of `text`, which sets `v` from the elements at `i`: four at a time where they are all
    that it reads, else one by one."""
    alone = not _PLACE.search(_HERE.sub("", text)) and tuple(integers) == ("n",)
    if not alone or any(tensor.type != "float" for tensor in file.tensors) or rng.random() < 0.35:
        return file.sweep(rng, text, integers)
    names = [tensor.name for tensor in file.tensors]
    scalars = [name for name in file.floats if re.search(rf"\b{name}\b", text)]
    body = _HERE.sub(r"\1", re.sub(r"(?m)^ {4}", "", text))
    parameters = ", ".join(f"float {name}" for name in (*names, *scalars))
    loads = ", ".join(f"{name}4 = *reinterpret_cast<const float4*>({name} + i)" for name in names)

    def element(form: str) -> str:
        return f"element({', '.join([*(form.format(name) for name in names), *scalars])})"

    code = f"__device__ float element({parameters}) {{\n{body}    return v;\n}}\n\n"
    code += file.kernel(
        "    int i = (blockIdx.x * blockDim.x + threadIdx.x) * 4;\n    if (i + 3 < n) {\n"
        f"        float4 {loads}, q;\n"
        + "".join(f"        q.{lane} = {element('{}4.' + lane)};\n" for lane in "xyzw")
        + "        *reinterpret_cast<float4*>(out + i) = q;\n    } else {\n"
        f"        for (; i < n; i++) out[i] = {element('{}[i]')};\n    }}\n",
        ["n"],
    )
    return code, file.launch("(n + 1023) / 1024, 256", ["n"]), "float4"
