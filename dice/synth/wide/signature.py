"""Styles of what goes in and out: order and number of the inputs, several outputs, how inputs are made.

`forward` of the kernel's file takes what the module's takes, in that order, and returns what it returns.
"""

from __future__ import annotations

import ast
import random
import re

from dice.synth.wide.text import Function, Text, Work, called, fresh, given, is_tensor, statements, tensors

_UNUSED = (
    "mask",
    "attn_mask",
    "y",
    "labels",
    "context",
    "aux",
    "positions",
    "unused",
    "extra",
    "state",
    "lengths",
    "cond",
)
_KEYS = ("out", "output", "result", "y", "logits", "hidden", "features", "last_hidden_state", "prediction", "value")


def _made(text: Text) -> tuple[ast.Return, list[ast.expr]] | None:
    """The last statement of `get_inputs`, and what it returns."""
    last = text.function("get_inputs").body[-1]
    if isinstance(last, ast.Return) and isinstance(last.value, ast.List | ast.Tuple):
        items = last.value.elts
        if len(items) == len(text.inputs) and not any(isinstance(item, ast.Starred) for item in items):
            return last, items
    return None


def _plain(function: Function) -> bool:
    """Whether the signature is names alone, with or without hints."""
    arguments = function.args
    return not (arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.defaults)


def input_order(work: Work, rng: random.Random) -> Work | None:
    """The inputs in another order, in both files."""
    text, kernel = Text(work.problem), Text(work.kernel)
    made = _made(text)
    count = len(text.inputs)
    if (
        made is None
        or count < 2
        or len(kernel.inputs) != count
        or not (_plain(text.forward) and _plain(kernel.forward))
    ):
        return None
    if len(text.classes) > 1 or any(called(node) == "self.forward" for node in ast.walk(text.model)):
        return None
    order = list(range(count))
    while order == sorted(order):
        rng.shuffle(order)
    for file in (text, kernel):
        arguments = file.forward.args.args[1:]
        for place, source in zip(arguments, order, strict=True):
            _exchange(file, place, file.of(arguments[source]))
    items = made[1]
    for item, source in zip(items, order, strict=True):
        text.replace(item, text.of(items[source]))
    return Work(text.result(), kernel.result())


def _exchange(file: Text, argument: ast.arg, new: str) -> None:
    file.replace(argument, new)


def unused_input(work: Work, rng: random.Random) -> Work | None:
    """An input that `forward` does not read: given, or with a default and left out."""
    text, kernel = Text(work.problem), Text(work.kernel)
    made = _made(text)
    if made is None or not (_plain(text.forward) and _plain(kernel.forward)) or not text.inputs:
        return None
    name = fresh(rng, _UNUSED, text.taken | kernel.taken)
    hinted = text.forward.args.args[-1].annotation is not None
    if rng.random() < 0.6:
        written = (
            f"{name}: {rng.choice(('Optional[torch.Tensor]', 'torch.Tensor'))} = None" if hinted else f"{name}=None"
        )
        if "Optional[" in written:
            text.require("from typing import Optional")
        text.signature(text.forward, written)
        kernel.signature(kernel.forward, f"{name}=None")
        if rng.random() < 0.4 and given(text)[:1] == [True]:
            first = text.inputs[0]
            head = next(node for node in text.forward.body if not _is_text(node))
            if not _stores(text, first):
                text.above(head, f"if {name} is not None:", f"    {first} = {first} + {name}")
    else:
        text.signature(text.forward, f"{name}: torch.Tensor" if hinted else name)
        kernel.signature(kernel.forward, name)
        extra = rng.choice(("torch.rand(4)", "torch.ones(2, 2)", "torch.randn(1)", "torch.zeros(3)", "torch.arange(5)"))
        _, end = text.span(made[1][-1])
        text._edit(end, end, f", {extra}")
    return Work(text.result(), kernel.result())


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _stores(text: Text, name: str) -> bool:
    return any(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)
        for node in ast.walk(text.forward)
    )


