"""A mixed pool of pairs that stands in for the published sets, each in its own file format, with what to expect of it.

The content is synthetic. Planted among right pairs: slow ones, wrong and broken ones, deceptive ones, exact and near
copies, look-alikes of a benchmark, problems that teach nothing. `write_pool` writes

    pool/cudaLLM/sft_cuda_llm_r1.parquet       prompts, responses, original_python_code
    pool/ConCuR/data-00000-of-00001.arrow      pytorch_code, reasoning, cuda_code
    pool/DICE/CuKe_dataset.json                prompt, response
    pool/mine.jsonl                            problem, kernel
    pool/structural.jsonl                      problem, kernel
    pool/benchmark/level1/*.py                 the benchmark that is to be kept out
    truth.json                                 what each row is
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from mutants import CASES, EDITS

from dice import prompts, synth
from dice.kernel import Kernel
from dice.problem import Problem

SOURCES = ("cudallm-sft", "concur", "cuke-released", "own", "structural")
FILES = {
    "cudallm-sft": "cudaLLM/sft_cuda_llm_r1.parquet",
    "concur": "ConCuR/data-00000-of-00001.arrow",
    "cuke-released": "DICE/CuKe_dataset.json",
    "own": "mine.jsonl",
    "structural": "structural.jsonl",
}
SHARES = {  # of all rows; where each kind is planted follows from `_source`
    "right": 0.68,
    "slow": 0.07,
    "wrong": 0.10,
    "deceptive": 0.03,
    "exact copy": 0.05,
    "near copy": 0.05,
    "look-alike": 0.01,
    "degenerate": 0.01,
}
BROKEN = ("syntax_error", "missing_symbol", "raises", "no_model", "undeclared")  # edits that no luck makes right
SLOWER = 8
THINKING = "The output needs one pass over the input, so I map elements to threads and fuse what follows. "
DEGENERATE = """import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, {name}):
        return ({name} - {name}) * {number}.0


def get_inputs():
    return [torch.randn({number}, 32)]


def get_init_inputs():
    return []
"""


@dataclass(frozen=True)
class Row:
    """One row of the pool. Rows of one `group` are copies of each other: no more than one may be kept."""

    kind: str
    group: int
    source: str
    problem: str
    kernel: str
    composition: str = ""
    reasoning: str = THINKING
    family: str = ""  # of the synthetic pair that it was made of


def make(count: int, seed: int) -> list[Row]:
    """The rows, shuffled; the same for the same arguments."""
    rng = random.Random(seed)
    wanted = {kind: max(1, round(share * count)) for kind, share in SHARES.items()}
    drawn = _drawn(seed)
    rows = [_row("right", pair, rng) for pair in _take(drawn, wanted["right"])]
    rows[: len(SOURCES)] = [replace(row, source=source) for row, source in zip(rows, SOURCES, strict=False)]
    rows += [
        replace(_row("slow", pair, rng), kernel=slower(pair.kernel.source)) for pair in _take(drawn, wanted["slow"])
    ]
    rows += [_wrong(next(drawn), rng, number) for number in range(wanted["wrong"])]
    rows += list(_deceptive(wanted["deceptive"], rng))
    originals = rng.sample(rows[: wanted["right"]], min(wanted["right"], wanted["exact copy"] + wanted["near copy"]))
    rows += [_copy(row, rng) for row in originals[: wanted["exact copy"]]]
    rows += [_near_copy(row, rng) for row in originals[wanted["exact copy"] :]]
    rows += [_row("look-alike", pair, rng) for pair in _look_alikes(seed, wanted["look-alike"])]
    rows += [_degenerate(number, rng) for number in range(wanted["degenerate"])]
    groups: dict[str, int] = {}
    numbered = [
        replace(row, group=groups.setdefault(row.composition or f"{n}", len(groups))) for n, row in enumerate(rows)
    ]
    rng.shuffle(numbered)
    return numbered


def slower(kernel: str) -> str:
    """The same module, doing its work many times over in its own kernels."""
    again = f"""

