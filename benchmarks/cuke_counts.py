"""The chain from the published sets' own forms to CuKe, at the paper's counts, with planted outcomes.

    python benchmarks/cuke_counts.py OUT [--scale 1.0]

Writes ConCuR (4,842 rows), cudaLLM's answers (8,920) and measured structural candidates (291) in the forms in which
they are published, imports them by `dice data import`, plants verdicts whose speed-ups have the counts of the paper,
and curates by `dice data cuke` at each threshold of Table 4, with --keep-base and without. Nothing is compiled or
timed: what is shown is that the rules come to 7,940, 6,303 and 5,685 (sections 3 and 5.3), and in how long. Exit code 1
when a count differs. `--scale` shrinks every count. The report is OUT/cuke_counts.json.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dice.cli import main as dice
from dice.data.sample import Sample, read_samples, write_samples
from dice.files.atomic import write_json
from dice.verdict import Timing, Verdict

BASE, CUDALLM, CANDIDATES, STRUCTURAL = 4842, 8920, 291, 36
FASTER = {1.5: 7940 - BASE - STRUCTURAL, 2.0: 1425, 2.5: 5685 - BASE - STRUCTURAL}  # of cudaLLM, than each threshold
WRONG_BASE = 0.05  # of the base, by this plan; the paper does not say how much of ConCuR is wrong
STEPS = 12  # statements in a row, of random structure and with operators of random names: no two rows are near copies


def expression(rng: random.Random, depth: int = 3) -> str:
    """A sum, difference, product or quotient, of `v` and 2, in brackets that are valid in Python and in CUDA C++."""
    if depth == 0 or rng.random() < 0.3:
        return rng.choice(("v", "2"))
    return f"({expression(rng, depth - 1)} {rng.choice('+-*/')} {expression(rng, depth - 1)})"


def problem(rng: random.Random, steps: list[str]) -> str:
    lines = "".join(f"        v = torch.operator_{rng.randrange(10**6)}({step})\n" for step in steps)
    return (
        "import torch\nimport torch.nn as nn\n\n\nclass Model(nn.Module):\n    def forward(self, v):\n"
        f"{lines}        return v\n\n\ndef get_inputs():\n    return [torch.rand(4, 8)]\n\n\n"
        "def get_init_inputs():\n    return []\n"
    )


def kernel(steps: list[str]) -> str:
    lines = "".join(f"    v = {step};\n" for step in steps)
    return (
        "import torch\nimport torch.nn as nn\nfrom torch.utils.cpp_extension import load_inline\n\n"
        f'source = """\n__global__ void f(float* x) {{\n    float v = *x;\n{lines}    *x = v;\n}}\n"""\n\n\n'
        "class ModelNew(nn.Module):\n    def forward(self, x):\n        return x\n"
    )


def pairs(count: int, seed: int) -> Iterator[tuple[str, str]]:
    rng = random.Random(seed)
    for _ in range(count):
        steps = [expression(rng) for _ in range(STEPS)]
        yield problem(rng, steps), kernel(steps)


def write_sources(out: Path, counts: dict[str, int]) -> None:
    """Each set in its own form: an Arrow stream, Parquet, JSON lines."""
    thought = "Each value is read once and written once, so that one kernel does the whole chain without a detour. " * 2
    rows = [{"pytorch_code": one, "reasoning": thought, "cuda_code": two} for one, two in pairs(counts["base"], seed=1)]
    table = pa.Table.from_pylist(rows)
    (out / "ConCuR").mkdir(parents=True, exist_ok=True)
    with (
        pa.OSFile(str(out / "ConCuR" / "data-00000-of-00001.arrow"), "wb") as sink,
        pa.ipc.new_stream(sink, table.schema) as stream,
    ):
        stream.write_table(table)
    rows = [
        {
            "prompts": f"Write ModelNew for this architecture:\n```python\n{one}```\n",
            "responses": f"<think>\n{thought}\n</think>\n```python\n{two}```",
        }
        for one, two in pairs(counts["cudallm"], seed=2)
    ]
    pq.write_table(pa.Table.from_pylist(rows), out / "sft_cuda_llm_r1.parquet")
    lines = (json.dumps({"problem": one, "kernel": two}) for one, two in pairs(counts["candidates"], seed=3))
    (out / "structural.jsonl").write_text("\n".join(lines) + "\n")


def timed(speedup: float) -> Verdict:
    low, high = 0.99 * speedup, 1.01 * speedup
    return Verdict("correct", "done", timing=Timing(1 / speedup, 1.0, speedup, 8, speedup_low=low, speedup_high=high))


def plant(path: Path, out: Path, counts: dict[str, int]) -> None:
    """Verdicts by place: the first rows of each set are the fastest, the last of the base are wrong."""
    place: dict[str, int] = {}

    def judged(sample: Sample) -> Sample:
        number = place.setdefault(sample.source, 0)
        place[sample.source] += 1
        if sample.source == "concur":
            wrong = number >= counts["base"] - counts["wrong"]
            return replace(sample, verdict=Verdict("wrong", "compare") if wrong else timed(0.7))
        if sample.source == "own":
            return replace(sample, verdict=timed(1.4 if number < counts["structural"] else 1.0))
        edges = ((2.8, counts["2.5"]), (2.2, counts["2.0"]), (1.7, counts["1.5"]))
        return replace(sample, verdict=timed(next((value for value, count in edges if number < count), 1.1)))

    write_samples(out, map(judged, read_samples(path)))


def run(out: Path, scale: float) -> dict[str, object]:
    counts = {"base": BASE, "cudallm": CUDALLM, "candidates": CANDIDATES, "structural": STRUCTURAL}
    counts |= {f"{threshold}": count for threshold, count in FASTER.items()} | {"wrong": round(WRONG_BASE * BASE)}
    counts = {name: max(1, round(scale * count)) for name, count in counts.items()}
    seconds: dict[str, float] = {}

    def step(name: str, *arguments: str | Path) -> None:
        started = time.perf_counter()
        if dice(["data", *map(str, arguments)]):
            sys.exit(f"dice data {arguments[0]} failed")
        seconds[name] = round(time.perf_counter() - started, 1)

    pool = out / "pool"
    write_sources(pool, counts)
    step("import", "import", pool / "ConCuR", pool / "sft_cuda_llm_r1.parquet", "-o", out / "samples.parquet")
    step("import structural", "import", pool / "structural.jsonl", "-o", out / "structural.parquet")
    plant(out / "samples.parquet", out / "judged.parquet", counts)
    plant(out / "structural.parquet", out / "judged_structural.parquet", counts)
    found, expected = {}, {}
    for threshold in FASTER:
        for keep in (True, False):
            name = f"{threshold}x{', base as it is' if keep else ''}"
            folder = out / f"cuke-{threshold}{'-kept' if keep else ''}"
            flags = ["--keep-base"] if keep else []
            given: list[str | Path] = [out / "judged.parquet", "--structural", out / "judged_structural.parquet"]
            step(f"cuke {name}", "cuke", *given, "-o", folder, "--min-speedup", str(threshold), *flags)
            report = json.loads((folder / "report.json").read_text())
            found[name] = {"kept": report["kept"], **report["parts"], "checked": report["checked"]}
            base = counts["base"] - (0 if keep else counts["wrong"])
            expected[name] = base + counts["structural"] + counts[str(threshold)]
    broken = {name: count for name, count in expected.items() if found[name]["kept"] != count}
    return {"scale": scale, "planted": counts, "found": found, "not as expected": broken, "seconds": seconds}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--scale", type=float, default=1.0, help="of every count; 1 is the paper's")
    args = parser.parse_args()
    found = run(args.out, args.scale)
    write_json(args.out / "cuke_counts.json", found)
    print(json.dumps(found, indent=1))
    return 1 if found["not as expected"] else 0


if __name__ == "__main__":
    sys.exit(main())
