"""CUDA C++ text to C++17 text: launches, kernel bodies and `__shared__` declarations. Headers do all the rest.

    k<T><<<grid, block>>>(x, n)        ->  (::dice_emu::configure(grid, block), k<T>(x, n))
    __global__ void k(T* x) { BODY }   ->  __global__ void k(T* x) { ...run(kernel, [=]() mutable { BODY }); }
    __shared__ float a[32][33], b;     ->  a named static site, and `auto& a = shared(site, (float (*)[32][33])0)`
    extern __shared__ float s[];       ->  auto* const s = dynamic_shared((float*)0)
    v[t] += v[t + 16];                 ->  ::dice_emu::store(v[t], v[t] + (v[t + 16]));   where v is volatile

The call of a kernel stays an ordinary C++ call, so overloads, deduction, default arguments and conversions need no
help; the function's body becomes the loop over threads. Lines keep their numbers.

What cannot be read, as where a bracket or a semicolon is missing, is left as it is, for the compiler to say so. Time
and result grow as the source does, whatever it is: what lies ahead of each token is found once, from the last token to
the first (`_Ahead`), and how deep functions and launches may be nested is limited.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from dice.verify.emulator import device_code, fast_math, host_code, insertions, ptx
from dice.verify.emulator.functions import (
    Function,
    check_nesting,
    device_functions,
    functions_around,
    launch_bounds,
    parameter_list,
)
from dice.verify.emulator.tokens import CLOSING, Edits, Overgrown, Token, Tokens


class Unsupported(Exception):
    """The source uses something that emulation cannot do; the message is one sentence."""


def translate(source: str, fast: bool = False) -> str:
    """C++17 text that g++ compiles against the emulator's headers, line for line. `fast`: with `-use_fast_math`. Raises
    `Unsupported`."""
    try:
        return _translate(Tokens(source), Edits(source), fast)
    except Overgrown:
        raise Unsupported("Functions or launches are nested too deeply for the emulator.") from None


def _translate(tokens: Tokens, edits: Edits, fast: bool) -> str:
    functions = list(device_functions(tokens))
    check_nesting(tokens, functions)
    volatile = _volatile_names(tokens, range(len(tokens)), scalars=True)
    polls = any(True for function in functions for _ in _waiting_loops(tokens, function, volatile))
    for function in functions:
        if function.is_kernel:
            _wrap_body(tokens, edits, function, polls)
    translate_launches(tokens, edits, functions, "(::dice_emu::configure({}), ")
    for index, token in enumerate(tokens.list):
        if token.text == "__noinline__" and tokens.text(index - 1) not in ("(", ","):
            # No macro can do this: the standard library spells __attribute__((__noinline__)).
            edits.replace(token.start, token.end, "__attribute__((noinline))")
        elif token.text in _TYPELESS_FUNCTION_ARGUMENT and tokens.text(index + 1) == "(":
            _drop_function_cast(tokens, edits, index + 2)
    ptx.translate(tokens, edits)
    if fast:
        fast_math.translate(tokens, edits, functions)
    ends = _Ends(tokens)
    shared = _translate_shared(tokens, edits, functions, ends) - _volatile_names(tokens, range(len(tokens)))
    counts = insertions.asks_for_lanes(tokens)
    for function in functions:
        _keep_lockstep(tokens, edits, function, ends)
        for opening in _waiting_loops(tokens, function, volatile):
            edits.insert(tokens[opening].end, "::dice_emu::spin(), ")
        insertions.check_indices(tokens, edits, function)
        insertions.keep_step(tokens, edits, function, shared, ends)
        if counts:
            insertions.count_rounds(tokens, edits, function)
    host_code.check(tokens, edits, functions, device_code.check(tokens, edits, functions))
    return edits.apply()


def kernel_names(source: str) -> tuple[str, ...]:
    """Names of the `__global__` functions defined in `source`, in order."""
    return tuple(function.name for function in device_functions(Tokens(source)) if function.is_kernel)


# ---- kernels ----------------------------------------------------------------------------------------------------


def _wrap_body(tokens: Tokens, edits: Edits, function: Function, polls: bool) -> None:
    seen = "".join(
        f'::dice_emu::argument(dice_kernel, "{name}", {name}); ' for name in _parameter_names(tokens, function)
    )
    bounds = launch_bounds(tokens, function)
    kernel = f"static ::dice_emu::Kernel dice_kernel{{__func__, 0, {str(polls).lower()}, {bounds}}}"
    edits.insert(
        tokens[function.opening].end,
        f" {kernel}; {seen}::dice_emu::run(dice_kernel, [=]() mutable {{",
    )
    edits.insert(tokens[function.closing].start, "}); ")


_NO_NAME = set(
    """
    void bool char short int long float double signed unsigned const volatile auto __restrict__ __restrict half size_t
    """.split()  # noqa: SIM905
)
_NO_TYPE = {"const", "volatile", "struct", "typename", "class", "enum", "__grid_constant__"}
_DEPTHS = {"<": 1, ">": -1, ">>": -2, "(": 1, ")": -1, "[": 1, "]": -1, "{": 1, "}": -1}


def _parameter_names(tokens: Tokens, function: Function) -> list[str]:
    """Names of the parameters that certainly have one."""
    opening = parameter_list(tokens, function)
    if opening is None:
        return []
    names: list[str] = []
    pieces: list[list[int]] = [[]]
    depth = 0
    for index in range(opening + 1, tokens.partner[opening]):
        depth += _DEPTHS.get(tokens.text(index), 0)
        if tokens.text(index) == "," and depth == 0:
            pieces.append([])
        else:
            pieces[-1].append(index)
    for piece in pieces:
        texts = [tokens.text(i) for i in piece]
        texts = texts[: texts.index("=")] if "=" in texts else texts
        texts = texts[: texts.index("[")] if "[" in texts else texts
        if len(texts) < 2 or {"(", ".", "{"} & set(texts) or any(i in tokens.directive_end for i in piece):
            continue
        typed = [text for text in texts[:-1] if text not in _NO_TYPE]
        if re.fullmatch(r"[A-Za-z_]\w*", texts[-1]) and texts[-1] not in _NO_NAME and typed and typed[-1] != "::":
            names.append(texts[-1])
    return names


# ---- launches ----------------------------------------------------------------------------------------------------

# Runtime functions that take a kernel as `const void*`; with its own type they can find the kernel.
_TYPELESS_FUNCTION_ARGUMENT = {"cudaLaunchKernel", "cudaLaunchCooperativeKernel"}


def translate_launches(tokens: Tokens, edits: Edits, functions: list[Function], before: str) -> None:
    """`k<<<configuration>>>(arguments)` becomes `before` (with the configuration in it), `k(arguments)` and `)`."""
    ends = _ends_ahead(tokens, ">>>", (";", *CLOSING))
    around = functions_around(tokens, [function for function in functions if function.is_kernel])
    for index, token in enumerate(tokens.list):
        if token.text == "<<<" and (closing := ends[index + 1]) is not None and closing + 1 in tokens.partner:
            if tokens.text(closing + 1) != "(":
                continue
            if (kernel := around[index]) is not None:
                raise Unsupported(
                    f"kernel {kernel.name} launches a kernel itself (dynamic parallelism), which is not emulated."
                )
            start = tokens[_callee_start(tokens, index)].start
            configuration = edits.source[token.end : tokens[closing].start]
            edits.insert(start, before.format(configuration))
            edits.replace(token.start, tokens[closing].end, "")
            edits.insert(tokens[tokens.partner[closing + 1]].end, ")")


def _ends_ahead(tokens: Tokens, wanted: str, barriers: Collection[str] = ()) -> list[int | None]:
    """For each token and for the end, the first `wanted` from there on that is not in brackets; None where a barrier or
    the end of the brackets around it comes first."""
    ends: list[int | None] = [None] * (len(tokens) + 1)
    for index in range(len(tokens) - 1, -1, -1):
        text = tokens.text(index)
        if text == wanted:
            ends[index] = index
        elif text not in barriers:
            following = tokens.partner.get(index, index)
            ends[index] = ends[following + 1] if following >= index else None
    return ends


def _callee_start(tokens: Tokens, index: int) -> int:
    """First token of the expression that is launched, for the `<<<` at `index`: ns::k<T>, (*f), table[i], o.k ..."""
    index -= 1
    while index > 0 and tokens.text(index) in (")", "]") and index in tokens.partner:
        index = tokens.partner[index] - 1
        if tokens.text(index + 1) == "(" and tokens[index].kind != "word":
            index += 1
            break
    if tokens.text(index) in (">", ">>"):
        start = tokens.template_start(index)
        index = start - 1 if start is not None else index
    while tokens.text(index - 1) == "##":  # of a macro, which pastes the name together
        index -= 2
    while tokens.text(index - 1) in ("::", ".", "->"):
        if index >= 2 and tokens[index - 2].kind == "word":
            index -= 2
        elif tokens.text(index - 2) == ">" and (start := tokens.template_start(index - 2)) is not None:
            index = start - 1
        else:
            index -= 1
            break
    return max(0, index - 1 if tokens.text(index - 1) == "::" else index)


_LONGEST_CAST = 16  # tokens


def _drop_function_cast(tokens: Tokens, edits: Edits, index: int) -> None:
    """Blank a leading `(void*)`, `(const void*)` or `reinterpret_cast<...>` so that the kernel keeps its type."""
    text = tokens.text(index)
    if text == "(" and index in tokens.partner and tokens.partner[index] - index <= _LONGEST_CAST:
        inside = [tokens.text(i) for i in range(index + 1, tokens.partner[index])]
        if "void" in inside and inside[-1] == "*":
            edits.blank(tokens[index].start, tokens[tokens.partner[index]].end)
    elif text in ("reinterpret_cast", "static_cast"):
        while tokens.text(index) not in ("(", ""):
            edits.blank(tokens[index].start, tokens[index].end)
            index += 1


# ---- warps in lockstep -------------------------------------------------------------------------------------------


def _keep_lockstep(tokens: Tokens, edits: Edits, function: Function, ends: _Ends) -> None:
    """Stores through `volatile` arrays: in the reductions that use them, no lane may run ahead of its warp.

    Such code (`v[t] += v[t + 16]; v[t] += v[t + 8]; ...` without __syncwarp) is formally racy but works on a GPU,
    where the lanes of a converged warp take each step together.
    """
    names = _volatile_names(tokens, range(function.start, function.closing))
    for index in range(function.opening + 1, function.closing):
        if tokens.text(index) not in names or tokens.text(index + 1) != "[":
            continue
        if tokens.text(index - 1) not in (";", "{", "}", ")", "else"):
            continue
        bracket = tokens.partner.get(index + 1, index)
        operator = tokens.text(bracket + 1)
        compound = operator in ("+", "-", "*", "/", "&", "|", "^") and tokens.text(bracket + 2) == "="
        end = ends(bracket + 1)
        if end is None or not (compound or operator == "="):
            continue
        target = edits.source[tokens[index].start : tokens[bracket].end]
        if compound:
            edits.insert(tokens[index].start, "::dice_emu::store(")
            edits.replace(tokens[bracket].end, tokens[bracket + 2].end, f", {' '.join(target.split())} {operator} (")
            edits.insert(tokens[end].start, "))")
        else:
            edits.insert(tokens[index].start, "::dice_emu::store(")
            edits.replace(tokens[bracket].end, tokens[bracket + 1].end, ", (")
            edits.insert(tokens[end].start, "))")


# ---- loops that wait ---------------------------------------------------------------------------------------------


def _waiting_loops(tokens: Tokens, function: Function, names: Collection[str]) -> Iterator[int]:
    """Of loops that only wait for what another thread writes, the parenthesis after `while`: those without a body, and
    those that look at something volatile. `while (C)` becomes `while (::dice_emu::spin(), C)` there; nothing else
    interrupts a thread."""
    for index in range(function.opening + 1, function.closing):
        if tokens.text(index) != "while" or tokens.text(index + 1) != "(" or index + 1 not in tokens.partner:
            continue
        closing = tokens.partner[index + 1]
        if tokens[index + 2].kind == "word" and tokens[index + 3].kind == "word":
            continue  # it declares a variable
        if _waits(tokens, range(index, closing), _body_of_while(tokens, index, closing), names):
            yield index + 1


_LONGEST_WAIT = 64  # tokens of a loop that only waits


def _body_of_while(tokens: Tokens, index: int, closing: int) -> range:
    """The loop's body without its braces; of `do { } while (C);`, what stands before."""
    before = index - 1
    if tokens.text(before) == "}" and before in tokens.partner and tokens.text(tokens.partner[before] - 1) == "do":
        return range(tokens.partner[before] + 1, before)
    after = closing + 1
    if tokens.text(after) == "{" and after in tokens.partner:
        return range(after + 1, tokens.partner[after])
    end = after
    while end - after <= _LONGEST_WAIT and tokens.text(end) not in (";", "}", ""):
        end += 1
    return range(after, end)


