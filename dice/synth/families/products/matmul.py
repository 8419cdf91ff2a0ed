"""Matrix products in every form (see `forms.py`), combined with another matrix or vector, with chains around."""

from __future__ import annotations

import random
from dataclasses import replace

from dice.synth.kernel.cuda import KernelFile, Tensor, when
from dice.synth.kernel.products import Operands, product
from dice.synth.problem.builder import ProblemBuilder
from dice.synth.problem.chain import ChainState, chain_length, chains, draw_chain, rounded, state_after
from dice.synth.problem.plan import Draft, Plan
from dice.synth.problem.shapes import LARGE, SMALL, describe, sentence
from dice.synth.problem.tensors import Value
from dice.synth.tables.forms import FORMS, Form
from dice.synth.tables.operators import OPERATORS, SATURATES

NAME = "matmul"
_STATE = ChainState("any", 18.0, False)
# Products that one kernel serves, whatever their batches are: only the shapes say which of them a text asks for.
_ANY_BATCH = ("matmul", "bmm", "bmm4", "flat3", "flat4", "shared_left")

_WEIGHTS = {"matmul": 9, "bmm": 4, "bmm4": 2, "flat3": 2, "flat4": 1, "shared_left": 1, "gram": 1.5}
_TRANSPOSED = {
    2: ("{o}.T", "{o}.t()", "{o}.transpose(0, 1)", "{o}.mT", "{o}.permute(1, 0)", "torch.transpose({o}, 0, 1)"),
    3: ("{o}.transpose(1, 2)", "{o}.transpose(-2, -1)", "{o}.mT", "{o}.permute(0, 2, 1)", "torch.transpose({o}, 1, 2)"),
    4: ("{o}.transpose(-2, -1)", "{o}.transpose(2, 3)", "{o}.mT", "{o}.transpose(-1, -2)", "{o}.permute(0, 1, 3, 2)"),
}
_ALPHABETS = ("bhmnk", "bhijk", "bhmnd", "nhijk", "zhijl", "bhqkd", "xyijk")
# What may be combined with the product: text around {P}, the tensor's shape by letter, statement
PARTNERS: dict[str, tuple[tuple[str, ...], str, str]] = {
    "add": (("{P} + {z}", "{z} + {P}", "torch.add({P}, {z})"), "out", "v += {c};"),
    "mul": (("{P} * {z}", "torch.mul({P}, {z})"), "out", "v *= {c};"),
    "sub": (("{P} - {z}", "torch.sub({P}, {z})"), "out", "v -= {c};"),
    "bias": (("{P} + {z}", "torch.add({P}, {z})"), "n", "v += {c};"),
    "column": (("{P} + {z}",), "m1", "v += {c};"),
}


def sample(rng: random.Random) -> Plan:
    core = rng.choices(tuple(FORMS), [_WEIGHTS.get(name, 0.6) for name in FORMS])[0]
    layouts = FORMS[core]
    layout = rng.choices(tuple(layouts), (6, 3, 2, 1)[: len(layouts)])[0]
    features = [f"layout={layout}"]
    if rng.random() < 0.3 and core not in ("product_transposed", "tril_result", "triu_result"):
        partners = ["add", "add", "mul", "sub", "bias", *when(core == "matmul", "column", "alpha_beta")]
        features.append(f"with={rng.choice(partners)}")
    pre = draw_chain(rng, 1) if rng.random() < 0.15 and core in ("matmul", "bmm", "flat3") else ()
    pre = pre if state_after(pre).magnitude <= 6 and layout[0] == "n" else ()
    post = draw_chain(rng, chain_length(rng, (3, 4, 2, 1)), _STATE)
    return Plan(NAME, core, chains(pre=pre, post=post), tuple(features))


def size(builder: ProblemBuilder, role: str) -> str:
    return builder.tensors.dimension(role, builder.rng.choice(SMALL[role]), builder.rng.choice(LARGE[role]))


def sampler(builder: ProblemBuilder, plan: Plan) -> str:
    """Products of numbers from [0, 1) are large: functions that saturate would flatten them."""
    saturates = any(OPERATORS[name].limit <= SATURATES for name in plan.chain("post"))
    return "torch.randn({shape})" if saturates else builder.tensors.sampler


