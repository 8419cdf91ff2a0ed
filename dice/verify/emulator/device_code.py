"""What nvcc refuses in device code, and a CPU's compiler would take: variables and functions of the host, the parts of
`std::` that only the host has, and more constant memory than there is.

Each becomes an error of the compiler's at the place where it stands (`_Pragma("GCC error ...")`), with nvcc's sentence;
what the preprocessor leaves out is then no error. A name that could be anything else (a local variable, a member, a
macro, an overload that the device has) is left alone: a kernel that is right must not be refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dice.verify.emulator.functions import Function, functions_around, parameter_list, statement_start
from dice.verify.emulator.tokens import Edits, Tokens

MOST_CONSTANT_BYTES = 65536
DEVICE_WORDS = frozenset({"__device__", "__constant__", "__managed__", "__shared__"})
_HOST_PARTS = frozenset(
    """
    vector deque list forward_list map multimap set multiset unordered_map unordered_set queue stack priority_queue
    string to_string stoi stof stod ostringstream stringstream istringstream function sort stable_sort partial_sort
    accumulate inner_product partial_sum cout cerr clog endl make_unique make_shared unique_ptr shared_ptr thread mutex
    lock_guard unique_lock async future promise condition_variable this_thread random_device mt19937 mt19937_64
    normal_distribution uniform_real_distribution uniform_int_distribution valarray any ifstream ofstream getenv
    """.split()  # noqa: SIM905
)
_NO_TYPE = frozenset(
    """
    return else case goto throw new delete sizeof decltype and or not co_return co_yield typeid alignof noexcept
    """.split()  # noqa: SIM905
)
_NO_VARIABLE = frozenset(
    """
    using typedef template struct class union enum namespace friend static_assert asm __asm__ public private protected
    operator concept requires export import TORCH_LIBRARY PYBIND11_MODULE
    """.split()  # noqa: SIM905
)
_QUALIFIERS = frozenset({"static", "const", "inline", "extern", "volatile", "thread_local"})
_ALIGNED = frozenset({"__align__", "alignas", "__attribute__"})
_BUILT_IN = frozenset({"min", "max", "abs", "swap", "round", "pow", "exp", "log", "sqrt", "fma", "isnan", "isinf"})
_OF_TYPES = frozenset({"::", "<", ">", ",", "*", "&"})
_MACRO = re.compile(r"[A-Z_][A-Z0-9_]+")


def check(tokens: Tokens, edits: Edits, functions: Sequence[Function]) -> Scope:
    """Put an error before each use of the host's in device code, and declare where the device's variables are."""
    scope = Scope(tokens, functions)
    _mark_lambdas(tokens, edits)
    members: dict[range, set[str]] = {}
    for function in functions:
        if not is_for_both(tokens, function) and tokens.text(function.start) != "(":  # which begins a lambda
            for place, sentence in Body(tokens, function, scope, members).findings():
                edits.insert(tokens[place].start, error(sentence))
    _hide_architecture(tokens, edits, functions, scope)
    constant = [variable for variable in scope.device if "__constant__" in variable.head]
    for variable in scope.device:
        name, end = variable.name, tokens[variable.end].end
        edits.insert(end, f" static const ::dice_emu::Symbol dice_symbol_{name}{{{name}}};")
        if variable in constant:
            edits.insert(end, f" static_assert(sizeof({name}) <= {MOST_CONSTANT_BYTES}, {_TOO_MUCH});")
    certain = dict.fromkeys(variable.path for variable in constant if variable.path)
    if len(certain) > 1:
        total = " + ".join(f"sizeof({path})" for path in certain)
        edits.insert(len(edits.source), f"\nstatic_assert({total} <= {MOST_CONSTANT_BYTES}, {_TOO_MUCH});\n")
    return scope


def _mark_lambdas(tokens: Tokens, edits: Edits) -> None:
    """nvcc takes a lambda with a mark only where a flag says so, as the header knows in which the macro is."""
    marks = {"__device__", "__host__", "GPU_LAMBDA", "C10_DEVICE", "C10_HOST_DEVICE"} | {
        name
        for name, places in tokens.macros
        if places and {tokens.text(i) for i in places} <= {"__device__", "__host__"}
    }
    for index, token in enumerate(tokens.list):
        opening = tokens.partner.get(index - 1, 0) if token.text in marks and tokens.text(index - 1) == "]" else 0
        before = tokens.text(opening - 1)
        subscript = before in (")", "]") or (tokens[opening - 1].kind == "word" and before not in _NO_TYPE)
        if opening > 0 and tokens.text(opening + 1) != "[" and not subscript:  # nor is it an attribute
            edits.insert(token.start, "DICE_EMU_MARKED_LAMBDA ")


def _hide_architecture(tokens: Tokens, edits: Edits, functions: Sequence[Function], scope: Scope) -> None:
    """nvcc's pass for the host does not define __CUDA_ARCH__, so directives in functions of the host never see it."""
    around = functions_around(tokens, functions)
    for body in scope.host_bodies:
        for index in body:
            if tokens.text(index) == "__CUDA_ARCH__" and index in tokens.directive_end and around[index] is None:
                edits.replace(tokens[index].start, tokens[index].end, "DICE_EMU_NO_ARCH")