def star_inputs(work: Work, rng: random.Random) -> Work | None:
    """`forward(self, *inputs)`, which unpacks them first."""
    text = Text(work.problem)
    if len(text.inputs) < 2 or not _plain(text.forward) or len(text.classes) > 1:
        return None
    name = fresh(rng, ("inputs", "args", "tensors", "xs", "operands"), text.taken)
    names = list(text.inputs)
    arguments = text.forward.args.args
    start, end = text.span(arguments[1])[0], text.span(arguments[-1])[1]
    text._edit(start, end, f"*{name}")
    first = next(node for node in text.forward.body if not _is_text(node))
    text.above(first, f"{', '.join(names)} = {name}")
    return Work(text.result(), work.kernel)


def tuple_input(work: Work, rng: random.Random) -> Work | None:
    """The inputs as one tuple, list or dictionary; the kernel's `forward` unpacks it as well."""
    text, kernel = Text(work.problem), Text(work.kernel)
    made = _made(text)
    usable = made is not None and len(text.inputs) > 1 and _plain(text.forward) and _plain(kernel.forward)
    if not usable or made is None or len(text.classes) > 1 or not all(given(text)):
        return None
    kind = rng.choice(("tuple", "list", "dict"))
    name = fresh(rng, ("inputs", "batch", "pair", "data_in", "sample"), text.taken | kernel.taken)
    keys = list(text.inputs)
    for file in (text, kernel):
        arguments = file.forward.args.args
        names = list(file.inputs)
        file._edit(file.span(arguments[1])[0], file.span(arguments[-1])[1], name)
        first = next(node for node in file.forward.body if not _is_text(node))
        if kind == "dict":
            file.above(first, *(f'{own} = {name}["{key}"]' for own, key in zip(names, keys, strict=True)))
        else:
            file.above(first, f"{', '.join(names)} = {name}")
    items = [text.of(item) for item in made[1]]
    inner = ", ".join(items)
    pairs = ", ".join(f'"{key}": {item}' for key, item in zip(keys, items, strict=True))
    text.replace(
        made[0], f"return [{ {'tuple': f'({inner})', 'list': f'[{inner}]', 'dict': '{' + pairs + '}'}[kind] }]"
    )
    return Work(text.result(), kernel.result())


# One tensor that holds the inputs: how it is made from {0}, and how `forward` takes it apart; {1} is the tensor's name.
_PACKS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("torch.stack([{0}])", ("{2} = {1}.unbind(0)", "{2} = {1}", "{2} = torch.unbind({1}, dim=0)")),
    ("torch.stack([{0}], dim=-1)", ("{2} = {1}.unbind(-1)", "{2} = torch.unbind({1}, dim=-1)")),
    (
        "torch.cat([{0}], dim=-1)",
        (
            "{2} = {1}.chunk({3}, dim=-1)",
            "{2} = torch.chunk({1}, {3}, dim=-1)",
            "{2} = {1}.split({1}.shape[-1] // {3}, dim=-1)",
            "{2} = torch.split({1}, [{1}.size(-1) // {3}] * {3}, dim=-1)",
        ),
    ),
)


