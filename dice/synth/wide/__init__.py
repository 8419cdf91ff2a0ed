"""The styles in which people write modules, applied to a drawn pair: the same computation, and a kernel that follows.

Each style is a function of a problem's text, its kernel's text and a stream of random numbers: the two texts rewritten,
or nothing where the style has no place. What is computed stays; where a style changes constructor, state, inputs or
outputs, `ModelNew` changes with them.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from dice.synth.wide import bodies, layers, layout, numbers, products, signature, spelling
from dice.synth.wide.text import Style, Text, Work

__all__ = ["STYLES", "Work", "Written", "rewritten"]

# Name -> the style, and how often it is tried, relative to the others. In this order: what changes the structure comes
# first, expressions next, and the layout of the file last.
STYLES: dict[str, tuple[Style, float]] = {
    "explicit_weights": (products.explicit_weights, 0.5),
    "functional_linear": (products.functional_linear, 0.35),
    "sequential": (layers.sequential, 0.7),
    "layer_loop": (layers.layer_loop, 0.5),
    "own_module": (layers.own_module, 0.2),
    "module_dict": (layers.module_dict, 0.15),
    "module_list": (layers.module_list, 0.15),
    "buffer": (layers.buffer, 0.6),
    "parameter_dict": (layers.parameter_dict, 0.15),
    "registered": (layers.registered, 0.15),
    "build_method": (layers.build_method, 0.12),
    "einsum": (products.einsum, 0.7),
    "product_forms": (products.product_forms, 0.3),
    "constructor_default": (numbers.constructor_default, 0.25),
    "class_constant": (numbers.class_constant, 0.2),
    "module_constant": (numbers.module_constant, 0.25),
    "attribute_number": (numbers.attribute_number, 0.15),
    "number_property": (numbers.number_property, 0.2),
    "settings_dict": (numbers.settings_dict, 0.12),
    "local_constant": (numbers.local_constant, 0.15),
    "literal_sizes": (numbers.literal_sizes, 0.15),
    "keywords": (spelling.keywords, 0.2),
    "other_end": (spelling.other_end, 0.9),
    "unsqueezed": (spelling.unsqueezed, 0.7),
    "axis": (spelling.axis, 0.2),
    "powers": (spelling.powers, 0.3),
    "shapes": (spelling.shapes, 0.3),
    "methods": (spelling.methods, 0.25),
    "functions": (spelling.functions, 0.25),
    "named_operators": (spelling.named_operators, 0.2),
    "operators": (spelling.operators, 0.2),
    "flattened": (spelling.flattened, 0.08),
    "inlined": (bodies.inlined, 0.25),
    "named_parts": (bodies.named_parts, 0.25),
    "in_place": (spelling.in_place, 0.9),
    "by_name": (bodies.by_name, 0.12),
    "loop_over_functions": (bodies.loop_over_functions, 0.15),
    "condition": (bodies.condition, 0.15),
    "helper_method": (bodies.helper_method, 0.25),
    "static_method": (bodies.static_method, 0.2),
    "file_function": (bodies.file_function, 0.2),
    "nested_function": (bodies.nested_function, 0.1),
    "local_lambda": (bodies.local_lambda, 0.08),
    "unpacked": (bodies.unpacked, 0.1),
    "renamed": (bodies.renamed, 0.25),
    "inner_output": (signature.inner_output, 0.6),
    "more_outputs": (signature.more_outputs, 0.08),
    "wrapped_output": (signature.wrapped_output, 0.07),
    "input_order": (signature.input_order, 0.35),
    "unused_input": (signature.unused_input, 0.12),
    "packed_inputs": (signature.packed_inputs, 0.6),
    "tuple_input": (signature.tuple_input, 0.1),
    "star_inputs": (signature.star_inputs, 0.2),
    "method_chain": (bodies.method_chain, 0.8),
    "input_builders": (signature.input_builders, 0.3),
    "input_list": (signature.input_list, 0.15),
    "init_list": (signature.init_list, 0.12),
    "hints": (layout.hints, 0.25),
    "docstrings": (layout.docstrings, 0.2),
    "comments": (layout.comments, 0.15),
    "super_form": (layout.super_form, 0.2),
    "imports": (layout.imports, 0.25),
    "main_block": (layout.main_block, 0.03),
}
# How eager an author is to write otherwise: some texts stay as they were drawn.
_EAGERNESS = (0.0, 0.5, 1.0, 1.7)


@dataclass(frozen=True, slots=True)
class Written:
    """What became of a pair: its problem in each of the sizes that were given, its kernel, and the styles it has."""

    problems: tuple[str, ...]
    kernel: str
    styles: tuple[str, ...]


def rewritten(
    problems: Sequence[str],
    kernel: str,
    rng: random.Random,
    *,
    without: frozenset[str] = frozenset(),
    always: frozenset[str] = frozenset(),
) -> Written:
    """The pair in styles drawn from `rng`. `problems` are one text with other numbers, and stay so.

    Styles in `without` are never used, those in `always` wherever they have a place. What is drawn for the others does
    not depend on either.
    """
    texts, applied = tuple(problems), []
    eagerness = rng.choices(_EAGERNESS, (1, 3, 4, 2))[0]
    for name, (style, rate) in STYLES.items():
        wanted, seed = rng.random() < rate * eagerness, rng.random()
        if name in without or not (wanted or name in always):
            continue
        results = [style(Work(text, kernel), random.Random(seed)) for text in texts]
        changed = [result for result in results if result is not None]
        if len(changed) == len(texts) and len({result.kernel for result in changed}) == 1 and _one_text(changed):
            texts, kernel = tuple(result.problem for result in changed), changed[0].kernel
            applied.append(name)
    return Written(texts, kernel, tuple(applied))


def _one_text(results: Sequence[Work]) -> bool:
    """Whether the problems differ in numbers alone; constants of the file may share lines where they are equal."""
    if len(results) == 1:
        return True
    texts = [Text(result.problem) for result in results]
    parts = [
        [re.sub(r"\d+", "0", text.of(node)) for node in text.tree.body if not isinstance(node, ast.Assign)]
        for text in texts
    ]
    return all(other == parts[0] for other in parts)
