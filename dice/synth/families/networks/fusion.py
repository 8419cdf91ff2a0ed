"""A library layer kept as it is, and everything behind it in one kernel: chains, channel parameters, a second input,
then nothing more, a softmax-like map, or a reduction."""

from __future__ import annotations

import random
from collections.abc import Sequence

from dice.synth.families.networks.library import (
    HEADS,
    MIDDLES,
    Head,
    add_middle,
    draw_head,
    draw_middle,
    enlarge,
    is_last,
    layer,
)
from dice.synth.families.rows.softmax import ROW_MAPS, RowMap
from dice.synth.kernel.cuda import THREAD, KernelFile, Tensor, lines, reduction_helper, when
from dice.synth.kernel.reductions import REDUCTIONS, Reduction
from dice.synth.kernel.rows import draw_scope, row_body
from dice.synth.problem.builder import ProblemBuilder
from dice.synth.problem.chain import ChainState, Step, chain_length, chains, draw_chain, state_after, statements
from dice.synth.problem.plan import Draft, Plan
from dice.synth.problem.shapes import describe, sentence
from dice.synth.problem.tensors import Value
from dice.synth.tables.binary import BINARY
from dice.synth.tables.phrasing import SCALAR_NAMES

NAME = "fusion"
_STATE = ChainState("any", 8.0, False)
_PARTNERS = ("add2", "add2", "mul2", "sub2", "maximum", "sigmoid_gate", "tanh_gate", "mean2", "one_plus", "add_scaled")
_OWN = ("add2", "add2", "mul2")  # how a value is combined with the layer's own result, which is kept for that
# Reductions whose results still differ after a normalisation; sums and variances are the same for every input.
_UNCENTRED = ("max", "min", "l1", "logsumexp")
_REDUCED = ("sum", "mean", "max", "min", "l1", "l2", "logsumexp", "var_biased")
# Maps that divide by a spread need one: few channels, or the equal ones that a transposed convolution leaves between
# its pixels, may have none.
_MAPPED = tuple(core for core in ROW_MAPS if core not in ("standardize", "mean_magnitude_bare"))
# What channel parameters do: text with the parameter {w}, statement with its element
PARAMETERS: dict[str, tuple[str, str]] = {
    "bias": ("{x} + {w}", "v += {e};"),
    "scale": ("{x} * {w}", "v *= {e};"),
    "subtract": ("{x} - {w}", "v -= {e};"),
}


def sample(rng: random.Random) -> Plan:
    head = draw_head(rng)
    tail = rng.choices(("element", "map", "reduce"), (6, 2, 2.5))[0]
    middle = draw_middle(rng, head) if rng.random() < 0.3 else ""
    # After a pooling along the features the result has another shape than the layer's output.
    tail = "reduce" if middle.startswith("row") else tail
    features = [f"tail={tail}"]
    features += [f"mid={middle}"] if middle else []
    chain = draw_chain(rng, chain_length(rng, (1, 4, 4, 2, 1)), _STATE)
    if tail == "element":
        features += [f"parameter={rng.choice(tuple(PARAMETERS))}"] if rng.random() < 0.4 else []
        also = features[-1].startswith("parameter") and rng.random() < 0.25
        features += [f"also={rng.choice(tuple(PARAMETERS))}"] if also else []
        features += [f"with={rng.choice(_PARTNERS)}"] if rng.random() < 0.3 and head[:4] != "conv" else []
        features += [f"own={rng.choice(_OWN)}"] if rng.random() < 0.2 else []
        chain = chain or draw_chain(rng, 2, _STATE)
        more = any(item.startswith(("parameter", "with", "own")) for item in features)
        post = draw_chain(rng, chain_length(rng, (2, 3, 2, 1, 0.5)), ChainState("any", 60.0, False)) if more else ()
        features += (
            [f"then={rng.choice(('max_pool', 'avg_pool'))}"] if rng.random() < 0.25 and head[:4] == "conv" else []
        )
        return Plan(NAME, head, chains(chain=chain, post=post), tuple(features))
    chain = chain if state_after(chain, _STATE).magnitude <= 15 else ()
    reduced = _UNCENTRED if middle.endswith("norm") else _REDUCED
    core = rng.choice(_MAPPED if tail == "map" else reduced)
    after = ROW_MAPS[core].after if tail == "map" else ChainState("any", REDUCTIONS[core].magnitude, False)
    features.append(f"over={core}")
    where = ["channels"] if is_last(head) or tail == "map" else ["channels", "space"]
    features.append(f"dim={rng.choice(where)}")
    features += ["keepdim"] if tail == "reduce" and rng.random() < 0.4 else []
    features += _followed(rng, head) if tail == "map" else []
    post = draw_chain(rng, chain_length(rng, (4, 3, 1)), after)
    return Plan(NAME, head, chains(chain=chain, post=post), tuple(features))


