"""One CUDA source as two: C++ for the host compiler, and device code for nvcc.

For the host, kernels become stubs that launch themselves and `<<<...>>>` the call that nvcc makes of it:

    k<T><<<grid, block>>>(x, n)        ->  (__cudaPushCallConfiguration(grid, block) ? (void)0 : k<T>(x, n))
    __global__ void k(T* x) { BODY }   ->  __global__ void k(T* x) { static ... ; ::dice_split::launch(..., {&x}); }

Bodies of `__device__` functions disappear. For the device, the functions of the host disappear and with them, as a
rule, any need of PyTorch's headers. Lines keep their numbers. Nothing depends on this being complete: what does not
compile, or does not fit together, is compiled by nvcc as a whole.
"""

from __future__ import annotations

import re

from dice.verify.build.units import strip_comments
from dice.verify.emulator.functions import Function, check_nesting, device_functions, parameter_list
from dice.verify.emulator.tokens import Edits, Overgrown, Tokens
from dice.verify.emulator.translate import Unsupported, translate_launches

_PUSH = "(__cudaPushCallConfiguration({}) ? (void)0 : "
_UNNAMED = "inline namespace dice_unnamed"  # internal linkage would hide a kernel's name from the linker

# By these a source can tell the two compilers apart, or they need more of nvcc's generated code than we write.
_WHOLE_ONLY = re.compile(
    r"\b(__CUDACC__|__NVCC__|__managed__|cudaGraph\w*Kernel\w*|cudaLaunchKernelEx)\b|#\s*pragma\s+nv_"
)


class NotSplit(Exception):
    """This source has to be compiled as a whole."""


def host_text(source: str) -> str:
    """C++ text for the host compiler. Raises `NotSplit`."""
    if _WHOLE_ONLY.search(strip_comments(source)):
        raise NotSplit
    try:
        return _host_text(Tokens(source), Edits(source))
    except Overgrown:
        raise NotSplit from None


def _host_text(tokens: Tokens, edits: Edits) -> str:
    functions = list(device_functions(tokens))
    check_nesting(tokens, functions)
    if not any(function.is_kernel for function in functions):
        raise NotSplit
    for function in functions:
        words = _words_before_body(tokens, function)
        if function.is_kernel:
            _make_stub(tokens, edits, function)
        elif "__host__" not in words and "constexpr" not in words:
            _blank_body(tokens, edits, function)
    try:
        translate_launches(tokens, edits, functions, _PUSH)
    except Unsupported:  # a kernel that launches one
        raise NotSplit from None
    _give_external_linkage(tokens, edits)
    return edits.apply()


def whole_device_text(source: str) -> str:
    """The source as nvcc should see it when its kernels are to have the host text's names."""
    tokens, edits = Tokens(source), Edits(source)
    _give_external_linkage(tokens, edits)
    return edits.apply()


def device_text(source: str) -> str | None:
    """Text for nvcc without the host's functions and headers; None when something of them is needed."""
    tokens, edits = Tokens(source), Edits(source)
    _give_external_linkage(tokens, edits)
    for start, end in _host_functions(tokens):
        edits.blank(tokens[start].start, tokens[end].end)
    text = _HEADER.sub(_blank_include, edits.apply())
    left = strip_comments(text)
    if _PYTORCH.search(left):
        return None
    if not re.search(r"\bstd\b|\binitializer_list\b", left):
        text = _STD_HEADER.sub(_blank_include, text)
    return text


def has_templates(source: str) -> bool:
    """True when a kernel may be a template, so that only the host's code knows what to instantiate."""
    return re.search(r"\btemplate\b", strip_comments(source)) is not None


# ---- the host's text -----------------------------------------------------------------------------------------------


def _words_before_body(tokens: Tokens, function: Function) -> set[str]:
    """Words of a function's declaration, those before its first marker included."""
    start = function.start
    while start > 0 and tokens.text(start - 1) not in (";", "}", "{", ")") and (start - 1) not in tokens.directive_end:
        start -= 1
    return {tokens.text(index) for index in range(start, function.opening)}


def _blank_body(tokens: Tokens, edits: Edits, function: Function) -> None:
    edits.blank(tokens[function.opening].end, tokens[function.closing].start)
    edits.insert(tokens[function.opening].end, " __builtin_trap(); ")


def _make_stub(tokens: Tokens, edits: Edits, function: Function) -> None:
    names = _parameter_names(tokens, function)
    arguments = "".join(f"(void*)&{name}, " for name in names)
    inside = tokens[function.opening].end
    edits.insert(
        inside,
        f" static const void* dice_kernel; void* dice_arguments[] = {{{arguments}nullptr}}; "
        '::dice_split::launch(dice_kernel, dice_arguments); asm volatile("");',
    )
    edits.blank(inside, tokens[function.closing].start)


def _parameter_names(tokens: Tokens, function: Function) -> list[str]:
    opening = parameter_list(tokens, function)
    if opening is None:
        raise NotSplit
    names = []
    for start, end in _split_at_commas(tokens, opening + 1, tokens.partner[opening]):
        texts = [tokens.text(index) for index in range(start, end)]
        for stop in ("=", "["):
            if stop in texts:
                texts = texts[: texts.index(stop)]
        if texts == ["void"] or not texts:
            continue
        if "(" in texts or len(texts) < 2 or not re.fullmatch(r"[A-Za-z_]\w*", texts[-1]):
            raise NotSplit
        is_pack = len(texts) > 3 and texts[-4:-1] == [".", ".", "."]
        names.append(texts[-1] + ("..." if is_pack else ""))
    return names


