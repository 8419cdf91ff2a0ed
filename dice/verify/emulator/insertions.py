"""What is put into device code so that the emulator sees more of it.

acc[i] = v;                ->  acc[::dice_emu::in_array(acc, (i), "acc")] = v;   where acc is a local array
s[i] = v;                  ->  s[i] = v, ::dice_emu::stored();   where s is __shared__
for (a; b; c) BODY         ->  for (::dice_emu::Loop dice_loop; dice_loop.once(); )
                                   for (a; dice_loop.next() && (b); c) BODY
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator

from dice.verify.emulator import ptx
from dice.verify.emulator.functions import Function
from dice.verify.emulator.tokens import Edits, Tokens

_TOGETHER = ("coalesced_threads", "__activemask")  # they answer with the lanes that come to a place together
_NOT_A_TYPE = {"return", "case", "goto", "throw", "else", "do", "new", "delete", "operator", "typename", "co_return"}
_NO_VALUE = (".", "->", "::", "&")  # before the name of a member, or of what only the address is taken of
_BEFORE_STATEMENT = {";", "{", "}", ")", "else", "do", ":"}
_COMPOUND = {"+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>"}
_NO_LOCAL = {"__shared__", "extern", "typedef", "using"}
_LONGEST_TYPE = 16  # tokens before the arguments of a template


def check_indices(tokens: Tokens, edits: Edits, function: Function) -> None:
    """The index of each local array of one dimension is held against its length. Those of more dimensions are left out:
    code that takes such an array for a flat one is read by GPUs as it is meant. So are addresses, which may be those of
    the end."""
    declared = _local_arrays(tokens, function)
    names = {tokens.text(index) for index, is_line in declared.items() if is_line}
    for index in code(tokens, function) if names else ():
        if tokens.text(index) not in names or tokens.text(index + 1) != "[" or index + 1 not in tokens.partner:
            continue
        closing = tokens.partner[index + 1]
        if index in declared or tokens.text(index - 1) in _NO_VALUE or closing == index + 2:
            continue
        edits.insert(tokens[index + 1].end, f"::dice_emu::in_array({tokens.text(index)}, (")
        edits.insert(tokens[closing].start, f'), "{tokens.text(index)}")')


def keep_step(
    tokens: Tokens, edits: Edits, function: Function, names: Container[str], ends: Callable[[int], int | None]
) -> None:
    """After a store to a shared variable, which `names` are, others may come to theirs before a thread goes on."""
    for index in code(tokens, function):
        if tokens.text(index) not in names or tokens.text(index - 1) not in _BEFORE_STATEMENT:
            continue
        after = index + 1
        while tokens.text(after) == "." or (tokens.text(after) == "[" and after in tokens.partner):
            after = after + 2 if tokens.text(after) == "." else tokens.partner[after] + 1
        end = ends(after) if _stores(tokens, after) else None
        if end is not None and tokens.is_balanced(index, end):
            edits.insert(tokens[end].start, ", ::dice_emu::stored()")


def _stores(tokens: Tokens, index: int) -> bool:
    """Whether `=` stands there, or `+=` and the like, or `++`."""
    operator = tokens.text(index)
    return operator in ("=", "++", "--") or (operator in _COMPOUND and tokens.text(index + 1) == "=")


def count_rounds(tokens: Tokens, edits: Edits, function: Function) -> None:
    """Where a source asks which lanes came together, each loop counts its rounds: lanes in different ones did not."""
    for index in code(tokens, function):
        keyword, opening = tokens.text(index), index + 1
        if keyword == "do" and tokens.text(opening) == "{" and opening in tokens.partner:
            opening = tokens.partner[opening] + 2
            condition = _condition(tokens, opening) if tokens.text(opening - 1) == "while" else None
        elif keyword in ("for", "while") and not _ends_do(tokens, index):
            condition = _condition_of_for(tokens, opening) if keyword == "for" else _condition(tokens, opening)
        else:
            continue
        if condition is None:
            continue
        start, end = condition
        edits.insert(tokens[index].start, "for (::dice_emu::Loop dice_loop; dice_loop.once(); ) ")
        if tokens[start - 1].end <= tokens[end].start and start < end:
            edits.insert(tokens[start - 1].end, "dice_loop.next() && (")
            edits.insert(tokens[end].start, ")")
        else:
            edits.insert(tokens[start - 1].end, "dice_loop.next()")


def asks_for_lanes(tokens: Tokens) -> bool:
    return any(token.text in _TOGETHER for token in tokens.list)


def code(tokens: Tokens, function: Function) -> Iterator[int]:
    """The tokens of its body that are neither a directive's nor in an `asm`, which is translated as a whole."""
    index = function.opening + 1
    while index < function.closing:
        if tokens.text(index) in ptx.WORDS:
            while index < function.closing and tokens.text(index) != "(":
                index += 1
            index = tokens.partner.get(index, index)
        elif index in tokens.directive_end:
            index = tokens.directive_end[index] - 1
        else:
            yield index
        index += 1