def _waits(tokens: Tokens, condition: range, body: range, names: Collection[str]) -> bool:
    if len(condition) + len(body) > _LONGEST_WAIT:
        return False
    looks = any(
        tokens.text(i) in names
        or tokens.text(i) in _FRESH_READS
        or (tokens.text(i) == "volatile" and tokens.text(i - 1) != "asm")
        for i in (*condition, *body)
    )
    return looks or not body


_FRESH_READS = ("__ldcv", "__ldcg", "__threadfence", "__threadfence_block", "__threadfence_system")


def _volatile_names(tokens: Tokens, places: range, scalars: bool = False) -> set[str]:
    return {_volatile_name(tokens, i, scalars) for i in places if tokens.text(i) == "volatile"} - {""}


def _volatile_name(tokens: Tokens, index: int, scalar: bool) -> str:
    """The pointer or array, or `scalar`, declared by the `volatile` at `index`, or ""."""
    pointer = scalar
    for i in range(index + 1, index + 16):
        text, following = tokens.text(i), tokens.text(i + 1)
        pointer = pointer or text == "*"
        if text in (";", ")", ",", "(", "="):
            return ""
        if i < len(tokens) and tokens[i].kind == "word" and (following == "[" or (pointer and following in ",)=;")):
            return text
    return ""


