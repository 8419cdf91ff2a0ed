"""Sums of products over any dimensions, as `einsum`, bilinear layers and broadcast products write them."""

from __future__ import annotations

import random
import re

from dice.synth.kernel.cuda import KernelFile, Tensor, lines
from dice.synth.problem.builder import ProblemBuilder
from dice.synth.problem.chain import ChainState, Step, chain_length, chains, draw_chain
from dice.synth.problem.plan import Draft, Plan
from dice.synth.problem.shapes import describe, sentence
from dice.synth.problem.tensors import Value
from dice.synth.tables.equations import EQUATIONS, SIZES, Equation

NAME = "contraction"
_STATE = ChainState("any", 30.0, False)
# A warp for each output: its lanes share the last dimension that is summed.
WARP = """    int i = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (i >= n) return;
{unpacked}    float v = 0.0f;
{sum}    for (int t = 16; t > 0; t /= 2) v += __shfl_xor_sync(0xffffffff, v, t);
    if (lane == 0) {{
{store}    }}
"""
# 16 x 16 outputs for each block: tiles of both operands are loaded into shared memory, each element once.
TILE = """    __shared__ float xs[16][17], ys[16][17];
    int {row} = blockIdx.y * 16 + threadIdx.y, {column} = blockIdx.x * 16 + threadIdx.x, rest = blockIdx.z;
    int other = blockIdx.x * 16 + threadIdx.y;
{unpacked}    float v = 0.0f;
    for (int top = 0; top < {depth}; top += 16) {{
        int {summed} = top + threadIdx.x;
        xs[threadIdx.y][threadIdx.x] = {row} < {rows} && {summed} < {depth} ? {x} : 0.0f;
        ys[threadIdx.y][threadIdx.x] = other < {columns} && {summed} < {depth} ? {y} : 0.0f;
        __syncthreads();
        for (int t = 0; t < 16; t++) v += xs[threadIdx.y][t] * ys[threadIdx.x][t];
        __syncthreads();
    }}
    if ({row} < {rows} && {column} < {columns}) {{
{store}    }}
"""


def sample(rng: random.Random) -> Plan:
    core = rng.choice(tuple(EQUATIONS))
    post = draw_chain(rng, chain_length(rng, (3, 4, 2, 1)), _STATE)
    return Plan(NAME, core, chains(post=post), (f"rank={len(EQUATIONS[core].result)}",))


def render(plan: Plan, rng: random.Random) -> Draft:
    equation = EQUATIONS[plan.core]
    builder = ProblemBuilder(rng, keep_inputs=True)
    letters = dict.fromkeys("".join(equation.operands))
    marks = {
        letter: builder.tensors.dimension(SIZES[letter][0], *map(rng.choice, SIZES[letter][1:])) for letter in letters
    }
    names = "xyz"[: len(equation.operands)]
    fields, tensors = {}, []
    layer = equation.module if equation.module and rng.random() < 0.6 else ""
    for name, operand in zip(names, equation.operands, strict=True):
        shape = [marks[letter] for letter in operand]
        if name != equation.weight:
            fields[name] = builder.tensors.input(name, shape, "torch.randn({shape})").text
            tensors.append(Tensor(name, name))
        elif layer:
            sizes = {letter: _size(builder, letter, marks[letter]) for letter in "ijo"}
            fields["m"] = builder.attributes.add("linear", layer.format(**sizes), shared=True)
            tensors.append(Tensor(name, f"{fields['m']}.weight"))
        else:
            shown = ", ".join(_size(builder, letter, marks[letter]) for letter in operand)
            fields[name] = builder.attributes.parameter("weight", shown)
            tensors.append(Tensor(name, fields[name]))
    builder.tensors.results.append([marks[letter] for letter in equation.result])
    text = "{m}({x}, {z})" if layer else _spelled(rng, equation)
    value = builder.forward.apply(text, Value(fields.pop("x")), equation.phrase, **fields)
    value, post = builder.operators.chain(value, plan.chain("post"), state=_STATE)
    builder.finish(value)
    builder.title = sentence(equation.phrase, describe(plan.chain("post")))
    return _kernel(equation, KernelFile(builder, NAME, tensors), post)


def _size(builder: ProblemBuilder, letter: str, mark: str) -> str:
    """A size of a parameter: an argument of the constructor."""
    known = {item.value: item.name for item in builder.constructor.arguments}
    pool = (f"{SIZES[letter][0]}_size", f"dim_{letter}", f"num_{letter}")
    return known.get(mark) or builder.constructor.argument(pool, mark, "int")


def _spelled(rng: random.Random, equation: Equation) -> str:
    if equation.spellings and rng.random() < 0.5:
        return rng.choice(equation.spellings)
    operands = ", ".join(["{x}", "{y}", "{z}"][: len(equation.operands)])
    shown = rng.choice((equation.text, equation.text.replace(",", ", ").replace("->", " -> ")))
    return f"torch.einsum({shown!r}, {operands})"


