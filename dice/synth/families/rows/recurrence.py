"""Values that follow from the step before: recurrences over a sequence, and one step of recurrent cells."""

from __future__ import annotations

import random
from dataclasses import dataclass

from dice.synth.kernel.cuda import KernelFile, Tensor, lines, when
from dice.synth.problem.builder import ProblemBuilder
from dice.synth.problem.chain import ChainState, Step, chain_length, chains, draw_chain, rounded
from dice.synth.problem.plan import Draft, Plan
from dice.synth.problem.shapes import describe, sentence
from dice.synth.problem.tensors import Value

NAME = "recurrence"
_STATE = ChainState("any", 10.0, False)


@dataclass(frozen=True, slots=True)
class Recurrence:
    """`step`: the next {h} from {h} and this step's {x}, {y}, {z}; the same in CUDA on h and v, w, u. {a}: a number.
    `decay`: a parameter for each feature, {w}, `k` in CUDA, is read too."""

    phrase: str
    inputs: int
    step: tuple[str, ...]
    cuda: str
    scalar: bool = False
    decay: str = ""


RECURRENCES: dict[str, Recurrence] = {
    "moving_average": Recurrence(
        "an exponential moving average",
        1,
        ("{a} * {h} + (1 - {a}) * {x}", "{h} * {a} + {x} * (1 - {a})", "torch.lerp({x}, {h}, {a})"),
        "h = {a} * h + (1.0f - {a}) * v;",
        True,
    ),
    "leaky": Recurrence(
        "a leaky integrator",
        1,
        ("torch.tanh({a} * {h} + {x})", "({h} * {a} + {x}).tanh()"),
        "h = tanhf({a} * h + v);",
        True,
    ),
    "decaying_maximum": Recurrence(
        "a maximum that decays", 1, ("torch.maximum({a} * {h}, {x})",), "h = fmaxf({a} * h, v);", True
    ),
    "gated": Recurrence(
        "a gated recurrence",
        2,
        ("(1 - torch.sigmoid({y})) * {h} + torch.sigmoid({y}) * {x}", "torch.lerp({h}, {x}, torch.sigmoid({y}))"),
        "w = 1.0f / (1.0f + expf(-w)); h = (1.0f - w) * h + w * v;",
    ),
    "forgetting": Recurrence(
        "a sum that forgets",
        2,
        ("torch.sigmoid({y}) * {h} + {x}", "{h} * {y}.sigmoid() + {x}"),
        "h = h / (1.0f + expf(-w)) + v;",
    ),
    "tanh_gated": Recurrence(
        "a gated recurrence of a bounded candidate",
        2,
        ("torch.sigmoid({y}) * {h} + (1 - torch.sigmoid({y})) * torch.tanh({x})",),
        "w = 1.0f / (1.0f + expf(-w)); h = w * h + (1.0f - w) * tanhf(v);",
    ),
    "two_gates": Recurrence(
        "a recurrence with gates for input and state",
        3,
        ("torch.sigmoid({y}) * {h} + torch.sigmoid({z}) * torch.tanh({x})",),
        "h = h / (1.0f + expf(-w)) + tanhf(v) / (1.0f + expf(-u));",
    ),
    "diagonal": Recurrence(
        "a diagonal state space",
        1,
        ("torch.sigmoid({w}) * {h} + {x}", "{h} * torch.sigmoid({w}) + {x}"),
        "h = h / (1.0f + expf(-k)) + v;",
        decay="sigmoid",
    ),
    "selective": Recurrence(
        "a selective state space",
        2,
        ("torch.exp(-F.softplus({y}) * torch.exp({w})) * {h} + F.softplus({y}) * {x}",),
        "w = w > 20.0f ? w : log1pf(expf(w)); h = expf(-w * expf(k)) * h + w * v;",
        decay="exp",
    ),
    "rectified": Recurrence(
        "a rectified accumulation",
        1,
        ("torch.relu({h} + {x} - {a})", "F.relu({h} + {x} - {a})"),
        "h = fmaxf(h + v - {a}, 0.0f);",
        True,
    ),
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One step of a cell from its gates: inputs with how many times the state's width they have."""

    phrase: str
    inputs: tuple[tuple[str, str, int], ...]  # name, role, width
    statements: tuple[str, ...]  # the last is the value
    lines: tuple[str, ...]


_SIGMOID = "__device__ float sigmoid(float v) {\n    return 1.0f / (1.0f + expf(-v));\n}\n\n"
_LSTM = (("x", "gate", 4), ("c", "state", 1))
_LSTM_LINES = (
    "float v = sigmoid(x[g + H]) * c[i] + sigmoid(x[g]) * tanhf(x[g + 2 * H]);",
    "int g = i / H * 4 * H + i % H;",
)
CELLS: dict[str, Cell] = {
    "lstm_state": Cell(
        "the state of an LSTM cell",
        _LSTM,
        (
            "{p}, {q}, {r}, {s} = {x}.chunk(4, dim=-1)",
            "torch.sigmoid({q}) * {c} + torch.sigmoid({p}) * torch.tanh({r})",
        ),
        _LSTM_LINES[::-1],
    ),
    "lstm_output": Cell(
        "the output of an LSTM cell",
        _LSTM,
        (
            "{p}, {q}, {r}, {s} = {x}.chunk(4, dim=1)",
            "{t} = torch.sigmoid({q}) * {c} + torch.sigmoid({p}) * torch.tanh({r})",
            "torch.sigmoid({s}) * torch.tanh({t})",
        ),
        (*_LSTM_LINES[::-1], "v = sigmoid(x[g + 3 * H]) * tanhf(v);"),
    ),
    "gru_state": Cell(
        "the state of a GRU cell",
        (("x", "x", 3), ("y", "y", 3), ("c", "state", 1)),
        (
            "{p}, {q}, {r} = {x}.chunk(3, dim=-1)",
            "{s}, {t}, {u} = {y}.chunk(3, dim=-1)",
            "{q} = torch.sigmoid({q} + {t})",
            "{r} = torch.tanh({r} + torch.sigmoid({p} + {s}) * {u})",
            "(1 - {q}) * {r} + {q} * {c}",
        ),
        (
            "int g = i / H * 3 * H + i % H;",
            "float z = sigmoid(x[g + H] + y[g + H]);",
            "float v = tanhf(x[g + 2 * H] + sigmoid(x[g] + y[g]) * y[g + 2 * H]);",
            "v = (1.0f - z) * v + z * c[i];",
        ),
    ),
    "minimal_gated": Cell(
        "the state of a minimal gated unit",
        (("x", "x", 2), ("c", "state", 1)),
        (
            "{p}, {q} = torch.split({x}, {c}.size(-1), dim=-1)",
            "{p} = torch.sigmoid({p})",
            "(1 - {p}) * {c} + {p} * torch.tanh({q})",
        ),
        (
            "int g = i / H * 2 * H + i % H;",
            "float z = sigmoid(x[g]);",
            "float v = (1.0f - z) * c[i] + z * tanhf(x[g + H]);",
        ),
    ),
    "peephole": Cell(
        "the state of a cell that looks at its state",
        (("x", "gate", 3), ("c", "state", 1)),
        (
            "{p}, {q}, {r} = {x}.chunk(3, dim=-1)",
            "torch.sigmoid({q} + {c}) * {c} + torch.sigmoid({p} + {c}) * torch.tanh({r})",
        ),
        (
            "int g = i / H * 3 * H + i % H;",
            "float v = sigmoid(x[g + H] + c[i]) * c[i] + sigmoid(x[g] + c[i]) * tanhf(x[g + 2 * H]);",
        ),
    ),
}
_NAMES = (
    "in_gate",
    "forget",
    "cand",
    "out_gate",
    "new_state",
    "gi",
    "gf",
    "gc",
    "reset",
    "update",
    "fresh_one",
    "mix_in",
)


def sample(rng: random.Random) -> Plan:
    if rng.random() < 0.3:
        core, features = rng.choice(tuple(CELLS)), ["cell"]
    else:
        core = rng.choice(tuple(RECURRENCES))
        features = [f"gives={rng.choice(('all', 'all', 'last'))}", *when(rng.random() < 0.3, "start=given")]
    post = draw_chain(rng, chain_length(rng, (4, 4, 2)), _STATE)
    return Plan(NAME, core, chains(post=post), tuple(features))


def render(plan: Plan, rng: random.Random) -> Draft:
    builder = ProblemBuilder(rng, keep_inputs=True)
    return _cell(plan, builder) if plan.has("cell") else _sequence(plan, builder)


def _cell(plan: Plan, builder: ProblemBuilder) -> Draft:
    cell, rng = CELLS[plan.core], builder.rng
    batch = builder.tensors.dimension("batch", rng.choice((1, 3, 8, 16)), rng.choice((64, 256, 1024)))
    width = builder.tensors.dimension("hidden", rng.choice((5, 8, 16, 32)), rng.choice((256, 512, 1024)))
    fields, tensors = {}, []
    for name, role, times in cell.inputs:
        shape = [batch, width if times == 1 else f"{times} * {width}"]
        fields[name] = builder.tensors.input(role, shape, "torch.randn({shape})").text
        tensors.append(Tensor(name, name))
    fields |= {name: builder.names.fresh(_NAMES) for name in "pqrstu" if f"{{{name}}}" in "".join(cell.statements)}
    *statements, last = cell.statements
    builder.forward.lines += [text.format(**fields) for text in statements]
    value = builder.forward.apply(last.replace("{c}", "{x}"), Value(fields["c"]), cell.phrase, **_without(fields, "x"))
    value, post = builder.operators.chain(value, plan.chain("post"), state=_STATE)
    builder.finish(value)
    builder.title = sentence(cell.phrase, describe(plan.chain("post")))
    file = KernelFile(builder, NAME, tensors)
    code, launch, style = file.sweep(rng, lines(cell.lines, post), ["n", "H"])
    host = "    auto out = torch::empty_like(c);\n    int n = c.numel(), H = c.size(1);\n"
    return Draft(builder, file.write(_SIGMOID + code, host + launch), style)


def _without(fields: dict[str, str], name: str) -> dict[str, str]:
    return {key: text for key, text in fields.items() if key != name}


def _sequence(plan: Plan, builder: ProblemBuilder) -> Draft:
    recurrence, rng = RECURRENCES[plan.core], builder.rng
    whole, given = plan.has("gives=all"), plan.has("start=given")
    roles = (
        ("batch", (1, 2, 4, 8), (16, 64)),
        ("sequence", (3, 6, 10, 17), (64, 128)),
        ("hidden", (4, 8, 20, 33), (256, 512)),
    )
    marks = [builder.tensors.dimension(role, rng.choice(small), rng.choice(large)) for role, small, large in roles]
    names = "xyz"[: recurrence.inputs]
    inputs = [builder.tensors.input(name, marks, "torch.randn({shape})").text for name in names]
    tensors = [Tensor(name, name) for name in names]
    start = f"torch.zeros_like({inputs[0]}[:, 0])"
    if given:
        start = builder.tensors.input("state", [marks[0], marks[2]], "torch.randn({shape})").text
        tensors.append(Tensor("s", "s"))
    fields, number = {"a": ""}, ""
    if recurrence.decay:
        size = builder.constructor.argument(("dim", "d_inner", "state_size"), marks[2], "int")
        fields["w"] = builder.attributes.parameter("weight", size)
        tensors.append(Tensor("decay", fields["w"]))
    if recurrence.scalar:
        scalar = builder.constructor.scalar("weight", rounded(rng, 0.2, 0.95))
        fields["a"], number = scalar.forward, scalar.cuda
    value = _loop(builder, recurrence, inputs, fields, start, whole)
    value, post = builder.operators.chain(value, plan.chain("post"), state=_STATE)
    builder.finish(value)
    builder.title = sentence(recurrence.phrase, describe(plan.chain("post")))
    return _series(recurrence, KernelFile(builder, NAME, tensors), post, number, (whole, given))


def _loop(
    builder: ProblemBuilder, recurrence: Recurrence, inputs: list[str], fields: dict[str, str], start: str, whole: bool
) -> Value:
    """The loop over the steps; its value is the last state, or all of them stacked."""
    rng = builder.rng
    state, step, kept = (
        builder.names.fresh(pool)
        for pool in (
            ("h", "state", "carry", "hid", "acc"),
            ("t", "step", "idx_t"),
            ("outs", "states", "collected", "ys"),
        )
    )
    slices = [f"{name}[:, {step}]" for name in inputs]
    head = f"for {step} in range({inputs[0]}.size(1)):"
    if len(inputs) == 1 and rng.random() < 0.5:
        slices, head = [step], f"for {step} in {inputs[0]}.unbind(1):"
    elif rng.random() < 0.3:
        slices = [f"{name}[:, {step}, :]" for name in inputs]
    text = rng.choice(recurrence.step).format(h=state, **dict(zip("xyz", slices, strict=False)), **fields)
    lines = [*when(whole, f"{kept} = []"), f"{state} = {start}", head, f"    {state} = {text}"]
    builder.forward.lines += [*lines, *when(whole, f"    {kept}.append({state})")]
    if not whole:
        return Value(state)
    return builder.forward.apply(rng.choice(("torch.stack({x}, dim=1)", "torch.stack({x}, 1)")), Value(kept), "states")


def _series(recurrence: Recurrence, file: KernelFile, post: list[Step], number: str, what: tuple[bool, bool]) -> Draft:
    """A thread for each sample's feature: neighbours read neighbours at every step."""
    whole, given = what
    rng = file.builder.rng
    loads = [f"float {into} = {name}[p];" for into, name in zip("vwu", "xyz"[: recurrence.inputs], strict=False)]
    store = lines("float r = h;", [step.cuda("r") for step in post], "out[p] = r;") if whole else ""
    unrolled = rng.random() < 0.4
    loop = ("    #pragma unroll 8\n" if unrolled else "") + "    for (int t = 0; t < T; t++) {\n"
    loop += lines("int p = base + t * D;", *loads, recurrence.cuda.format(a=number)) + store + "    }\n"
    threads = rng.choice((64, 128, 256))
    body = "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n    if (i >= n) return;\n"
    body += "    int base = i / D * T * D + i % D;\n"
    body += f"    float h = {'s[i]' if given else '0.0f'}{', k = decay[i % D]' if recurrence.decay else ''};\n{loop}"
    body += "" if whole else lines("float v = h;", post, "out[i] = v;", indent=4)
    integers = ["n", "T", "D"]
    host = "    int T = x.size(1), D = x.size(2), n = x.size(0) * D;\n    auto out = torch::empty"
    host += "_like(x);\n" if whole else "({x.size(0), D}, x.options());\n"
    launch = file.launch(f"(n + {threads - 1}) / {threads}, {threads}", integers)
    text = file.write(file.kernel(body, integers), host + launch)
    return Draft(file.builder, text, "thread_per_series_unrolled" if unrolled else "thread_per_series")