def _followed(rng: random.Random, head: str) -> list[str]:
    """Sometimes a library layer behind the kernel."""
    name = draw_middle(rng, head) if rng.random() < 0.25 else ""
    return [f"then={name}"] if name else []


def render(plan: Plan, rng: random.Random) -> Draft:
    builder = ProblemBuilder(rng, keep_inputs=not is_last(plan.core))
    head = HEADS[plan.core](builder)
    middle, own, then = (_value_of(plan, feature) for feature in ("mid", "own", "then"))
    if middle or then:
        enlarge(builder, head, len([name for name in (middle, then) if name]))
    if middle:
        add_middle(builder, head, middle)
    first = head.value = builder.operators.idle(head.value)
    if own:
        first = head.value = builder.forward.bind(head.value)
        if builder.forward.flow == "reassign" or rng.random() < 0.4:
            head.value = builder.forward.kept(first)
        builder.forward.flow = "fresh" if head.value is first else builder.forward.flow
    value, steps = builder.operators.chain(first, plan.chain("chain"), state=_STATE)
    write = _element if plan.has("tail=element") else _along
    return write(plan, builder, head, value, steps)


def _value_of(plan: Plan, feature: str) -> str:
    return next((item.removeprefix(f"{feature}=") for item in plan.features if item.startswith(f"{feature}=")), "")


def _element(plan: Plan, builder: ProblemBuilder, head: Head, value: Value, steps: list[Step]) -> Draft:
    rng = builder.rng
    text: list[str | Step] = []
    tensors, integers, sizes, phrases = [Tensor("x", "x")], ["n"], "", [head.phrase, describe(plan.chain("chain"))]
    parameter, partner, own = (_value_of(plan, feature) for feature in ("parameter", "with", "own"))
    for name, change in zip(("weight", "bias"), (parameter, _value_of(plan, "also")), strict=True):
        if not change:
            break
        template, statement = PARAMETERS[change]
        attribute = builder.attributes.parameter("parameter", _channel_shape(builder, head))
        value = builder.forward.apply(template.replace("{w}", attribute), value, change)
        tensors.append(Tensor(name, attribute))
        index = "i % C" if head.last else "i / inner % C"
        text.append(statement.format(e=f"{name}[{index}]"))
        phrases.append(f"a {change} for each channel")
    if parameter:
        integers += ["C"] if head.last else ["C", "inner"]
        sizes = ", C = x.size(-1)" if head.last else ", C = x.size(1), inner = x.stride(1)"
    if own:
        combine = BINARY[own]
        value = builder.forward.apply(rng.choice(combine.spellings), value, combine.phrase, y=head.value.text)
        text += ["float w = x[i];", combine.statement]
        phrases.append(f"{combine.phrase}, the layer's result being the second")
    inputs = list(head.inputs)
    if partner:
        combine = BINARY[partner]
        other = builder.tensors.input("z", head.shape)
        fields, cuda = {"y": other.text}, ""
        if combine.scalar:
            scalar = builder.constructor.scalar(combine.scalar, round(rng.uniform(0.1, 2), 2))
            fields["a"], cuda = scalar.forward, scalar.cuda
        value = builder.forward.apply(rng.choice(combine.spellings), value, combine.phrase, **fields)
        tensors.append(Tensor("y", "y"))
        inputs.append("y")
        text += ["w = y[i];" if own else "float w = y[i];", combine.statement.format(a=cuda)]
        phrases.append(combine.phrase)
    value, post = builder.operators.chain(value, plan.chain("post"), state=ChainState("any", 60.0, False))
    result, then = _finish(plan, builder, head, value)
    builder.title = sentence(*phrases, describe(plan.chain("post")), then)
    file = KernelFile(builder, NAME, tensors)
    code, launch, style = file.sweep(rng, lines("float v = x[i];", steps, text, post), integers)
    host = f"    auto out = torch::empty_like(x);\n    int n = x.numel(){sizes};\n"
    text_of_file = file.write(code, host + launch, inputs=inputs, before=head.lines, result=result)
    return Draft(builder, text_of_file, style)


def _finish(plan: Plan, builder: ProblemBuilder, head: Head, value: Value) -> tuple[str, str]:
    """Ends `forward`, with the layer that follows the kernel; what ModelNew returns, and that layer's phrase."""
    name, result, phrase = _value_of(plan, "then"), "{}", ""
    if name:
        value, result = layer(builder, head, name, value)
        phrase = MIDDLES[name][2]
    builder.finish(value)
    return result, phrase