def _kernel(equation: Equation, file: KernelFile, post: list[Step]) -> Draft:
    """A thread for each output, a warp, or a block for a tile of them."""
    builder, rng = file.builder, file.builder.rng
    places = {
        letter: f"{tensor.name}.size({axis})"
        for tensor, operand in zip(reversed(file.tensors), reversed(equation.operands), strict=True)
        for axis, letter in enumerate(operand)
    }
    letters = dict.fromkeys("".join(equation.operands))
    sizes = [letter.upper() for letter in letters]
    host = f"    int {', '.join(f'{letter.upper()} = {places[letter]}' for letter in letters)};\n"
    host += f"    auto out = torch::empty({{{', '.join(equation.result.upper())}}}, x.options());\n"
    factors = " * ".join(
        f"{tensor.name}[{_place(operand)}]" for tensor, operand in zip(file.tensors, equation.operands, strict=True)
    )
    styles = ["thread"] + ["warp"] * (2 if equation.summed else 0) + ["tile"] * (6 if _tiled(equation) else 0)
    style = rng.choice(styles)
    if style == "tile":
        body, grid = _tile(equation, lines(post, f"out[{_place(equation.result)}] = v;"))
        sizes = _read(sizes, body)
        text = host + f"    dim3 grid({grid});\n" + file.launch("grid, dim3(16, 16)", sizes)
        return Draft(builder, file.write(file.kernel(body, sizes), text), "tiled16")
    unpacked = f"int {_unpacked(equation.result, 'i')};"
    host += "    int n = out.numel();\n"
    if style == "warp":
        body = WARP.format(
            unpacked=f"    {unpacked}\n",
            sum=_loops(equation.summed, f"v += {factors};", 4, "lane"),
            store=lines(post, "out[i] = v;"),
        )
        sizes = _read(sizes, body)
        text = host + file.launch("(n + 7) / 8, 256", ["n", *sizes])
        return Draft(builder, file.write(file.kernel(body, ["n", *sizes]), text), "warp_per_output")
    total = "float v = 0.0f;" if equation.summed else f"float v = {factors};"
    inner = _loops(equation.summed, f"v += {factors};", 8, "") if equation.summed else ""
    body = lines(unpacked, total) + inner + lines(post)
    code, launch, style = file.sweep(rng, body, ["n", *_read(sizes, body)])
    return Draft(builder, file.write(code, host + launch), style)


def _read(sizes: list[str], body: str) -> list[str]:
    """The sizes that a kernel's body reads."""
    return [name for name in sizes if re.search(rf"\b{name}\b", body)]


def _place(operand: str) -> str:
    """Where an element lies, from an index for each letter."""
    text = f"{operand[0]}0"
    for letter in operand[1:]:
        text = f"{f'({text})' if '+' in text else text} * {letter.upper()} + {letter}0"
    return text


def _unpacked(letters: str, index: str) -> str:
    """Declarations of an index for each letter, from one that counts them all."""
    parts, text = [], index
    for letter in reversed(letters[1:]):
        parts.append(f"{letter}0 = {text} % {letter.upper()}")
        text += f" / {letter.upper()}"
    return ", ".join([f"{letters[0]}0 = {text}", *reversed(parts)])


def _loops(letters: str, inner: str, indent: int, lane: str) -> str:
    """One loop for each letter around the statement; lanes share the last."""
    text = ""
    for depth, letter in enumerate(letters):
        shared = lane and depth == len(letters) - 1
        first, step = (lane, " += 32") if shared else ("0", "++")
        head = f"for (int {letter}0 = {first}; {letter}0 < {letter.upper()}; {letter}0{step})"
        text += f"{' ' * (indent + 4 * depth)}{head}\n"
    return f"{text}{' ' * (indent + 4 * len(letters))}{inner}\n"


def _tiled(equation: Equation) -> bool:
    """Whether two operands share one dimension that is summed, and each has one of its own."""
    if len(equation.operands) != 2 or len(equation.summed) != 1:
        return False
    x, y = map(set, equation.operands)
    return equation.summed in x & y and bool(x - y) and bool(y - x)


def _tile(equation: Equation, store: str) -> tuple[str, str]:
    """The kernel's body and its grid. The last letter that only one operand has is its side of the tile."""
    x, y = equation.operands
    row = next(letter for letter in reversed(x) if letter not in y)
    column = next(letter for letter in reversed(y) if letter not in x)
    rest = "".join(letter for letter in equation.result if letter not in (row, column))
    other = f"y[{_place(y)}]".replace(f"{column}0", "other")
    body = TILE.format(
        row=f"{row}0",
        column=f"{column}0",
        rows=row.upper(),
        columns=column.upper(),
        summed=f"{equation.summed}0",
        depth=equation.summed.upper(),
        unpacked=f"    int {_unpacked(rest, 'rest')};\n" if rest else "",
        x=f"x[{_place(x)}]",
        y=other,
        store=store,
    )
    body = body if rest else body.replace(", rest = blockIdx.z", "")
    depth = " * ".join(rest.upper()) or "1"
    return body, f"({column.upper()} + 15) / 16, ({row.upper()} + 15) / 16, {depth}"