def render(plan: Plan, rng: random.Random) -> Draft:
    form = FORMS[plan.core][plan.features[0].removeprefix("layout=")]
    builder = ProblemBuilder(rng, keep_inputs=not form.b)
    marks, long_k = _sizes(builder, form)
    builder.tensors.results.append([marks[letter] for letter in form.out])
    builder.tensors.sampler = sampler(builder, plan)
    triangle = form.around.removesuffix("({P})") if form.around.startswith("torch.tri") and rng.random() < 0.4 else ""
    make = f"{triangle}({builder.tensors.sampler})" if triangle else None
    a = builder.tensors.input("a", [marks[letter] for letter in form.a], make)
    b = builder.tensors.input("b", [marks[letter] for letter in form.b], make) if form.b else a
    value, pre = builder.operators.chain(a, plan.chain("pre"))
    partner = next((item.removeprefix("with=") for item in plan.features if item.startswith("with=")), "")
    tensors = [Tensor("a", "a"), *when(form.b, Tensor("b", "b")), *when(partner, Tensor("c", "c"))]
    value, extra = _spell(builder, form, value, b, partner, marks)
    value, post = builder.operators.chain(value, plan.chain("post"), state=_STATE)
    builder.finish(value)
    what = {"": "", "alpha_beta": "adding a scaled matrix", "bias": "adding a vector", "column": "adding a column"}
    builder.title = sentence(
        describe(plan.chain("pre")),
        form.phrase,
        what.get(partner, f"{partner} of a matrix"),
        describe(plan.chain("post")),
    )

    bare = plan.core == "matmul" and long_k and not (post or partner)
    sliced = bare and rng.random() < 0.4  # blocks that add to one output leave no index for batches
    any_batch = plan.core in _ANY_BATCH and not sliced
    file = KernelFile(builder, "matmul" if any_batch else plan.core, tensors)
    operands = _operands(form, [*extra, *([f"v = {form.keep} ? v : 0.0f;"] if form.keep else [])], partner, any_batch)
    if pre:
        operands = replace(operands, a=file.load(pre, operands.a), plain=())
    kernel = product(rng, operands, post, long_k=long_k, sliced=sliced)
    integers = ["M", "N", "K", "a_step", "b_step"] if any_batch else ["M", "N", "K"]
    code = file.pre(pre) + file.kernel(kernel.body, integers)
    if any_batch:
        host = _host_of_any_batch(form) + kernel.grid("out.numel() / (M * N)")
    else:
        host = _host(form, kernel.slices) + kernel.grid(" * ".join(_extent(form, letter) for letter in form.batches))
    return Draft(builder, file.write(code, host + file.launch(kernel.launch, integers)), kernel.style)


def _sizes(builder: ProblemBuilder, form: Form) -> tuple[dict[str, str], bool]:
    """A size for each letter, and whether k is much the longest."""
    rng = builder.rng
    marks: dict[str, str] = {}
    for letter in dict.fromkeys(form.a + form.b):
        if letter in "bh":
            small = rng.choice((1, 2, 3, 4, 5, 8) if letter == "b" else (1, 2, 3, 4))
            marks[letter] = builder.tensors.dimension(
                {"b": "batch", "h": "heads"}[letter], small, rng.choice((8, 12, 16, 32))
            )
        else:
            marks[letter] = size(builder, letter)
    marks |= dict.fromkeys(form.square, marks[form.square[0]]) if form.square else {}
    shape = rng.choices(("any", "square", "tall", "small_k", "long_k"), (12, 3, 1, 1, 1.5))[0]
    dimension = {letter: builder.tensors.size(mark) for letter, mark in marks.items()}
    if shape == "square" and len(form.a) == 2 and not form.square:
        marks |= dict.fromkeys("mkn", marks["m"])
        dimension["m"].small = rng.choice((16, 24, 32, 48, 64))
    if shape == "square" or form.square == "mkn":
        return marks, False
    if shape == "tall":
        dimension["m"].small, dimension["m"].large = rng.choice((128, 200, 256)), rng.choice((16384, 32768))
        if "n" in dimension and "n" not in form.square:
            dimension["n"].small = dimension["n"].large = rng.choice((4, 8, 16, 32))
    if shape == "small_k" and "k" not in form.square and not form.flat:
        dimension["k"].small = dimension["k"].large = rng.choice((2, 3, 4, 8, 16, 32))
    if shape == "long_k" and "k" not in form.square:
        for letter in dimension:
            dimension[letter].small = rng.choice((2, 3, 4, 5, 8, 12))
        dimension["k"].small, dimension["k"].large = rng.choice((256, 300, 512, 1000)), rng.choice((65536, 131072))
        return marks, True
    return marks, False