# ---- shared memory -----------------------------------------------------------------------------------------------

_DECLARATION_WORDS = {"__shared__", "extern", "static", "volatile", "const", "inline"}
_ALIGNMENT_WORDS = {"__align__", "alignas", "__attribute__"}


def _translate_shared(tokens: Tokens, edits: Edits, functions: list[Function], ends: _Ends) -> set[str]:
    """The names of all variables that are shared."""
    names: set[str] = set()
    at_namespace_scope: dict[str, str] = {}
    around = functions_around(tokens, functions)
    braces = _ends_ahead(tokens, "}")
    done = -1
    for index, token in enumerate(tokens.list):
        if token.text != "__shared__" or index < done or tokens.text(index - 1) == "define":
            continue
        end = ends(index)
        if end is None:
            if braces[index] is not None and index not in tokens.directive_end:
                edits.blank(token.start, token.end)  # then what g++ misses is the semicolon
            continue
        begin = _declaration_start(tokens, index)
        done = end
        if not tokens.is_balanced(begin, end):
            edits.blank(token.start, token.end)
            continue
        declaration = _SharedDeclaration(tokens, begin, end)
        names.update(declaration.names)
        inside = around[index] is not None or _in_body(tokens, index)
        text = declaration.sites() + (declaration.references() if inside else "")
        newlines = re.sub(r"[^\n\\]|\\(?!\r?\n)", "", edits.source[tokens[begin].start : tokens[end].end])
        edits.replace(tokens[begin].start, tokens[end].end, text + newlines)
        if not inside:
            at_namespace_scope.update({name: declaration.reference(name) for name in declaration.names})
    order = {name: number for number, name in enumerate(at_namespace_scope)}
    for function in functions:
        words = {tokens.text(i) for i in range(function.opening, function.closing)}
        for name in sorted((word for word in words if word in order), key=order.__getitem__):
            edits.insert(tokens[function.opening].end, " " + at_namespace_scope[name])
    return names