def packed_inputs(work: Work, rng: random.Random) -> Work | None:
    """Inputs of one shape in a single tensor that both files take apart, as fused projections leave them."""
    text, kernel = Text(work.problem), Text(work.kernel)
    made = _made(text)
    if made is None or not (_plain(text.forward) and _plain(kernel.forward)) or len(text.classes) > 1:
        return None
    values = {
        node.targets[0].id: text.of(node.value)
        for node in text.function("get_inputs").body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    items = [text.of(item) for item in made[1]]
    shapes = {re.sub(r"torch\.randn?\b", "torch.sample", values.get(item, item)) for item in items}
    sampled = all(re.match(r"torch\.randn?\((?!\))", values.get(item, item)) for item in items)
    if len(items) < 2 or len(shapes) > 1 or not sampled or len(kernel.inputs) != len(items):
        return None
    name = fresh(rng, ("packed", "fused", "qkv", "both", "stacked", "combined", "xy"), text.taken | kernel.taken)
    form, openings = rng.choice(_PACKS)
    opening = rng.choice(openings)
    for file in (text, kernel):
        arguments, names = file.forward.args.args, list(file.inputs)
        file._edit(file.span(arguments[1])[0], file.span(arguments[-1])[1], name)
        first = next(node for node in file.forward.body if not _is_text(node))
        file.above(first, opening.format("", name, ", ".join(names), len(names)))
    text.replace(made[0], f"return [{form.format(', '.join(items))}]")
    return Work(text.result(), kernel.result())


def _ends(work: Work) -> tuple[Text, Text, ast.Return, ast.Return] | None:
    """Both files with the last statements of their `forward`, where each returns one tensor in one place."""
    text, kernel = Text(work.problem), Text(work.kernel)
    found: list[ast.Return] = []
    for file in (text, kernel):
        returns = [node for node in ast.walk(file.forward) if isinstance(node, ast.Return)]
        last = file.forward.body[-1]
        single = len(returns) == 1 and isinstance(last, ast.Return) and last.lineno == last.end_lineno
        if not single or isinstance(returns[0].value, ast.Tuple | ast.Dict | ast.List):
            return None
        found += returns
    if len(text.classes) > 1 or found[0].value is None or not is_tensor(found[0].value, tensors(text, text.forward)):
        return None
    return text, kernel, found[0], found[1]


def _unhinted(text: Text) -> None:
    """The result's hint taken away: it is no tensor any more."""
    returns = text.forward.returns
    if returns is not None:
        start, end = text.span(returns)
        before = text.text[:start].rstrip()
        text._edit(len(before) - len("->"), end, "")
        arrow = before[: -len("->")]
        text._edit(len(arrow.rstrip()), len(arrow), "")


def wrapped_output(work: Work, rng: random.Random) -> Work | None:
    """The result in a tuple of one, a list or a dictionary."""
    ends = _ends(work)
    if ends is None:
        return None
    text, kernel, last, kernel_last = ends
    key = rng.choice(_KEYS)
    form = rng.choice(("({},)", "[{}]", f'{{{{"{key}": {{}}}}}}', f"dict({key}={{}})"))
    for file, node in ((text, last), (kernel, kernel_last)):
        assert node.value is not None
        own = form if file is text or not form.startswith("dict(") else f'{{{{"{key}": {{}}}}}}'
        file.replace(node.value, own.format(file.of(node.value)))
    _unhinted(text)
    return Work(text.result(), kernel.result())


# What may stand beside a result: all change little where the result does.
_ALWAYS = ("{0} * 2", "{0}.flatten()", "{0}.detach()", "torch.stack([{0}, {0}])")
_BESIDE = (
    *_ALWAYS,
    *("{0}.mean()", "{0}.abs().mean()", "{0}.pow(2).mean()", "-{0}", "{0}.abs().amax()", "{0}.topk(1, dim=-1).values"),
    *("{0}.masked_fill({0} < 0, 0.0)", "torch.where({0} > 0, {0}, 0.1 * {0})", "{0}.new_zeros(2)"),
)


def more_outputs(work: Work, rng: random.Random) -> Work | None:
    """A second result that follows from the first, as a tuple or by name: the kernel's file has PyTorch compute it."""
    ends = _ends(work)
    if ends is None:
        return None
    text, kernel, last, kernel_last = ends
    counts = re.search(r"arg(max|min|sort)|indices|\[1\]|\.(long|int|bool)\(", work.problem)
    extra = rng.choice(_ALWAYS if counts else _BESIDE)
    taken = text.taken | kernel.taken
    value = fresh(rng, ("result", "out", "y", "res", "final"), taken)
    first, second = rng.sample(_KEYS, 2)
    form = rng.choice(("{0}, {1}", "({0}, {1})", "[{0}, {1}]", f'{{{{"{first}": {{0}}, "{second}": {{1}}}}}}'))
    for file, node, name in ((text, last, value), (kernel, kernel_last, "out")):
        assert node.value is not None
        written = form.format(name, extra.format(name))
        file.instead(node, f"{name} = {file.of(node.value)}", f"return {written}")
    _unhinted(text)
    return Work(text.result(), kernel.result())


def inner_output(work: Work, rng: random.Random) -> Work | None:
    """The result of the first layer returned beside the last, where the kernel's file has it as well."""
    ends = _ends(work)
    if ends is None:
        return None
    text, kernel, last, kernel_last = ends
    pattern = r"(self\.\w+)\(\w+\)"
    body, other = text.forward.body, kernel.forward.body
    places = [
        node
        for node in statements(text.forward)
        if isinstance(node, ast.Assign) and re.fullmatch(pattern, text.of(node.value))
    ]
    if not places or len(other) < 2 or not isinstance(other[0], ast.Assign) or body.index(places[0]) != 0:
        return None
    place, begin = places[0], other[0]
    same = re.match(pattern, kernel.of(begin.value))
    own = re.match(pattern, text.of(place.value))
    if not same or not own or own[1] != same[1] or kernel.of(begin.value) != f"{own[1]}({kernel.inputs[0]})":
        return None
    if re.search(r"[a-z]_\(|inplace|[-+*/]= ", text.text) or text.of(place.value) != f"{own[1]}({text.inputs[0]})":
        return None
    taken = text.taken | kernel.taken
    name = fresh(rng, ("hidden", "features", "pre", "inner_value", "raw", "first_out"), taken)
    swap = rng.random() < 0.4
    for file, node, start in ((text, last, place), (kernel, kernel_last, begin)):
        assert node.value is not None
        file.below(start, f"{name} = {file.of(start.targets[0])}")
        parts = [file.of(node.value), name]
        file.replace(node.value, ", ".join(reversed(parts) if swap else parts))
    _unhinted(text)
    return Work(text.result(), kernel.result())


# By the call that they stand for. None gives zeros where that gives none: some problems divide by their inputs.
_SAMPLERS: dict[str, tuple[str, ...]] = {
    "randn": (
        "torch.randn({}, dtype=torch.float32)",
        "torch.randn(({}))",
        "torch.randn([{}])",
        "torch.randn(*({}))",
        "torch.randn({}).float()",
        "torch.randn({}) * 2.0",
        "3 * torch.randn({}) + 0.5",
        "torch.randn({}, requires_grad=False)",
        'torch.randn({}, device="cpu")',
        "torch.normal(0.0, 1.0, size=({}))",
        "torch.empty({}).normal_()",
        "torch.zeros({}).normal_()",
        "torch.rand({}) * 4 - 2",
        "torch.rand(size=({})).sub(0.5)",
        "torch.randint(-8, 8, ({})) / 4.0 + 0.125",
    ),
    "rand": (
        "torch.rand({}, dtype=torch.float32)",
        "torch.rand(({}))",
        "torch.rand([{}])",
        "torch.rand(*({}))",
        "torch.rand({}).float()",
        'torch.rand({}, device="cpu")',
        "torch.rand({}) * 0.9 + 0.05",
        "torch.empty({}).uniform_(0, 1)",
        "torch.zeros({}).uniform_()",
        "torch.ones({}) * torch.rand({})",
        "torch.randint(1, 17, ({})) / 16.0",
    ),
}


def input_builders(work: Work, rng: random.Random) -> Work | None:
    """Inputs made in another way: other samplers, whole numbers as floats, a type or a device given."""
    text = Text(work.problem)
    calls = [
        node
        for node in ast.walk(text.function("get_inputs"))
        if isinstance(node, ast.Call)
        and called(node) in ("torch.randn", "torch.rand")
        and node.args
        and not node.keywords
    ]
    calls = [node for node in calls if not any(isinstance(item, ast.Starred) for item in node.args)]
    if not calls:
        return None
    for node in calls:
        sizes = node.args
        if len(sizes) == 1 and isinstance(sizes[0], ast.Tuple | ast.List):
            sizes = sizes[0].elts
        inner = ", ".join(text.of(item) for item in sizes)
        if len(sizes) == 1 and (not isinstance(sizes[0], ast.Constant | ast.Name) or "shape" in inner):
            continue
        form = rng.choice(_SAMPLERS[called(node).split(".")[1]])
        comma = "," if len(sizes) == 1 and re.search(r"\(\(\{\}\)|=\(\{\}\)|\*\(\{\}\)|, \(\{\}\)", form) else ""
        whole = form.replace("({})", f"({inner}{comma})") if comma else form.replace("{}", inner)
        start, end = text.span(node)
        outer = (
            text.text[end : end + 1] == "."
            or text.text[max(0, start - 2) : start] in ("* ", "- ")
            or text.text[end : end + 2] in (" *", " -", " /")
        )
        text.replace(node, f"({whole})" if outer else whole)
    return Work(text.result(), work.kernel)


def input_list(work: Work, rng: random.Random) -> Work | None:
    """`get_inputs` by other statements: named values, a list that is appended to, a tuple."""
    text = Text(work.problem)
    made = _made(text)
    if made is None:
        return None
    last, items = made
    form = rng.choice(("append", "named", "list", "same"))
    written = [text.of(item) for item in items]
    taken = text.taken
    name = fresh(rng, ("inputs", "values", "batch", "args", "tensors"), taken)
    if form == "append":
        lines = [f"{name} = []", *(f"{name}.append({item})" for item in written), f"return {name}"]
    elif form == "list":
        lines = [f"{name} = [{', '.join(written)}]", f"return {name}"]
    elif form == "same" and len(set(written)) == 1 and len(written) > 1 and "torch." in written[0]:
        lines = [f"return [{written[0]} for _ in range({len(written)})]"]
    elif not any(isinstance(item, ast.Name) for item in items):
        stored = {node.id for node in ast.walk(text.tree) if isinstance(node, ast.Name)}
        names = [name if name not in stored else fresh(rng, (f"{name}_value",), taken) for name in text.inputs]
        lines = [
            *(f"{name} = {item}" for name, item in zip(names, written, strict=True)),
            f"return [{', '.join(names)}]",
        ]
    else:
        return None
    text.instead(last, *lines)
    return Work(text.result(), work.kernel)


def init_list(work: Work, rng: random.Random) -> Work | None:
    """`get_init_inputs` by other statements: named values, a tuple, a list built up."""
    text = Text(work.problem)
    last = text.function("get_init_inputs").body[-1]
    if not isinstance(last, ast.Return) or not isinstance(last.value, ast.List) or not last.value.elts:
        return None
    written = [text.of(item) for item in last.value.elts]
    form = rng.choice(("tuple", "named", "append", "plus"))
    if form == "tuple":
        lines = [f"return ({', '.join(written)}{',' if len(written) == 1 else ''})"]
    elif form == "append":
        name = fresh(rng, ("args", "arguments", "settings"), text.taken)
        lines = [f"{name} = []", *(f"{name}.append({item})" for item in written), f"return {name}"]
    elif form == "plus" and len(written) > 1:
        lines = [f"return [{', '.join(written[:1])}] + [{', '.join(written[1:])}]"]
    else:
        name = fresh(rng, ("init_inputs", "values", "config_args"), text.taken)
        lines = [f"{name} = [{', '.join(written)}]", f"return {name}"]
    text.instead(last, *lines)
    return Work(text.result(), work.kernel)