_TOO_MUCH = f'"the file uses too much global constant data (0x{MOST_CONSTANT_BYTES:x} max)"'


def error(sentence: str) -> str:
    inner = f'GCC error "{sentence}"'.replace("\\", "\\\\").replace('"', '\\"')
    return f' _Pragma("{inner}") '


def is_for_both(tokens: Tokens, function: Function) -> bool:
    """A function that is the host's as well: there nvcc warns, and the host's part may be all that is used."""
    before = statement_start(tokens, function.start - 1)
    head = {tokens.text(i) for i in range(before, function.opening)}
    return "__host__" in head or "constexpr" in head or any("HOST" in word for word in head)


@dataclass(frozen=True, slots=True)
class _Variable:
    """A variable at namespace scope. `path`: its full name where it is certain that the compiler sees it, or ""."""

    name: str
    head: frozenset[str]
    end: int  # its semicolon
    path: str


class Scope:
    """What a file declares at namespace scope: which variables and functions are the host's alone."""

    def __init__(self, tokens: Tokens, functions: Sequence[Function]) -> None:
        self._tokens = tokens
        self._conditions = _conditional(tokens)
        self.macros = {name for name, _ in tokens.macros}
        self.device: list[_Variable] = []
        self.host_bodies: list[range] = []
        self.class_of: dict[int, range] = {}  # for each token in a class
        variables: set[str] = set()
        functions_of_host: set[str] = set()
        others = self.macros | {function.name for function in functions} | _BUILT_IN
        for first, last, namespace in self._statements():
            head = self._head(first, last)
            words = frozenset(tokens.text(i) for i in head)
            found = self._variables(first, last, head, words, namespace) if tokens.text(last) == ";" else []
            for variable in found:
                if words & DEVICE_WORDS - {"__shared__"} and not words & {"extern", "template"}:
                    self.device.append(variable)
                of_host = not words & (DEVICE_WORDS | {"constexpr"}) and not self._is_marked(words - {variable.name})
                seen = "const" in words and not words & {"[", "*"}  # a number, which the device knows
                (variables if of_host and not seen else others).add(variable.name)
            if not found and (name := self._function(first, head)):
                of_device = bool(words & {"__device__", "__global__", "constexpr", "consteval"})
                of_host = not of_device and not self._is_marked(words - {name})
                (functions_of_host if of_host else others).add(name)
                if of_host and tokens.text(last) == "{":
                    self.host_bodies.append(range(last, tokens.partner.get(last, last)))
        self.variables, self.functions = variables - others, functions_of_host - others
        self.also_of_host = functions_of_host | self.macros | _BUILT_IN

    def _is_marked(self, words: frozenset[str]) -> bool:
        """Whether a macro is among them, which may say that the device has it."""
        return bool(words & self.macros) or any(_MACRO.fullmatch(word) for word in words)

    def _statements(self) -> Iterator[tuple[int, int, str]]:
        """First and last token of each declaration, and the namespace's path."""
        tokens, index, first = self._tokens, 0, 0
        namespaces = [""]
        words: dict[str, int] = {}  # of the declaration so far, outside brackets
        while index < len(tokens):
            if (after := tokens.directive_end.get(index)) is not None:
                index = first = after
                words = {}
                continue
            text, closing = tokens.text(index), tokens.partner.get(index, index)
            ends = text in (";", "}")
            if text == "{":
                if "namespace" in words or ("extern" in words and len(words) == 2):
                    name = "".join(tokens.text(i) for i in range(words.get("namespace", index) + 1, index))
                    namespaces.append(namespaces[-1] + f"{name}::" * bool(name))
                    ends = True
                else:
                    ends = ")" in words and "=" not in words and tokens.text(closing + 1) != ";"
                    if {"struct", "class", "union"} & words.keys() and (")" not in words or _ALIGNED & words.keys()):
                        self.class_of.update(dict.fromkeys(range(index, closing), range(index, closing)))
                    elif ends:
                        yield first, index, namespaces[-1]
                    index = closing
            elif text == ";":
                yield first, index, namespaces[-1]
            elif text == "}" and len(namespaces) > 1:
                namespaces.pop()
            if ends:
                first, words = index + 1, {}
            else:
                words[text] = index
                if text in ("(", "["):
                    index = closing
                    words[tokens.text(index)] = index
            index += 1

    def _head(self, first: int, last: int) -> list[int]:
        """Places of the declaration up to its value or body, without what stands in brackets."""
        tokens, places, index = self._tokens, [], first
        while index < last and tokens.text(index) not in ("=", "{"):
            places.append(index)
            opening = tokens.text(index) in ("(", "[") and tokens.partner.get(index, last) < last
            index = tokens.partner[index] if opening else index
            index += 1
        return places

    def _variables(
        self, first: int, last: int, head: list[int], words: frozenset[str], namespace: str
    ) -> list[_Variable]:
        """The variables that a statement declares, where they can be told from anything else."""
        tokens = self._tokens
        texts = [tokens.text(i) for i in head]
        bracketed = "(" in words and not words & _ALIGNED
        if words & _NO_VARIABLE or bracketed or {"<", ","} <= words:
            return []
        ends = ("=", "[", "{", ";", ",")
        names = [i for i in head[1:] if tokens[i].kind == "word" and tokens.text(i + 1) in ends]
        types = [i for i in head if i not in names and tokens[i].kind == "word" and tokens.text(i) not in _QUALIFIERS]
        if not types or "::" in [tokens.text(i - 1) for i in names] or (len(names) != 1 and "," not in texts):
            return []
        certain = not self._conditions[first]
        paths = (namespace + tokens.text(i) if certain else "" for i in names)
        return [_Variable(tokens.text(i), words, last, path) for i, path in zip(names, paths, strict=True)]

    def _function(self, first: int, head: list[int]) -> str:
        """The name of the function that is declared or defined, or ""."""
        tokens = self._tokens
        if tokens.text(first) == "template":
            after = next((i for i in head if tokens.template_start(i) == first + 1), first)
            first, head = after + 1, [i for i in head if i > after]
        words = {tokens.text(i) for i in head}
        opening = next((i for i in head if tokens.text(i) == "("), None)
        if words & _NO_VARIABLE or opening is None or opening - first < 2:
            return ""
        name, before = tokens[opening - 1], tokens.text(opening - 2)
        following = tokens.text(tokens.partner.get(opening, opening) + 1)
        ordinary = name.kind == "word" and following in ("{", ";", "noexcept", "->") and before not in ("::", "=", ",")
        return name.text if ordinary and before not in _QUALIFIERS else ""