def _split_at_commas(tokens: Tokens, start: int, end: int) -> list[tuple[int, int]]:
    parts, depth, begin, index = [], 0, start, start
    while index < end:
        text = tokens.text(index)
        depth += {"<": 1, ">": -1, ">>": -2}.get(text, 0)
        if text == "," and depth == 0:
            parts.append((begin, index))
            begin = index + 1
        index = tokens.partner[index] + 1 if text in ("(", "[", "{") and index in tokens.partner else index + 1
    return [*parts, (begin, end)]


# ---- both ----------------------------------------------------------------------------------------------------------


def _give_external_linkage(tokens: Tokens, edits: Edits) -> None:
    """Kernels and device variables need a name that the linker can see."""
    for index, token in enumerate(tokens.list):
        if token.text == "namespace" and tokens.text(index + 1) == "{":
            edits.replace(token.start, token.end, _UNNAMED)
        elif token.text == "static" and _marks_device(tokens, index):
            edits.blank(token.start, token.end)


def _marks_device(tokens: Tokens, index: int) -> bool:
    near = {tokens.text(index + 1), tokens.text(index + 2), tokens.text(index - 1), tokens.text(index - 2)}
    return bool(near & {"__global__", "__constant__"})


# ---- the device's text ---------------------------------------------------------------------------------------------

_HEADER = re.compile(
    r"^[ \t]*#[ \t]*include[ \t]*[<\"](?:torch|ATen|c10|pybind11)/[^>\"\n]*[>\"][^\n]*$|^[ \t]*#[ \t]*include[ \t]*"
    r"[<\"](?:Python\.h|cublas\w*\.h|cudnn\w*\.h)[>\"][^\n]*$",
    re.M,
)
_STD_HEADER = re.compile(
    r"^[ \t]*#[ \t]*include[ \t]*<(?:vector|string|iostream|sstream|iomanip|fstream|memory|map|unordered_map|set"
    r"|optional|tuple|utility|stdexcept|functional|array|algorithm|numeric|mutex|chrono|random|cstdlib|cstdio|cstring)>"
    r"[^\n]*$",
    re.M,
)
_PYTORCH = re.compile(r"\b(torch|at|c10|caffe2|pybind11|py)\s*::|\b(Tensor|(?:AT|TORCH|C10)_\w+)\b")
_DEVICE_WORDS = frozenset({"__device__", "__global__", "__constant__", "__shared__", "constexpr", "consteval"})
_KEPT_STARTS = frozenset(
    {"struct", "class", "union", "enum", "typedef", "using", "namespace", "static_assert", "concept"}
)


def _blank_include(match: re.Match[str]) -> str:
    return ""


def _host_functions(tokens: Tokens) -> list[tuple[int, int]]:
    """First and last token of each definition or declaration at namespace scope that only the host can use."""
    found: list[tuple[int, int]] = []
    markers = _DEVICE_WORDS | _macros_with(tokens, _DEVICE_WORDS)
    index = 0
    while index < len(tokens):
        if index in tokens.directive_end:
            index = tokens.directive_end[index]
            continue
        text = tokens.text(index)
        opening = _namespace_body(tokens, index)
        if opening is not None:
            index = opening + 1
        elif text in ("}", ";"):
            index += 1
        else:
            end = _declaration_end(tokens, index)
            words = {tokens.text(i) for i in range(index, end + 1) if tokens[i].kind == "word"}
            head = _after_template(tokens, index)
            is_function = any(tokens.text(i) == "(" for i in range(index, end))
            if is_function and not words & markers and tokens.text(head) not in _KEPT_STARTS:
                found.append((index, end))
            index = end + 1
    return found


def _macros_with(tokens: Tokens, words: frozenset[str]) -> set[str]:
    return {name for name, places in tokens.macros if any(tokens.text(index) in words for index in places)}


def _namespace_body(tokens: Tokens, index: int) -> int | None:
    """Index of the brace that opens a namespace or linkage block beginning here."""
    while index < len(tokens) and (
        tokens.text(index) in ("inline", "namespace", "extern") or tokens[index].kind == "string"
    ):
        if tokens.text(index) == "namespace" or tokens[index].kind == "string":
            while tokens.text(index) not in ("{", ";", "=", "(", "") and index not in tokens.directive_end:
                index += 1
                if tokens[index - 1].kind == "string" and tokens.text(index) != "{":
                    return None
            return index if tokens.text(index) == "{" else None
        index += 1
    return None


def _after_template(tokens: Tokens, index: int) -> int:
    """The first token after any `template <...>` in front; not past the declaration, where one is never closed."""
    while tokens.text(index) == "template" and tokens.text(index + 1) == "<":
        depth, index = 0, index + 1
        while index < len(tokens) and tokens.text(index) not in (";", "{") and index not in tokens.directive_end:
            depth += {"<": 1, ">": -1, ">>": -2}.get(tokens.text(index), 0)
            index += 1
            if depth <= 0:
                break
    return index


def _declaration_end(tokens: Tokens, index: int) -> int:
    """Last token of the declaration that begins here: its semicolon, or the brace that closes a body."""
    assigned = False
    start = index
    is_type = tokens.text(_after_template(tokens, index)) in _KEPT_STARTS
    while index < len(tokens):
        text = tokens.text(index)
        if index in tokens.directive_end:
            return max(index - 1, start)
        if text == ";":
            return index
        assigned = assigned or text == "="
        if text in ("(", "[", "{") and index in tokens.partner:
            closing = tokens.partner[index]
            if text == "{" and not assigned and not is_type:
                return closing
            index = closing
        index += 1
    return len(tokens) - 1
