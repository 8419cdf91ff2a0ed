"""Which form of a kernel is worth teaching: several right ones for one problem at a large size, timed side by side.

    python benchmarks/kernel_forms.py --out forms.json [--only softmax]

Each variant is verified and timed against eager PyTorch by `dice.verify`; needs an NVIDIA GPU. `--backend emulated`
checks them at small sizes on a CPU, without times. The corpus has the forms that are marked with *.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

from dice.files.atomic import write_json
from dice.kernel import Kernel
from dice.problem import Problem
from dice.verify import Options, Verifier

PROBLEM = """import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return {forward}

def get_inputs():
    return [torch.rand({shape})]

def get_init_inputs():
    return []
"""
FILE = '''import torch
from torch.utils.cpp_extension import load_inline

source = """
#include <torch/extension.h>
#include <cuda_runtime.h>
{helpers}
__global__ void kernel(const float* x, float* out, {integers}) {{
{body}
}}

torch::Tensor run(torch::Tensor x) {{
    {host}
    return out;
}}
"""
ops = load_inline("form", "torch::Tensor run(torch::Tensor x);", source, functions=["run"])

class ModelNew(torch.nn.Module):
    def forward(self, x):
        return ops.run(x.contiguous())
'''


def block_helper(kind: str, combine: str, threads: int = 256) -> str:
    warps = threads // 32
    return f"""
__device__ float block_{kind}(float v) {{
    __shared__ float s[{warps}];
    for (int k = 16; k > 0; k /= 2) {{
        float w = __shfl_xor_sync(0xffffffff, v, k);
        v = {combine};
    }}
    if (threadIdx.x % 32 == 0) s[threadIdx.x / 32] = v;
    __syncthreads();
    v = s[0];
    for (int k = 1; k < {warps}; k++) {{
        float w = s[k];
        v = {combine};
    }}
    __syncthreads();
    return v;
}}
"""


BLOCK_SUM, BLOCK_MAX = block_helper("sum", "v + w"), block_helper("max", "fmaxf(v, w)")
LIKE = "auto out = torch::empty_like(x);"
ROWS = f"{LIKE} int D = x.size(-1), rows = x.numel() / D;"
POINTERS = "x.data_ptr<float>(), out.data_ptr<float>()"


@dataclass(frozen=True)
class Form:
    body: str
    host: str
    integers: str
    helpers: str = ""

    @property
    def source(self) -> str:
        return FILE.format(body=self.body, host=self.host, integers=self.integers, helpers=self.helpers)


@dataclass(frozen=True)
class Race:
    """One problem and the forms of its kernel."""

    forward: str
    large: str
    small: str
    forms: dict[str, Form]


def element(body: str, grid: str) -> Form:
    return Form(body, f"{LIKE} int n = x.numel(); kernel<<<{grid}, 256>>>({POINTERS}, n);", "int n")


def per_row(body: str, helpers: str, threads: int = 256) -> Form:
    return Form(body, f"{ROWS} kernel<<<rows, {threads}>>>({POINTERS}, D);", "int D", helpers)


ROW = "    int row = blockIdx.x, base = row * D;\n"
SOFTMAX_END = """    for (int j = threadIdx.x; j < D; j += 256) out[base + j] = expf(x[base + j] - m) / s;"""
MOMENTS_END = "    for (int j = threadIdx.x; j < D; j += 256) out[base + j] = (x[base + j] - mean) * scale;"
REDUCE = """auto out = torch::empty({x.size(0), x.size(2)}, x.options());
    int D = x.size(1), inner = x.size(2), n = out.numel();"""


def reduce_form(body: str) -> Form:
    host = f"{REDUCE} kernel<<<(n + 255) / 256, 256>>>({POINTERS}, D, inner, n);"
    return Form(body, host, "int D, int inner, int n")


def reduce_body(unroll: str) -> str:
    return f"""    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int base = i / inner * D * inner + i % inner;
    float s = 0.0f;
    {unroll}
    for (int j = 0; j < D; j++) s += x[base + j * inner];
    out[i] = s;"""


CHANNELS = f"{LIKE} int C = x.size(1), inner = x.stride(1), D = x.numel() / C;"


def channel_form(threads: int) -> Form:
    at = "(j / inner * C + row) * inner + j % inner"
    loop = f"for (int j = threadIdx.x; j < D; j += {threads})"
    body = f"""    int row = blockIdx.x;
    float s = 0.0f, q = 0.0f;
    {loop} s += x[{at}];
    float mean = block_sum(s) / D;
    {loop} {{ float d = x[{at}] - mean; q += d * d; }}
    float scale = rsqrtf(block_sum(q) / D + 1e-5f);
    {loop} out[{at}] = (x[{at}] - mean) * scale;"""
    host = f"{CHANNELS} kernel<<<C, {threads}>>>({POINTERS}, D, C, inner);"
    return Form(body, host, "int D, int C, int inner", block_helper("sum", "v + w", threads))


RACES = {
    "elementwise": Race(
        "torch.nn.functional.softplus(x)",
        "4096, 65536",
        "64, 96",
        {
            "one a thread *": element(
                """    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[i] > 20.0f ? x[i] : log1pf(expf(x[i]));""",
                "(n + 255) / 256",
            ),
            "float4": element(
                """    int i = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
    if (i + 3 < n) {
        float4 v = *(const float4*)(x + i);
        v.x = v.x > 20.0f ? v.x : log1pf(expf(v.x));
        v.y = v.y > 20.0f ? v.y : log1pf(expf(v.y));
        v.z = v.z > 20.0f ? v.z : log1pf(expf(v.z));
        v.w = v.w > 20.0f ? v.w : log1pf(expf(v.w));
        *(float4*)(out + i) = v;
    } else {
        for (; i < n; i++) out[i] = x[i] > 20.0f ? x[i] : log1pf(expf(x[i]));
    }""",
                "(n / 4 + 256) / 256",
            ),
            "four a thread": element(
                """    int first = blockIdx.x * 1024 + threadIdx.x;
    for (int t = 0; t < 4; t++) {
        int i = first + t * 256;
        if (i < n) out[i] = x[i] > 20.0f ? x[i] : log1pf(expf(x[i]));
    }""",
                "(n + 1023) / 1024",
            ),
        },
    ),
    "cheap elementwise": Race(
        "torch.relu(x)",
        "4096, 65536",
        "64, 96",
        {
            "one a thread *": element(
                """    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);""",
                "(n + 255) / 256",
            ),
            "float4": element(
                """    int i = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
    if (i + 3 < n) {
        float4 v = *(const float4*)(x + i);
        v = make_float4(fmaxf(v.x, 0.0f), fmaxf(v.y, 0.0f), fmaxf(v.z, 0.0f), fmaxf(v.w, 0.0f));
        *(float4*)(out + i) = v;
    } else {
        for (; i < n; i++) out[i] = fmaxf(x[i], 0.0f);
    }""",
                "(n / 4 + 256) / 256",
            ),
        },
    ),
    "softmax": Race(
        "torch.softmax(x, dim=1)",
        "2048, 131072",
        "8, 700",
        {
            "three passes": per_row(
                ROW
                + """    float m = -INFINITY, s = 0.0f;
    for (int j = threadIdx.x; j < D; j += 256) m = fmaxf(m, x[base + j]);
    m = block_max(m);
    for (int j = threadIdx.x; j < D; j += 256) s += expf(x[base + j] - m);
    s = block_sum(s);