def _conditional(tokens: Tokens) -> list[bool]:
    """For each token, whether the preprocessor may leave it out."""
    depth, place, found = 0, 0, []
    for start, end in tokens.directives:
        found += [depth > 0] * (start - place)
        word = tokens.text(start + 1)
        depth += (word in ("if", "ifdef", "ifndef")) - (word == "endif")
        found += [True] * (end - start)
        place = end
    return found + [depth > 0] * (len(tokens) - place)


class Body:
    """One function, in which names of the file's are looked for."""

    def __init__(self, tokens: Tokens, function: Function, scope: Scope, members: dict[range, set[str]]) -> None:
        self._tokens, self._function, self._scope = tokens, function, scope
        self._parameters = parameter_list(tokens, function) or function.start
        self._local = self._declared(range(statement_start(tokens, function.start - 1), function.closing))
        around = scope.class_of.get(function.opening)
        if around is not None:
            if around not in members:
                members[around] = self._declared(around)
            self._local |= members[around]

    def _declared(self, places: range) -> set[str]:
        return {self._tokens.text(i) for i in places if self._declares(i)}

    def findings(self) -> Iterator[tuple[int, str]]:
        """Where something of the host's stands, and what nvcc says of it."""
        tokens = self._tokens
        for index in self._words():
            word = tokens.text(index)
            if tokens.text(index - 1) == "::":
                if tokens.text(index - 2) == "std" and word in _HOST_PARTS and tokens.text(index - 3) != "::":
                    yield index - 2, self._call(f"std::{word}")
            elif not self._may_be_another(index):
                if word in self._scope.variables:
                    yield index, f"identifier '{word}' is undefined in device code"
                elif word in self._scope.functions and tokens.text(index + 1) in ("(", "<"):
                    yield index, self._call(word)

    def names(self) -> Iterator[int]:
        """Where words stand that are names of the file's own scope: no member's, no namespace's, nothing local."""
        for index in self._words():
            if self._tokens.text(index - 1) != "::" and not self._may_be_another(index):
                yield index

    def _words(self) -> Iterator[int]:
        tokens = self._tokens
        for index in range(self._function.opening + 1, self._function.closing):
            if tokens[index].kind == "word" and index not in tokens.directive_end:
                yield index

    def _may_be_another(self, index: int) -> bool:
        tokens, local = self._tokens, self._tokens.text(index) in self._local
        member = tokens.text(index - 1) in (".", "->") or tokens.text(index + 1) == "::"
        return member or local or self._is_unevaluated(index)

    def _call(self, name: str) -> str:
        kind = "__global__" if self._function.is_kernel else "__device__"
        return f"calling a __host__ function('{name}') from a {kind} function('{self._function.name}') is not allowed"

    def _is_unevaluated(self, index: int) -> bool:
        tokens = self._tokens
        return tokens.text(index - 1) == "(" and tokens.text(index - 2) in ("sizeof", "decltype", "alignof", "noexcept")

    def _declares(self, index: int) -> bool:
        """Whether this word is declared here, as far as one sees: a type stands before it."""
        tokens, at = self._tokens, index - 1
        if tokens[index].kind != "word":
            return False
        before, after = tokens.text(at), tokens.text(index + 1)
        inside = self._parameters < index < tokens.partner.get(self._parameters, self._function.opening)
        if before == ",":
            start = statement_start(tokens, index)
            opening = tokens.text(start - 1)
            return inside or opening not in ("(", "[") or tokens.text(start - 2) in ("auto", "&")
        if before == "[":  # auto [a, b] = ...
            return tokens.text(at - 1) in ("auto", "&")
        if before == "*" and tokens.text(at - 1) == "(" and tokens.text(tokens.partner.get(at - 1, at) + 1) == "(":
            return True  # void (*name)(int)
        if before in ("*", "&"):
            start = statement_start(tokens, index)
            typed = all(tokens[i].kind == "word" or tokens.text(i) in _OF_TYPES for i in range(start, at))
            return inside or (typed and at > start and tokens.text(start) not in _NO_TYPE)
        if before in (">", ">>"):
            return tokens.template_start(at) is not None and after in ("=", ";", ",", ")", "[", "{", "(", ":")
        return at >= 0 and tokens[at].kind == "word" and before not in _NO_TYPE
