"""Inline PTX to C++: `asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(y) : "f"(a), ...)` becomes the statements that it means.

What kernels write by hand is here: loads, stores and atomic operations of global and shared memory, asynchronous
copies, arithmetic, logic, comparisons, conversions, predicates, special registers, barriers and fences, and products of
tiles (`mma.sync`, and `ldmatrix` before it). Registers are C++ variables of the operand's constraint (`f` float, `d`
double, `r` unsigned, `l` unsigned long long, `h` unsigned short): an instruction reads and writes their bits as its own
type (`dice_emu/ptx.h`). All else is `Unsupported`, by name.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from dice.verify.emulator.tokens import Edits, Tokens

WORDS = frozenset({"asm", "__asm__", "__asm"})
MOST_TEXT = 8 << 10  # characters of one statement


class UnknownPtx(Exception):
    """The statement holds something that has no translation here; the message names it."""


_REGISTERS = {"f": "float", "d": "double", "r": "unsigned", "l": "unsigned long long", "h": "unsigned short"}
_TYPES = {
    "f32": "float",
    "f64": "double",
    **{f"{kind}8": "unsigned char" for kind in "ub"},
    **{f"{kind}16": "unsigned short" for kind in "ub"},
    **{f"{kind}32": "unsigned" for kind in "ub"},
    **{f"{kind}64": "unsigned long long" for kind in "ub"},
    "s8": "signed char",
    "s16": "short",
    "s32": "int",
    "s64": "long long",
    "pred": "bool",
}
_WIDE = {"unsigned short": "unsigned", "short": "int", "unsigned": "unsigned long long", "int": "long long"}
# Instruction -> the value in terms of its operands, each read as the instruction's type `T`.
_VALUES = {
    "mov": "{0}",
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "div": "{0} / {1}",
    "rem": "{0} % {1}",
    "and": "{0} & {1}",
    "or": "{0} | {1}",
    "xor": "{0} ^ {1}",
    "not": "~{0}",
    "neg": "-{0}",
    "abs": "{0} < 0 ? -{0} : {0}",
    "popc": "__popcll({0})",
    "clz": "__clz({0})",
    "brev": "__brev({0})",
    "shl": "dice_emu::ptx::left({0}, {1})",
    "shr": "dice_emu::ptx::right({0}, {1})",
    "lop3": "dice_emu::ptx::logic({0}, {1}, {2}, {3})",
    "prmt": "__byte_perm({0}, {1}, {2})",
    "bfe": "dice_emu::ptx::extract({0}, {1}, {2})",
    "bfi": "dice_emu::ptx::insert({0}, {1}, {2}, {3})",
    "fma": "dice_emu::ptx::fma({0}, {1}, {2})",
    "mad": "{0} * {1} + {2}",
    "min": "dice_emu::ptx::least({0}, {1})",
    "max": "dice_emu::ptx::most({0}, {1})",
    "sqrt": "sqrt({0})",
    "rsqrt": "T(1) / sqrt({0})",
    "rcp": "T(1) / {0}",
    "ex2": "exp2({0})",
    "lg2": "__log2f({0})",
    "sin": "__sinf({0})",
    "cos": "__cosf({0})",
    "tanh": "__tanhf({0})",
}
_AMOUNTS = {"shl": 1, "shr": 1, "bfe": 1, "bfi": 2}  # from this operand on, they are numbers of bits
_COMPARISONS = {
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "lo": "<",
    "ls": "<=",
    "hi": ">",
    "hs": ">=",
}
_SPECIAL = {
    "laneid": "dice_emu::lane_id()",
    "warpid": "dice_emu::linear_thread() / 32",
    "lanemask_eq": "(1u << dice_emu::lane_id())",
    "lanemask_lt": "((1u << dice_emu::lane_id()) - 1u)",
    "lanemask_le": "((2u << dice_emu::lane_id()) - 1u)",
    "lanemask_gt": "~((2u << dice_emu::lane_id()) - 1u)",
    "lanemask_ge": "~((1u << dice_emu::lane_id()) - 1u)",
    **{
        f"{name}.{axis}": f"{word}.{axis}"
        for name, word in (("tid", "threadIdx"), ("ntid", "blockDim"), ("ctaid", "blockIdx"), ("nctaid", "gridDim"))
        for axis in "xyz"
    },
}
# Statements without a value; hints to caches and schedulers do nothing.
_STATEMENTS = {
    "prefetch": "",
    "prefetchu": "",
    "nanosleep": "",
    "griddepcontrol": "",
}
_ATOMICS = {
    **{name: f"atomic{name.capitalize()}" for name in ("add", "min", "max", "and", "or", "xor", "inc", "dec", "exch")},
    "cas": "atomicCAS",
}
_SCOPES = {"cta": "_block", "sys": "_system"}  # how CUDA calls atomic operations and fences of these scopes
_ATOMIC_TYPES = frozenset({"int", "unsigned", "long long", "unsigned long long", "float", "double"})
_HALVES = (("f16", "Half"), ("bf16", "Brain"))
# Tiles of `mma.sync` by their shape and the type of what is multiplied: in C++, and the registers of the left one.
_TILES = {
    **{(f"m16n8k{8 * n}", kind): (f"dice_emu::ptx::{name}", 2 * n) for n in (1, 2) for kind, name in _HALVES},
    **{(f"m16n8k{4 * n}", "tf32"): ("dice_emu::ptx::Single", 2 * n) for n in (1, 2)},
    **{(f"m16n8k{16 * n}", "s8"): ("dice_emu::ptx::Bytes<signed char>", 2 * n) for n in (1, 2)},
    **{(f"m16n8k{16 * n}", "u8"): ("dice_emu::ptx::Bytes<unsigned char>", 2 * n) for n in (1, 2)},
}
_MODIFIERS = frozenset(
    """
    rn rz rm rp rni rzi rmi rpi ftz approx full sat lo wide sync aligned global nc ca cg cs cv lu wb wt volatile weak
    relaxed gpu cta sys
    """.split()  # noqa: SIM905
)
_SHARED = frozenset({"shared", "shared::cta"})
_HINT = re.compile(r"L[12]::\w+")
_NAME = re.compile(r"[A-Za-z_$][\w$]*")
_NUMBER = re.compile(r"-?(0[xX][0-9a-fA-F]+|\d+(\.\d+)?)U?")


@dataclass
class _Statement:
    """One `asm`: its template, and its registers in C++."""

    template: str
    operands: list[tuple[str, str, str]]  # constraint, expression, name or ""
    names: dict[str, str] = field(default_factory=dict)  # of registers that the template declares

    def cpp(self) -> str:
        """One line, whatever the template was."""
        before, after = [], []
        for number, (constraint, expression, _) in enumerate(self.operands):
            letter = constraint.lstrip("=+&")
            if letter == "n":
                before.append(f"const auto ptx{number} = {expression};")
                continue
            if letter not in _REGISTERS:
                raise UnknownPtx(f'the constraint "{constraint}"')
            kind, given = _REGISTERS[letter], constraint.startswith("=")
            before.append(f"{kind} ptx{number}{{}};" if given else f"{kind} ptx{number} = ({kind})({expression});")
            if constraint[0] in "=+":
                after.append(f"dice_emu::ptx::put({expression}, ptx{number});")
        body = [self._instruction(text) for text in _instructions(self.template)]
        return " ".join(["do {", *before, *body, *after, "} while (0)"])

    def _instruction(self, text: str) -> str:
        declared = re.fullmatch(r"\.reg\s+\.(\w+)\s+(.+)", text)
        if declared:
            if declared[1] not in _TYPES:
                raise UnknownPtx(text)
            names = [name.strip() for name in declared[2].split(",")]
            if not all(map(_NAME.fullmatch, names)):
                raise UnknownPtx(text)
            self.names |= {name: f"reg_{len(self.names) + place}" for place, name in enumerate(names)}
            return " ".join(f"{_TYPES[declared[1]]} {self.names[name]}{{}};" for name in names)
        guard = ""
        guarded = re.fullmatch(r"@(!?)(\S+)\s+(.+)", text)
        if guarded:
            guard, text = f"if ({guarded[1]}{self._register(guarded[2])}) ", guarded[3]
        head, _, rest = text.partition(" ")
        opcode, *parts = head.split(".")
        return f"{guard}{{ {self._meaning(opcode, parts, _operands(rest), text)} }}"

    def _meaning(self, opcode: str, parts: list[str], operands: list[str], text: str) -> str:
        if opcode in ("membar", "fence"):
            return "__threadfence_block();" if "cta" in parts else "__threadfence();"
        if opcode in _STATEMENTS:
            return _STATEMENTS[opcode]
        if opcode in ("bar", "barrier") and "warp" in parts:
            return "__syncwarp();"
        if opcode in ("bar", "barrier"):
            return _barrier(parts, [self._read(item, "unsigned") for item in operands], text)
        if opcode == "mma":
            return self._multiply(parts, operands, text)
        if opcode == "ldmatrix":
            return self._matrices(parts, operands, text)
        if opcode == "cp":
            return self._copy(parts, operands, text)
        if opcode == "cvta" and parts in (["to", "shared", "u64"], ["to", "global", "u64"]):
            return self._put(operands[0], self._read(operands[1], "unsigned long long"))
        kinds = [part for part in parts if part in _TYPES]
        if not kinds:
            raise UnknownPtx(text)
        left = {part for part in parts if part not in _TYPES and part not in _MODIFIERS and not _HINT.fullmatch(part)}
        if (
            opcode in ("ld", "st", "ldu")
            and left <= {"v2", "v4", *_SHARED}
            and ("global" in parts or left & _SHARED or opcode == "ldu")
        ):
            return self._transfer(opcode, _TYPES[kinds[-1]], operands, bool(left & _SHARED), text)
        if opcode in ("red", "atom"):
            return self._atomic(opcode, parts, _TYPES[kinds[-1]], operands, left, text)
        if opcode == "setp" and len(left) == 1 and (found := _COMPARISONS.get(left.pop())):
            to, one, other = (operands[0], *(self._read(item, _TYPES[kinds[-1]]) for item in operands[1:3]))
            return f"{self._register(to)} = {one} {found} {other};"
        if opcode == "cvt" and not left and len(kinds) == 2:
            return self._convert(parts, kinds, operands)
        if opcode == "selp" and not left and len(operands) == 4:
            one, other = (self._read(item, _TYPES[kinds[-1]]) for item in operands[1:3])
            return self._put(operands[0], f"{self._register(operands[3])} ? {one} : {other}")
        if opcode not in _VALUES or left or (opcode == "mul") or (opcode == "mad" and "wide" in parts):
            return self._product(opcode, parts, kinds, operands, left, text)
        kind = _TYPES[kinds[-1]]
        values = [self._read(item, kind) for item in operands[1:]]
        first = _AMOUNTS.get(opcode, len(values))
        values[first:] = [self._read(item, "unsigned") for item in operands[1 + first :]]
        try:
            value = _VALUES[opcode].format(*values).replace("T(", f"{kind}(")
        except IndexError:
            raise UnknownPtx(text) from None
        return self._put(operands[0], f"({kind})({value})")

    def _atomic(self, opcode: str, parts: list[str], kind: str, operands: list[str], left: set[str], text: str) -> str:
        """`atom` and `red`, which is one whose old value nobody wants."""
        operations = [_ATOMICS[part] for part in left if part in _ATOMICS]
        order, shared = left & {"acquire", "release", "acq_rel"}, bool(left & _SHARED)
        known = len(operations) == 1 and left <= {*_ATOMICS, *_SHARED, *order} and kind in _ATOMIC_TYPES
        place, *given = operands[opcode == "atom" :]
        if not known or len(given) != (2 if "cas" in left else 1):
            raise UnknownPtx(text)
        kind = "unsigned long long" if kind == "long long" and "add" in left else kind
        values = ", ".join(self._read(item, kind) for item in given)
        scope = next((scope for part, scope in _SCOPES.items() if part in parts), "")
        call = f"{operations[0]}{scope}(({kind}*){self._address(place, shared, text)}, {values})"
        done = f"{call};" if opcode == "red" else self._put(operands[0], call)
        fence = f"__threadfence{scope}();"
        before, after = order & {"release", "acq_rel"}, order & {"acquire", "acq_rel"}
        return f"{fence if before else ''} {done} {fence if after else ''}"

    def _product(
        self, opcode: str, parts: list[str], kinds: list[str], operands: list[str], left: set[str], text: str
    ) -> str:
        high = left == {"hi"} and kinds[-1][1:] in ("32", "64")
        if opcode not in ("mul", "mad") or (left and not high) or len(operands) != (3 if opcode == "mul" else 4):
            raise UnknownPtx(text)
        kind = _TYPES[kinds[-1]]
        one, other = (self._read(item, kind) for item in operands[1:3])
        result = _WIDE.get(kind, kind) if "wide" in parts else kind
        value = f"dice_emu::ptx::high({one}, {other})" if high else f"({result}){one} * ({result}){other}"
        if opcode == "mad":
            value += f" + {self._read(operands[3], result)}"
        return self._put(operands[0], f"({result})({value})")

    def _convert(self, parts: list[str], kinds: list[str], operands: list[str]) -> str:
        to, come = _TYPES[kinds[0]], _TYPES[kinds[1]]
        value = self._read(operands[1], come)
        rounding = {"rni": "rint", "rmi": "floor", "rpi": "ceil"}
        function = next((rounding[part] for part in parts if part in rounding), "")
        return self._put(operands[0], f"({to}){function}({value})")

    def _multiply(self, parts: list[str], operands: list[str], text: str) -> str:
        """`mma.sync`: the warp multiplies tiles whose elements its lanes hold."""
        shape, kinds = next((part for part in parts if part.startswith("m16n8k")), ""), parts[-4:]
        known = _TILES.get((shape, kinds[1]))
        of_sums = ("s32", "unsigned") if kinds[1][0] in "su" else ("f32", "float")
        ordered = parts == ["sync", "aligned", shape, "row", "col", of_sums[0], kinds[1], kinds[1], of_sums[0]]
        tiles = [[item.strip() for item in tile.strip("{} ").split(",")] for tile in operands]
        if known is None or not ordered or [len(tile) for tile in tiles] != [4, known[1], known[1] // 2, 4]:
            raise UnknownPtx(text)
        to, left, right, sums = tiles
        given = (f"unsigned {name}[] = {{{self._list(tile)}}};" for name, tile in (("a", left), ("b", right)))
        start = ", ".join(self._read(item, of_sums[1]) for item in sums)
        done = " ".join(self._put(item, f"d[{number}]") for number, item in enumerate(to))
        call = f"dice_emu::ptx::multiply<{known[0]}>(d, a, b);"
        return " ".join([*given, f"{of_sums[1]} d[] = {{{start}}};", call, done])

    def _list(self, tile: list[str]) -> str:
        return ", ".join(self._read(item, "unsigned") for item in tile)

    def _matrices(self, parts: list[str], operands: list[str], text: str) -> str:
        """`ldmatrix`: the lanes of a warp load tiles of eight rows, whose addresses they hold."""
        registers = [item.strip() for item in operands[0].strip("{} ").split(",")]
        known = {"sync", "aligned", "m8n8", f"x{len(registers)}", "b16"}
        if not known <= {*parts} or {*parts} - known - {"trans"} not in ({name} for name in _SHARED):
            raise UnknownPtx(text)
        call = (
            f"matrices<{len(registers)}, {str('trans' in parts).lower()}>(m, {self._address(operands[1], True, text)});"
        )
        done = " ".join(self._put(item, f"m[{number}]") for number, item in enumerate(registers))
        return f"unsigned m[{len(registers)}]; dice_emu::ptx::{call} {done}"

    def _copy(self, parts: list[str], operands: list[str], text: str) -> str:
        """`cp.async`, and what waits for it."""
        kind = [part for part in parts if not _HINT.fullmatch(part)]
        if kind == ["async", "commit_group"]:
            return "dice_commit_copies();"
        if kind == ["async", "wait_all"]:
            return "dice_commit_copies(); dice_wait_for_copies(0);"
        if kind == ["async", "wait_group"]:
            return f"dice_wait_for_copies({self._read(operands[0], 'unsigned')});"
        plain = len(kind) == 4 and kind[1] in ("ca", "cg") and kind[2] in _SHARED and kind[3] == "global"
        if kind[0] != "async" or not plain or len(operands) not in (3, 4):
            raise UnknownPtx(text)
        to, come = self._address(operands[0], True, text), self._address(operands[1], False, text)
        size, *some = (self._read(item, "unsigned") for item in operands[2:])
        return f"dice_copy_async({to}, (const void*){come}, {size}, {f'{size} - {some[0]}' if some else 0});"

    def _address(self, item: str, shared: bool, text: str) -> str:
        base, _, offset = item.strip("[] ").partition("+")
        if not item.startswith("[") or (offset and not _NUMBER.fullmatch(offset.strip())):
            raise UnknownPtx(text)
        address = f"({self._register(base.strip())} + {offset.strip() or 0})"
        return f"dice_emu::ptx::shared({address})" if shared else address

    def _transfer(self, opcode: str, kind: str, operands: list[str], shared: bool, text: str) -> str:
        places = [item for item in operands if item.startswith("[")]
        others = [item for item in operands if not item.startswith("[")]
        if len(places) != 1 or len(others) != 1:
            raise UnknownPtx(text)
        address = f"(({kind}*){self._address(places[0], shared, text)})"
        moved = []
        for number, item in enumerate(others[0].strip("{}").split(",")):
            if opcode == "st":
                moved.append(f"{address}[{number}] = {self._read(item.strip(), kind)};")
            else:
                moved.append(self._put(item.strip(), f"{address}[{number}]"))
        return " ".join(moved)

    def _read(self, item: str, kind: str) -> str:
        if _NUMBER.fullmatch(item):
            return f"({kind}){item}"
        if found := re.fullmatch(r"0[fF]([0-9a-fA-F]{8})", item):
            return f"dice_emu::ptx::as<{kind}>(0x{found[1]}u)"
        return f"dice_emu::ptx::as<{kind}>({self._register(item)})"

    def _put(self, item: str, value: str) -> str:
        return f"dice_emu::ptx::put({self._register(item)}, {value});"

    def _register(self, item: str) -> str:
        if item in self.names:
            return self.names[item]
        if found := re.fullmatch(r"%(\d+)", item):
            if int(found[1]) < len(self.operands):
                return f"ptx{found[1]}"
        elif found := re.fullmatch(r"%\[(\w+)\]", item):
            for number, (_, _, name) in enumerate(self.operands):
                if name == found[1]:
                    return f"ptx{number}"
        elif item.startswith("%") and item.lstrip("%") in _SPECIAL:
            return f"((unsigned)({_SPECIAL[item.lstrip('%')]}))"
        raise UnknownPtx(f"the operand {item[:40]}")


def translate(tokens: Tokens, edits: Edits) -> None:
    """Replace each `asm` by what it means; one that has no translation stays, for `find_unsupported` to name."""
    for index, token in enumerate(tokens.list):
        if token.text in WORDS:
            with contextlib.suppress(UnknownPtx):
                end, text = statement(tokens, index)
                edits.blank(token.start, tokens[end - 1].end)
                edits.insert(tokens[end - 1].end, text)


def statement(tokens: Tokens, index: int) -> tuple[int, str]:
    """The `asm` at this token: the index past its last parenthesis, and the C++ for it. Raises `UnknownPtx`."""
    try:
        return _statement(tokens, index)
    except (IndexError, ValueError):  # it ends where more must come, or has other operands than its instruction
        raise UnknownPtx("asm that cannot be read") from None


def _statement(tokens: Tokens, index: int) -> tuple[int, str]:
    opening = index + 1
    while tokens.text(opening) in ("volatile", "__volatile__", "__volatile"):
        opening += 1
    closing = tokens.partner.get(opening)
    if tokens.text(opening) != "(" or closing is None:
        raise UnknownPtx("asm that cannot be read")
    if tokens[closing].end - tokens[opening].start > MOST_TEXT:
        raise UnknownPtx("asm of so much text")
    sections: list[list[int]] = [[]]
    place = opening + 1
    while place < closing:
        for _ in range({":": 1, "::": 2}.get(tokens.text(place), 0)):
            sections.append([])
        if tokens.text(place) not in (":", "::"):
            sections[-1].append(place)
            if tokens.text(place) in ("(", "[", "{"):
                inner = tokens.partner.get(place, place)
                sections[-1] += range(place + 1, inner + 1)
                place = inner
        place += 1
    if not all(tokens[place].kind == "string" for place in sections[0]):
        raise UnknownPtx("asm whose text is no string")
    template = "".join(_string(tokens.text(place)) for place in sections[0])
    operands = [operand for section in sections[1:3] for operand in _operand_list(tokens, section)]
    return closing + 1, _Statement(template, operands).cpp()


def _operand_list(tokens: Tokens, places: list[int]) -> list[tuple[str, str, str]]:
    found, at = [], 0
    while at < len(places):
        name = ""
        if tokens.text(places[at]) == "[":
            name, at = tokens.text(places[at + 1]), at + 3
        opening = places[at + 1] if at + 1 < len(places) else -1
        closing = tokens.partner.get(opening)
        if tokens[places[at]].kind != "string" or tokens.text(opening) != "(" or closing is None:
            raise UnknownPtx("asm whose operands cannot be read")
        expression = tokens.source[tokens[opening].end : tokens[closing].start]
        found.append((_string(tokens.text(places[at])), " ".join(expression.replace("\\\n", " ").split()), name))
        at += 2 + closing - opening
        if at < len(places) and tokens.text(places[at]) == ",":
            at += 1
    return found


def _barrier(parts: Sequence[str], operands: Sequence[str], text: str) -> str:
    """`operands`: the barrier's number, and how many threads meet there, where it is not the whole block."""
    if "red" in parts or (len(operands) < 2 and "arrive" in parts):
        raise UnknownPtx(text)
    if len(operands) < 2:
        return "__syncthreads();"
    return f"dice_named_barrier({operands[0]}, {operands[1]}, {str('arrive' not in parts).lower()});"


def _string(text: str) -> str:
    """The value of a string literal, as far as templates need it."""
    if text.startswith('R"'):
        return text.partition("(")[2].rpartition(")")[0]
    return text.strip('"').replace("\\n", "\n").replace("\\t", " ").replace("\\r", " ").replace('\\"', '"')


def _instructions(template: str) -> list[str]:
    text = re.sub(r"//[^\n]*|/\*.*?(?:\*/|\Z)", " ", template, flags=re.S)
    text = re.sub(r"\bmma\.[^;]*", lambda found: " ".join(found[0].split()), text)  # which is often written in lines
    parts = [" ".join(part.split()) for part in re.split(r"[;\n]", _without_scopes(text))]
    return [part for part in parts if part]


def _without_scopes(text: str) -> str:
    """Without the braces that make a scope; those of a vector follow an opcode or a comma on the same line."""
    return re.sub(r"(^|;|\n)\s*[{}]", r"\1", re.sub(r"(^|;|\n)\s*[{}]", r"\1", text))


def _operands(text: str) -> list[str]:
    """Operands by commas outside of brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "{[") - (character in "}]")
        if character == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]