"""
                + SOFTMAX_END,
                BLOCK_SUM + BLOCK_MAX,
            ),
            "online *": per_row(
                ROW
                + """    float m = -1e30f, s = 0.0f;
    for (int j = threadIdx.x; j < D; j += 256) {
        float d = x[base + j], t = fmaxf(m, d);
        s = s * expf(m - t) + expf(d - t);
        m = t;
    }
    float t = m;
    m = block_max(m);
    s = block_sum(s * expf(t - m));
"""
                + SOFTMAX_END,
                BLOCK_SUM + BLOCK_MAX,
            ),
        },
    ),
    "layer norm": Race(
        "torch.nn.functional.layer_norm(x, x.shape[1:])",
        "4096, 65536",
        "8, 700",
        {
            "two passes *": per_row(
                ROW
                + """    float s = 0.0f, q = 0.0f;
    for (int j = threadIdx.x; j < D; j += 256) s += x[base + j];
    float mean = block_sum(s) / D;
    for (int j = threadIdx.x; j < D; j += 256) { float d = x[base + j] - mean; q += d * d; }
    float scale = rsqrtf(block_sum(q) / D + 1e-5f);
"""
                + MOMENTS_END,
                BLOCK_SUM,
            ),
            "one pass, shifted": per_row(
                ROW
                + """    float s = 0.0f, q = 0.0f, first = x[base];
    for (int j = threadIdx.x; j < D; j += 256) { float d = x[base + j] - first; s += d; q += d * d; }
    s = block_sum(s) / D;
    q = block_sum(q) / D - s * s;
    float mean = first + s, scale = rsqrtf(q + 1e-5f);