class ModelNew(ModelOnce):
    def forward(self, *inputs):
        for _ in range({SLOWER - 1}):
            super().forward(*inputs)
        return super().forward(*inputs)
"""
    once = kernel.replace("super(ModelNew, self)", "super()").replace("class ModelNew(", "class ModelOnce(")
    return once.rstrip() + "\n" + again


def off_by_one(kernel: str) -> str:
    """The same module with every value of its output a little off."""
    wrong = """

class ModelNew(ModelRight):
    def forward(self, *inputs):
        return super().forward(*inputs) * 1.03 + 0.25
"""
    right = kernel.replace("super(ModelNew, self)", "super()").replace("class ModelNew(", "class ModelRight(")
    return right.rstrip() + "\n" + wrong


def benchmark(seed: int, count: int) -> dict[str, str]:
    """Problems to keep out, by file name: those of the look-alikes under other names, sizes and words."""
    return {
        f"{n}_planted.py": _reworded(pair.check_problem.source) for n, pair in enumerate(_look_alikes(seed, count), 1)
    }


def write_pool(out: Path, count: int, seed: int) -> list[Row]:
    """Write the files and return the rows."""
    rows = make(count, seed)
    pool = out / "pool"
    for source, write in WRITERS.items():
        path = pool / FILES[source]
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, [row for row in rows if row.source == source])
    level = pool / "benchmark" / "level1"
    level.mkdir(parents=True, exist_ok=True)
    for name, source in benchmark(seed, max(1, round(SHARES["look-alike"] * count))).items():
        (level / name).write_text(source)
    (out / "truth.json").write_text(json.dumps([asdict(row) for row in rows], indent=0) + "\n")
    return rows


def read_truth(out: Path) -> list[Row]:
    return [Row(**row) for row in json.loads((out / "truth.json").read_text())]


# -- kinds -------------------------------------------------------------------------------------------------------------


def _drawn(seed: int) -> Iterator[synth.Pair]:
    """Pairs of distinct kernels and compositions, without end."""
    seen: set[str] = set()
    index = 0
    while True:
        pair = synth.generate(seed, index)
        index += 1
        key = f"{pair.composition} {pair.style}"
        if key not in seen:
            seen.add(key)
            yield pair


def _take(pairs: Iterator[synth.Pair], count: int) -> list[synth.Pair]:
    return [next(pairs) for _ in range(count)]


def _look_alikes(seed: int, count: int) -> list[synth.Pair]:
    """Of a sequence of their own. Longer programs: a benchmark of single operators would be near too much."""
    found: list[synth.Pair] = []
    index = 0
    while len(found) < count:
        pair = synth.generate(seed + 77, index)
        index += 1
        if len(pair.operators) >= 3 and pair.composition not in {one.composition for one in found}:
            found.append(pair)
    return found


def _row(kind: str, pair: synth.Pair, rng: random.Random) -> Row:
    key = f"{kind if kind in ('look-alike', 'slow') else 'pair'} {pair.composition} {pair.style}"
    return Row(kind, 0, _source(rng), pair.check_problem.source, pair.kernel.source, key, family=pair.family)


def _source(rng: random.Random) -> str:
    return rng.choices(SOURCES, (0.50, 0.28, 0.08, 0.10, 0.04))[0]


def _wrong(pair: synth.Pair, rng: random.Random, number: int) -> Row:
    kinds = ("off_by_one", *BROKEN)
    kind = kinds[number % len(kinds)]
    source = off_by_one(pair.kernel.source) if kind == "off_by_one" else EDITS[kind](pair.kernel.source, rng)
    if source is None or kind == "no_model":
        source = off_by_one(pair.kernel.source)  # a file without ModelNew is no kernel to any reader
    return replace(_row("wrong", pair, rng), kernel=source, composition=f"wrong {number}")


def _deceptive(count: int, rng: random.Random) -> Iterator[Row]:
    """The cases of the test suite that the verifier calls deceptive, made distinct by a comment."""
    cases = []
    for path in sorted(CASES.glob("deceptive_*.py")):
        kernel = path.read_text()
        problem = re.search(r"^# problem: (\w+)", kernel, re.MULTILINE)
        if problem and "ModelNew" in kernel and "inherits" not in path.stem:
            cases.append(((CASES / "problems" / f"{problem[1]}.py").read_text(), _without_header(kernel)))
    for number in range(count):
        problem_text, kernel = cases[number % len(cases)]
        yield Row(
            "deceptive", 0, _source(rng), problem_text, f"{kernel.rstrip()}\n# variant {number}\n", f"lie {number}"
        )


def _without_header(kernel: str) -> str:
    return re.sub(r"\A(?:# [\w-]+: .*\n)+\s*", "", kernel)


def _copy(row: Row, rng: random.Random) -> Row:
    """Elsewhere, with longer reasoning and, for every other one, other white space."""
    kernel = row.kernel.replace("\n\n\n", "\n\n\n\n") if rng.random() < 0.5 else row.kernel
    return replace(row, kind="exact copy", source=_source(rng), kernel=kernel, reasoning=THINKING * 3)


def _near_copy(row: Row, rng: random.Random) -> Row:
    """Elsewhere, with its functions renamed, a comment added and the prose changed."""
    kernel = Kernel(row.kernel)
    source = row.kernel
    for name in (*kernel.global_functions, *kernel.bound_functions):
        source = re.sub(rf"\b{name}\b", f"{name}_v2", source)
    source = source.replace("__global__", "// one thread for each element\n__global__", 1)
    problem = row.problem.replace("class Model(nn.Module):\n", 'class Model(nn.Module):\n    """A copy."""\n\n', 1)
    return replace(row, kind="near copy", source=_source(rng), kernel=source, problem=problem)


def _reworded(problem: str) -> str:
    text = re.sub(r'\n\s*"""(?:.|\n)*?"""', "", problem)
    text = re.sub(r"\b(\d{2,4})\b", lambda found: str(int(found[1]) + 3), text)
    return "# A benchmark's problem.\n" + text


def _degenerate(number: int, rng: random.Random) -> Row:
    """Problems that any constant answers: for the audit to find. They have no kernel."""
    return Row("degenerate", 0, "own", DEGENERATE.format(name=f"x{number}", number=number + 2), "", f"nothing {number}")


# -- files -------------------------------------------------------------------------------------------------------------


def _ask(row: Row) -> str:
    return prompts.one_shot(Problem(row.problem))


def _answer(row: Row) -> str:
    return f"{row.reasoning}\n\n{prompts.reply(Kernel(row.kernel))}"


def _write_cudallm(path: Path, rows: Sequence[Row]) -> None:
    columns = {
        "prompts": [[{"role": "user", "content": _ask(row)}] for row in rows],
        "responses": [f"<think>\n{row.reasoning}\n</think>\n\n{prompts.reply(Kernel(row.kernel))}" for row in rows],
        "original_python_code": [row.problem for row in rows],
    }
    pq.write_table(pa.table(columns), path)


def _write_concur(path: Path, rows: Sequence[Row]) -> None:
    columns = {
        "pytorch_code": [row.problem for row in rows],
        "reasoning": [row.reasoning for row in rows],
        "cuda_code": [row.kernel for row in rows],
    }
    table = pa.table(columns)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)


def _write_json(path: Path, rows: Sequence[Row]) -> None:
    path.write_text(json.dumps([{"prompt": _ask(row), "response": _answer(row)} for row in rows]))


def _write_lines(path: Path, rows: Sequence[Row]) -> None:
    lines: list[dict[str, Any]] = [{"problem": row.problem, "kernel": row.kernel} for row in rows]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


WRITERS: dict[str, Callable[[Path, Sequence[Row]], None]] = {
    "cudallm-sft": _write_cudallm,
    "concur": _write_concur,
    "cuke-released": _write_json,
    "own": _write_lines,
    "structural": _write_lines,
}