def _channel_shape(builder: ProblemBuilder, head: Head) -> str:
    """Arguments of a sampler that makes one number for each channel: sizes, or a shape given to the constructor."""
    spread = "" if head.last else ", 1" * (head.rank - 2)
    mark = head.shape[-1] if head.last else head.shape[1]
    if builder.rng.random() < 0.5:
        return builder.constructor.argument(("bias_shape", "param_shape", "shape"), f"({mark}{spread or ','})", "tuple")
    size = (
        head.channels
        if "@" not in head.channels
        else builder.constructor.argument(SCALAR_NAMES["size"], head.channels, "int")
    )
    return f"{size}{spread}"


def _along(plan: Plan, builder: ProblemBuilder, head: Head, value: Value, steps: list[Step]) -> Draft:
    """Maps and reductions along the channels, or over all of space."""
    rng, core = builder.rng, _value_of(plan, "over")
    space, keepdim, mapped = plan.has("dim=space"), plan.has("keepdim"), plan.has("tail=map")
    strided = not head.last and not space
    dim = "-1" if head.last else "1"
    if space:
        dim = rng.choice((str(tuple(range(2, head.rank))), str(tuple(range(2 - head.rank, 0)))))
        dim = dim if head.rank > 3 else rng.choice(("2", "-1"))
    dim = builder.constructor.setting("dim", dim, stored=True)
    row: RowMap | Reduction = ROW_MAPS[core] if mapped else REDUCTIONS[core]
    texts = [text for text in row.spellings if head.rank <= 3 or not space or not ("[" in text or "values" in text)]
    if space and head.rank > 4:  # without `p`, a norm is that of a matrix or a vector
        texts = [text for text in texts if "torch.norm({x}, dim" not in text and "x}.norm(" not in text]
    text = (
        builder.constructor.stored(rng.choice(texts))
        .replace("{d}", dim)
        .replace("{k}", ", keepdim=True" if keepdim else "")
    )
    value = builder.forward.apply(text, value, row.phrase)
    after = row.after if isinstance(row, RowMap) else ChainState("any", row.magnitude, False)
    value, post = builder.operators.chain(value, plan.chain("post"), state=after)
    result, then = _finish(plan, builder, head, value)
    over = f"{row.phrase} over {'all positions' if space else 'the channels'}"
    builder.title = sentence(head.phrase, describe(plan.chain("chain")), over, describe(plan.chain("post")), then)

    file = KernelFile(builder, NAME, [Tensor("x", "x")])
    scope = THREAD if strided else draw_scope(rng, True)
    at = "base + j * inner" if strided else "base + j"
    start = f"{scope.start}    int base = {'row / inner * D * inner + row % inner' if strided else 'row * D'};\n"
    integers = ["D", *when(strided, "inner"), *scope.integers]
    load = file.load(steps, f"x[{at}]")
    body = start + row_body(row.body, scope.loop, load, scope)
    if mapped:
        body += f"    {scope.loop} {{\n        float v = {row.result.format(load=load)};\n"
        body += f"{statements(post, 8)}        out[{at}] = v;\n    }}\n"
    else:
        body += _store(row.result, post, scope.lead)
    extent = f"D = {'x.size(-1)' if head.last else 'x.size(1)'}"
    extent = "D = x.stride(1)" if space else extent + (", inner = x.stride(1)" if strided else "")
    host = f"    int {extent}, rows = x.numel() / D;\n"
    host += "    auto out = torch::empty_like(x);\n" if mapped else _reduced(head, space, keepdim)
    code = "".join(reduction_helper(scope, kind) for kind in row.kinds) + file.pre(steps) + file.kernel(body, integers)
    launch = file.launch(scope.grid, integers)
    text = file.write(code, host + launch, inputs=head.inputs, before=head.lines, result=result)
    return Draft(builder, text, scope.style)


def _store(result: str, post: Sequence[Step], lead: str) -> str:
    """One thread finishes the row."""
    depth = 8 if lead else 4
    text = lines(f"float v = {result};", list(post), "out[row] = v;", indent=depth)
    return f"    if ({lead}) {{\n{text}    }}\n" if lead else text


def _reduced(head: Head, space: bool, keepdim: bool) -> str:
    """Host lines that allocate the output of a reduction."""
    text = "    auto sizes = x.sizes().vec();\n"
    if space:
        ones = "".join(f" sizes[{axis}] =" for axis in range(2, head.rank))
        text += f"   {ones} 1;\n" if keepdim else "    sizes.resize(2);\n"
    elif head.last:
        text += "    sizes.back() = 1;\n" if keepdim else "    sizes.pop_back();\n"
    else:
        text += "    sizes[1] = 1;\n" if keepdim else "    sizes.erase(sizes.begin() + 1);\n"
    return f"{text}    auto out = torch::empty(sizes, x.options());\n"