def _spell(
    builder: ProblemBuilder, form: Form, a: Value, b: Value, partner: str, marks: dict[str, str]
) -> tuple[Value, list[str]]:
    """The product in one of its spellings, combined with its partner; the partner's statements for the kernel."""
    rng = builder.rng
    if not form.b and not a.is_name:
        a = b = builder.forward.bind(a)
    operands = zip(form.spelled, "AB", ("{x}", "{y}"), (form.a, form.b or form.a), _turns(form), strict=True)
    left, right = (
        text.replace(f"{{{slot}}}", _side(rng, name, letters, turned == "t"))
        for text, slot, name, letters, turned in operands
    )
    if partner == "alpha_beta":
        return _addmm(builder, form, a, b, (left, right), marks)
    text = _product(rng, form, left, right)
    if form.around in ("{P}.T", "{P}.t()") and rng.random() < 0.3:
        text = _einsum(rng, form)
    elif form.around != "{P}":
        bare = form.around.startswith("torch") or (text.startswith("torch") and "@" not in text)
        text = form.around.replace("{P}", text if bare else f"({text})")
    value = builder.forward.apply(text, a, form.phrase, y=b.text)
    if not partner:
        return value, []
    texts, shape, statement = PARTNERS[partner]
    letters = {"out": form.out, "n": "n", "m1": "m"}[shape]
    other = builder.tensors.input("z", [*(marks[letter] for letter in letters), *when(shape == "m1", "1")])
    value = builder.forward.apply(rng.choice(texts).replace("{P}", "{x}"), value, partner, z=other.text)
    return value, [statement.format(c={"out": "c[row * N + col]", "n": "c[col]", "m1": "c[row]"}[shape])]


def _product(rng: random.Random, form: Form, left: str, right: str) -> str:
    """The text of the product alone."""
    plain = form.spelled == ("{A}", "{B}") and bool(form.b)
    if plain and form.around == "{P}" and rng.random() < 0.15:
        return _einsum(rng, form)
    if plain and form.layout == "nt" and len(form.b) == 2 and rng.random() < 0.25:
        return rng.choice(("F.linear({x}, {y})", "torch.inner({x}, {y})"))
    ranks = (len(form.a), len(form.b or form.a))
    special = {(2, 2): ("torch.mm({l}, {r})", "{l}.mm({r})"), (3, 3): ("torch.bmm({l}, {r})", "{l}.bmm({r})")}
    calls = ("torch.matmul({l}, {r})", "{l} @ {r}", "{l} @ {r}", "{l}.matmul({r})", *special.get(ranks, ()))
    call: str = rng.choice(calls)
    return call.format(l=left, r=right)


def _addmm(
    builder: ProblemBuilder, form: Form, a: Value, b: Value, sides: tuple[str, str], marks: dict[str, str]
) -> tuple[Value, list[str]]:
    rng = builder.rng
    other = builder.tensors.input("z", [marks["m"], marks["n"]])
    beta, alpha = (
        builder.constructor.scalar("shift", rounded(rng, 0.2, 2.0)),
        builder.constructor.scalar("scale", rounded(rng, 0.2, 2.0)),
    )
    text = rng.choice(
        (
            "torch.addmm({z}, {l}, {r}, beta={s}, alpha={t})",
            "{s} * {z} + {t} * ({l} @ {r})",
            "{t} * torch.matmul({l}, {r}) + {s} * {z}",
            "{z}.addmm({l}, {r}, beta={s}, alpha={t})",
        )
    ).format(l=sides[0], r=sides[1], z=other.text, s=beta.forward, t=alpha.forward)
    value = builder.forward.apply(text, a, form.phrase, y=b.text)
    return value, [f"v = {alpha.cuda} * v + {beta.cuda} * c[row * N + col];"]