def _local_arrays(tokens: Tokens, function: Function) -> dict[int, bool]:
    """The places of the names of arrays where they are declared, and whether each is local and of one dimension."""
    declared: dict[int, bool] = {}
    is_local = True
    for index in code(tokens, function):
        if tokens.text(index) in (";", "{", "}"):
            is_local = True
        is_local = is_local and tokens.text(index) not in _NO_LOCAL
        if not _may_be_declared(tokens, index, declared):
            continue
        closing = tokens.partner[index + 1]
        declared[index] = is_local and tokens.text(closing + 1) in (";", ",", "=", "{") and closing > index + 2
    return declared


def _may_be_declared(tokens: Tokens, index: int, declared: Container[int]) -> bool:
    """Whether this is the name in `T name[`, or in `T one[2], name[`."""
    if tokens[index].kind != "word" or tokens.text(index + 1) != "[" or index + 1 not in tokens.partner:
        return False
    before = index - 1
    if tokens.text(before) == ",":
        return tokens.text(before - 1) == "]" and tokens.partner.get(before - 1, 0) - 1 in declared
    if tokens.text(before) == ">":  # of a template's arguments, or greater than
        start = tokens.template_start(before)
        return start is not None and tokens[start - 1].kind == "word" and _begins_statement(tokens, start - 1)
    return tokens[before].kind == "word" and tokens.text(before) not in _NOT_A_TYPE


def _begins_statement(tokens: Tokens, index: int) -> bool:
    for _ in range(_LONGEST_TYPE):
        if tokens.text(index - 1) in (";", "{", "}", ")", "("):
            return True
        index -= 1
        if tokens.text(index) not in ("::", "const", "static", "typename") and tokens.text(index + 1) != "::":
            return False
    return False


def _ends_do(tokens: Tokens, index: int) -> bool:
    before = tokens.partner.get(index - 1, -1)
    return tokens.text(index - 1) == "}" and before > 0 and tokens.text(before - 1) == "do"


def _condition(tokens: Tokens, opening: int) -> tuple[int, int] | None:
    """The tokens between the parentheses of a `while`, unless they declare a variable."""
    if tokens.text(opening) != "(" or opening not in tokens.partner:
        return None
    declares = tokens[opening + 1].kind == "word" and tokens[opening + 2].kind == "word"
    return None if declares else (opening + 1, tokens.partner[opening])


def _condition_of_for(tokens: Tokens, opening: int) -> tuple[int, int] | None:
    """The tokens between the two semicolons; None for a `for` over a range."""
    if tokens.text(opening) != "(" or opening not in tokens.partner:
        return None
    ends: list[int] = []
    index = opening + 1
    while index < tokens.partner[opening]:
        if tokens.text(index) == ";":
            ends.append(index)
        index = (
            tokens.partner[index] + 1
            if tokens.text(index) in ("(", "[", "{") and index in tokens.partner
            else index + 1
        )
    return (ends[0] + 1, ends[1]) if len(ends) == 2 else None