"""
                + MOMENTS_END,
                BLOCK_SUM,
            ),
        },
    ),
    "batch norm": Race(
        "torch.nn.functional.batch_norm(x, None, None, training=True)",
        "64, 64, 256, 256",
        "4, 6, 9, 9",
        {"256 threads a channel *": channel_form(256), "1024 threads a channel": channel_form(1024)},
    ),
    "sum over a middle dimension": Race(
        "x.sum(dim=1)",
        "64, 4096, 1024",
        "3, 40, 64",
        {
            "one a thread *": reduce_form(reduce_body("")),
            "unrolled by 8": reduce_form(reduce_body("#pragma unroll 8")),
            "unrolled by 16": reduce_form(reduce_body("#pragma unroll 16")),
        },
    ),
    "cumulative sum": Race(
        "torch.cumsum(x, dim=1)",
        "16384, 16384",
        "8, 700",
        {
            "256 in shared memory": per_row(
                ROW
                + """    __shared__ float p[256];
    float s = 0.0f;
    for (int top = 0; top < D; top += 256) {
        int j = top + threadIdx.x;
        p[threadIdx.x] = j < D ? x[base + j] : 0.0f;
        __syncthreads();
        for (int k = 1; k < 256; k *= 2) {
            float before = threadIdx.x >= k ? p[threadIdx.x - k] : 0.0f;
            __syncthreads();
            p[threadIdx.x] = before + p[threadIdx.x];
            __syncthreads();
        }
        if (j < D) out[base + j] = s + p[threadIdx.x];
        s = s + p[255];
        __syncthreads();
    }""",
                "",
            ),
            "warps *": per_row(
                ROW
                + """    __shared__ float p[8];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float s = 0.0f;
    for (int top = 0; top < D; top += 256) {
        int j = top + threadIdx.x;
        float v = j < D ? x[base + j] : 0.0f;
        for (int k = 1; k < 32; k *= 2) {
            float before = __shfl_up_sync(0xffffffff, v, k);
            if (lane >= k) v = before + v;
        }
        if (lane == 31) p[warp] = v;
        __syncthreads();
        for (int k = 0; k < 8; k++) {
            if (k == warp) v = s + v;
            s = s + p[k];
        }
        __syncthreads();
        if (j < D) out[base + j] = v;
    }""",
                "",
            ),
        },
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", choices=sorted(RACES))
    parser.add_argument("--backend", choices=("cuda", "emulated"), default="cuda")
    parser.add_argument("--timing-seconds", type=float, default=1.0)
    args = parser.parse_args()
    entries = [
        (name, kind, race.large if args.backend == "cuda" else race.small, race, form)
        for name, race in RACES.items()
        if args.only in (None, name)
        for kind, form in race.forms.items()
    ]
    pairs = [
        (Problem(PROBLEM.format(forward=race.forward, shape=shape), name=name), Kernel(form.source))
        for name, _, shape, race, form in entries
    ]
    found = []
    with Verifier(backend=args.backend, options=Options(timing_s=args.timing_seconds)) as verifier:
        for (name, kind, shape, race, _), (_, verdict) in zip(
            entries, verifier.verify_many(pairs, ordered=True), strict=True
        ):
            timing = verdict.timing
            row: dict[str, str | float] = {"problem": name, "forward": race.forward, "shape": shape, "form": kind}
            row |= {"outcome": verdict.outcome, "message": verdict.message}
            row |= {"device": verdict.device, "toolchain": verdict.toolchain}
            if timing is not None:
                row |= {"kernel_ms": timing.kernel_ms, "reference_ms": timing.reference_ms, "speedup": timing.speedup}
                row |= {"speedup_low": timing.speedup_low, "speedup_high": timing.speedup_high}
                row |= {"of_roofline": timing.ceiling_ms / timing.kernel_ms}
            found.append(row)
            figures = (
                f"{timing.kernel_ms:.3f} ms, {timing.speedup:.2f}x" if timing is not None else verdict.message[:200]
            )
            print(f"{name:30} {kind:25} {verdict.outcome:10} {figures}", flush=True)
    write_json(args.out, {"rows": found})
    return 0 if all(row["outcome"] == "correct" for row in found) else 1


if __name__ == "__main__":
    sys.exit(main())