def _in_body(tokens: Tokens, index: int) -> bool:
    """Is the token inside a macro's text? There is no telling, so it counts as a function's body."""
    return index in tokens.directive_end


def _declaration_start(tokens: Tokens, index: int) -> int:
    while True:
        previous = tokens.text(index - 1)
        if previous in _DECLARATION_WORDS:
            index -= 1
        elif previous == ")" and tokens.text(tokens.partner.get(index - 1, 0) - 1) in _ALIGNMENT_WORDS:
            index = tokens.partner[index - 1] - 1
        elif tokens[index - 1].kind == "word" and previous not in _STATEMENT_WORDS and index > 0:
            index -= 1  # float __shared__ x;
        else:
            return index


_STATEMENT_WORDS = {"else", "do", "public", "private", "return", "case", "default"}


class _Ends:
    """Where the statement ends that the token at an index is in: the index of its semicolon, or None where a bracket
    around it, or the directive, ends first."""

    def __init__(self, tokens: Tokens) -> None:
        self._directive_end = tokens.directive_end
        self._ahead = _ends_ahead(tokens, ";")

    def __call__(self, index: int) -> int | None:
        end = self._ahead[index]
        return None if end is None or end >= self._directive_end.get(index, end + 1) else end


class _SharedDeclaration:
    """One `__shared__` statement, tokens [begin, end) before its semicolon, taken apart."""

    def __init__(self, tokens: Tokens, begin: int, end: int) -> None:
        self._tokens = tokens
        self.alignment = "alignof(char)"
        self.is_dynamic = False
        self._definition = ""  # struct S {...} defined in place
        words: list[Token] = []
        index = begin
        while index < end:
            token = tokens[index]
            if token.text in _ALIGNMENT_WORDS and tokens.text(index + 1) == "(":
                closing = tokens.partner.get(index + 1, end)
                self._read_alignment(index, closing)
                index = closing + 1
                continue
            if token.text == "extern":
                self.is_dynamic = True
            if token.text not in ("__shared__", "extern", "static", "inline"):
                words.append(token)
            index += 1
        self.base = ""
        self.declarators: dict[str, tuple[str, str]] = {}  # by name: stars before it, dimensions after
        self._split(words)

    def _read_alignment(self, word: int, closing: int) -> None:
        text = self._tokens.source[self._tokens[word + 1].end : self._tokens[closing].start]
        if self._tokens.text(word) == "__attribute__":
            inner = re.search(r"aligned(?:__)?\s*\(", text)
            text = text[inner.end() :].rpartition(")")[0].rstrip().removesuffix(")") if inner else "16"
        self.alignment = text.strip() or "16"

    def _split(self, words: list[Token]) -> None:
        """Base type and declarators: the type is everything before the first declarator's name."""
        depth = 0
        pieces: list[list[Token]] = [[]]
        brace_end = -1
        for position, token in enumerate(words):
            depth += {"(": 1, "[": 1, "{": 1, "<": 1, ")": -1, "]": -1, "}": -1, ">": -1, ">>": -2}.get(token.text, 0)
            if token.text == "," and depth == 0:
                pieces.append([])
            else:
                pieces[-1].append(token)
            if token.text == "}" and depth == 0:
                brace_end = position
        first = pieces[0]
        name_at = _name_position(first, brace_end + 1)
        type_end = name_at
        while type_end > 0 and first[type_end - 1].text == "*":
            type_end -= 1
        base = _join(self._tokens.source, first[:type_end])
        self.base = base
        if brace_end >= 0:
            tag = "Shared" + (first[name_at].text if name_at < len(first) else "")
            self._definition = f"typedef {_join_lines(base)} Dice{tag}; "
            self.base = f"Dice{tag}"
        declarators = [first[type_end:], *pieces[1:]]
        for declarator in declarators:
            at = _name_position(declarator, 0)
            if at >= len(declarator):
                continue
            stars = "".join(token.text for token in declarator[:at])
            self.declarators[declarator[at].text] = (stars, _join(self._tokens.source, declarator[at + 1 :]))

    @property
    def names(self) -> list[str]:
        return list(self.declarators)

    def sites(self) -> str:
        if self.is_dynamic:
            return self._definition
        return self._definition + "".join(
            f'static ::dice_emu::SharedSite dice_site_{name}{{"{name}", {{}}}}; ' for name in self.declarators
        )

    def references(self) -> str:
        return "".join(self.reference(name) for name in self.declarators)

    def reference(self, name: str) -> str:
        stars, suffix = self.declarators[name]
        if self.is_dynamic:
            rest = suffix[suffix.index("]") + 1 :] if "]" in suffix else ""
            # The inner declaration lets g++ refuse, like nvcc, two kernels that give one name different types.
            check = f"{{ extern {self.base} {stars}{name}{suffix}; }} "
            return check + f"auto* const {name} = ::dice_emu::dynamic_shared(({self.base}{stars} (*){rest})nullptr); "
        return (
            f"auto& {name} = ::dice_emu::shared(dice_site_{name}, ({self.base}{stars} (*){suffix})nullptr, "
            f"{self.alignment}); "
        )


def _name_position(tokens: list[Token], start: int) -> int:
    """Index of the declared name: the last word before the first `[` (or the end) at bracket depth 0."""
    depth = 0
    found = len(tokens)
    for index in range(start, len(tokens)):
        text = tokens[index].text
        if text == "[" and depth == 0:
            break
        depth += {"(": 1, "{": 1, "<": 1, ")": -1, "}": -1, ">": -1, ">>": -2}.get(text, 0)
        if tokens[index].kind == "word" and depth == 0:
            found = index
    return found


def _join(source: str, tokens: list[Token]) -> str:
    return " ".join(token.text for token in tokens)


def _join_lines(text: str) -> str:
    return " ".join(text.split())