def _turns(form: Form) -> str:
    """Which sides are transposed in the text; for a matrix with itself, the one that its layout names."""
    if form.b:
        return form.layout
    return "nn" if form.square == "mkn" else "tn" if form.a.endswith("km") else "nt"


def _side(rng: random.Random, name: str, letters: str, turned: bool) -> str:
    return rng.choice(_TRANSPOSED[len(letters)]).replace("{o}", name) if turned else name


def _einsum(rng: random.Random, form: Form) -> str:
    usual, any_letters = rng.choice(_ALPHABETS), "".join(rng.sample("abcdefghijklmnopqrstuvwxyz", 5))
    letters = str.maketrans("bhmnk", usual if rng.random() < 0.6 else any_letters)
    quote = rng.choice("'\"")
    equation = f"{form.a},{form.b}->{form.out}".translate(letters)
    return f"torch.einsum({quote}{equation}{quote}, {{x}}, {{y}})"


def _operands(form: Form, extra: list[str], partner: str, any_batch: bool) -> Operands:
    a_first, b_first = form.a.endswith("km"), not (form.b or form.a).endswith("nk")
    a = form.element or ("a[{k} * M + row]" if a_first else "a[row * K + {k}]")
    if form.b:
        name, b = "b", "b[{k} * N + col]" if b_first else "b[col * K + {k}]"
    else:
        b_first = a_first or form.square == "mkn"
        name, b = "a", "a[{k} * N + col]" if b_first else "a[col * K + {k}]"
    plain = () if form.keep_a or form.keep_b or form.element or a_first or b_first else ("a", name)
    a = f"({form.keep_a} ? {a} : 0.0f)" if form.keep_a else a
    b = f"({form.keep_b} ? {b} : 0.0f)" if form.keep_b else b
    offset = ""
    if any_batch:
        offset = "    a += blockIdx.z * a_step;\n    b += blockIdx.z * b_step;\n    out += blockIdx.z * M * N;\n"
        offset += "    c += blockIdx.z * M * N;\n" if partner in ("add", "mul", "sub", "alpha_beta") else ""
    elif form.batches:
        offset = "    a += blockIdx.z * M * K;\n" if len(form.a) > 2 else ""
        offset += "    out += blockIdx.z * M * N;\n"
        offset += "    c += blockIdx.z * M * N;\n" if partner in ("add", "mul", "sub") else ""
    at = "col * M + row" if form.out.endswith("nm") else "row * N + col"
    return Operands(a, b, a_first, b_first, offset, extra, at, plain, any_batch or bool(form.batches))


def _extent(form: Form, letter: str, from_end: bool = False) -> str:
    """The size of a dimension in host code, counted from the end where a batch may stand in front."""
    name, letters = ("a", form.a) if letter in form.a else ("b", form.b)
    if letter not in letters:
        name, letters, letter = "a", form.a, {"n": "m"}[letter]
    from_end = from_end or (len(letters) > 2 and letter not in "bh")
    place = letters.index(letter)
    return f"{name}.size({place - len(letters) if from_end else place})"


def _extents(form: Form, from_end: bool = False) -> str:
    """The host line of M, K and N."""
    return "    int " + ", ".join(f"{letter.upper()} = {_extent(form, letter, from_end)}" for letter in "mkn") + ";\n"


def _host_of_any_batch(form: Form) -> str:
    """The host code for any number of dimensions before the last two, on either side."""
    host = _extents(form, from_end=True) + "    auto sizes = (a.dim() < b.dim() ? b : a).sizes().vec();\n"
    host += "    sizes[sizes.size() - 2] = M;\n    sizes.back() = N;\n"
    host += "    auto out = torch::empty(sizes, a.options());\n"
    return host + "    int a_step = a.dim() > 2 ? M * K : 0, b_step = b.dim() > 2 ? K * N : 0;\n"


def _host(form: Form, zeros: bool) -> str:
    make = "zeros" if zeros else "empty"
    sizes = ", ".join(letter.upper() if letter in "mn" else _extent(form, letter) for letter in form.out)
    return _extents(form) + f"    auto out = torch::{make}({{{sizes}}}, a.options());\n"
