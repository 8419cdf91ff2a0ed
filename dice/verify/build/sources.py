"""The nouns of building: what is compiled, what comes out, what can go wrong. Imports neither PyTorch nor compilers."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from dice.verdict import Backend
from dice.verify.build.cache import content_key

Headers = Literal["split", "slim", "full"]
LIBRARY = "extension.so"
MAX_SOURCE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Sources:
    """What a `load_inline` call hands over. `functions` are (name, docstring) pairs to write bindings for."""

    cpp: tuple[str, ...] = ()
    cuda: tuple[str, ...] = ()
    functions: tuple[tuple[str, str], ...] = ()
    cflags: tuple[str, ...] = ()
    cuda_cflags: tuple[str, ...] = ()
    implicit_headers: bool = True

    @property
    def has_pybind(self) -> bool:
        return any("PYBIND11_MODULE" in text for text in (*self.cpp, *self.cuda))

    @property
    def size(self) -> int:
        """Bytes of all texts."""
        names = (text for pair in self.functions for text in pair)
        texts = (*self.cpp, *self.cuda, *names, *self.cflags, *self.cuda_cflags)
        return sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)

    def key(self, identity: str, sanitize: bool = False) -> str:
        """Name in the cache of what a compiler called `identity` makes of these sources."""
        flags = safe_flags(self.cflags), safe_flags(self.cuda_cflags)
        cpp, cuda = "\n".join(self.cpp), "\n".join(self.cuda)
        identity += " for sanitizers" * sanitize
        return content_key([identity, repr(flags), cpp, cuda, repr(self.functions), repr(self.implicit_headers)])

    def to_json(self) -> dict[str, object]:
        return {
            "cpp": self.cpp,
            "cuda": self.cuda,
            "functions": self.functions,
            "cflags": self.cflags,
            "cuda_cflags": self.cuda_cflags,
            "implicit_headers": self.implicit_headers,
        }

    @classmethod
    def from_json(cls, value: object) -> Sources:
        """Raises `ValueError` for anything that `to_json` does not write: it may come from a hostile process."""
        if not isinstance(value, dict) or not isinstance(value.get("functions"), list):
            raise ValueError("sources must be an object with a list of functions")
        pairs = [_texts(pair) for pair in value["functions"]]
        if any(len(pair) != 2 for pair in pairs):
            raise ValueError("a function is a name and a docstring")
        return cls(
            _texts(value.get("cpp")),
            _texts(value.get("cuda")),
            tuple((name, doc) for name, doc in pairs),
            _texts(value.get("cflags")),
            _texts(value.get("cuda_cflags")),
            value.get("implicit_headers") is not False,
        )


@dataclass(frozen=True, slots=True)
class Foreign:
    """Why no program may call a library, as a sentence, or "". `word`: the one in its source by which it could reach
    for the inside of its headers, or "". `variable`: one that it keeps from call to call, by its symbol, or ""."""

    reason: str = ""
    word: str = ""
    variable: str = ""

    @property
    def reaches_inside(self) -> bool:
        """Whether the word names something that stands between C++ and Python, and does not only make names, as macros
        of honest sources do."""
        makes_names = self.word in _PLAIN_WORDS or NAME_MAKER.search(self.word) is not None
        return self.word.isidentifier() and not makes_names


@dataclass(frozen=True, slots=True)
class Built:
    """A shared library ready for `binding.load`. `seconds` is the wall time of the build, cached or not. `foreign`: why
    no program may call it."""

    path: Path
    headers: Headers
    seconds: float
    cached: bool
    backend: Backend = "emulated"
    log: str = field(default="", repr=False)
    foreign: Foreign = Foreign()


class CompileError(Exception):
    """The compiler refused the source. `lines` are its errors, mapped to the candidate's own lines."""

    def __init__(self, log: str, lines: Sequence[str] = (), message: str = ""):
        self.log = log
        self.lines = tuple(lines)
        super().__init__(message or "\n".join(("Error building extension:", *self.lines)))


class LinkError(CompileError):
    """The units compiled but do not fit together, for example because both define the same function."""


class CompileTimeout(CompileError):
    """The compiler did not end in time."""


class Unsupported(Exception):
    """Emulation cannot run this source; the message names the construct."""


_PLAIN_WORDS = ("asm", "_Pragma")  # of honest sources, too
# Names of what stands between C++ and Python, and of what makes other names: pasted tokens, trigraphs, digraphs, names
# in attributes and pragmas, and letters by their number.
_INNER_WORD = re.compile(
    r"\b(_?Py(?!Torch\b)[A-Z_]\w*|_object|aoti_\w+|_*weakref_*|redefine_extname|_Pragma)\b|##|\?\?[=/]|%:%:|\\[uU]"
)
# Macros of system headers, CUDA's and PyTorch's that paste tokens for whoever uses them.
NAME_MAKER = re.compile(
    r"\b(?:__CONCAT|C10_CONCATENATE\w*|(?:_CCCL|_LIBCUDACXX|_NV|_CG|_CUB|_GLIBCXX(?!_USE_)|__THRUST|THRUST_PP|CUB_DEFINE|NVTX)_\w+"
    r"|__MATH_TG|__gthrw\w*|__f\d+x?|(?:__)?U?INT(?:\d+|MAX)_C(?!\s*\(\s*\d))\b"
)
_OWN_WORD = re.compile(r"\b[Dd][Ii][Cc][Ee]\w*")
_OWN_HEADERS = tuple(Path(__file__).parent.parent / name for name in ("include", "include_cuda", "emulator/include"))
_SPLICE = re.compile(r"\\[ \t\f\v\r]*\n")  # g++ joins two lines also where blanks stand behind the backslash
_TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.DOTALL)
# Where a comment seems to begin in the name of a header.
_ODD_HEADER = re.compile(r"\b(?:include\w*|import|embed|__has_\w+)\s*\(?\s*<[^>\n]*/[/*]")
_ASSEMBLY = re.compile(r'\b_*asm_*\b\s*((?:_*(?:volatile|goto|inline)_*\s*)*)\(((?:\s*"(?:\\.|[^"\\\n])*")*)')


def inner_word(sources: Sources) -> str:
    """The first word in the sources that reaches for what their headers are made of, or could; "" for none.

    Code that only uses PyTorch's C++ interface and CUDA has no such word. Comments and strings are not looked at.
    """
    for text in (*sources.cpp, *sources.cuda, *sources.cflags, *sources.cuda_cflags):
        spliced = _SPLICE.sub("", text)
        code = _code(spliced)
        found = _INNER_WORD.search(code) or NAME_MAKER.search(code)
        if found:
            return found.group()
        for own in _OWN_WORD.finditer(code):
            if own.group() in _own_words():
                return own.group()
        if any(not volatile and _is_label(said) for volatile, said in _ASSEMBLY.findall(spliced)):
            return "asm"
    return ""


def _code(text: str) -> str:
    """The text without comments and strings; as it is where that could be read otherwise than a compiler does: raw
    strings, quotes behind letters and digits, quotes and comments without an end."""
    if _ODD_HEADER.search(text):
        return text
    parts: list[str] = []
    kept = 0
    for found in _TOKEN.finditer(text):
        start = found.start()
        before = text[start - 1 : start]
        if (text[start] == "'" and (before.isalnum() or before == "_")) or (text[start] == '"' and before == "R"):
            return text
        parts.append(text[kept:start])
        kept = found.end()
    parts.append(text[kept:])
    code = " ".join(parts)
    return text if re.search(r"[\"']|/\*", code) else code


def _is_label(said: str) -> bool:
    """Whether what stands in `asm(...)` may be a declaration's name in the object file. A statement of PTX has a
    semicolon, or holds nothing."""
    literals = re.findall(r'"((?:\\.|[^"\\\n])*)"', said)
    return not literals or (";" not in "".join(literals) and bool("".join(literals).strip()))


@functools.cache
def _own_words() -> frozenset[str]:
    """The names with our own in them that the headers of a build hold."""
    texts = [path.read_text() for folder in _OWN_HEADERS for path in folder.rglob("*") if path.is_file()]
    return frozenset(word for text in texts for word in _OWN_WORD.findall(text))


_SAFE_FLAG = re.compile(
    r"-O[0-3s]|-std=(c|gnu)\+\+\d\w|-D\w+(=[\w.+-]*)?|-U__CUDA_NO_\w+|-lineinfo|--?use_fast_math|-ftz=\w+|-prec-(div|sqrt)=\w+"
    r"|-fmad=\w+|--(ftz|prec-div|prec-sqrt|fmad)=\w+|--?maxrregcount=\d+|--?expt-(relaxed-constexpr|extended-lambda)|--?extended-lambda"
)
_PAIRED_FLAG = frozenset({"-D", "-U", "-std", "--std", "-maxrregcount", "--maxrregcount"})


def safe_flags(flags: Iterable[str]) -> tuple[str, ...]:
    """The user's compiler flags that change what a source means; everything else (paths, plugins, -Xcompiler,
    architectures) is dropped, so that a source cannot choose what is read, run or written."""
    kept: list[str] = []
    pending = ""
    for flag in flags:
        if pending:
            joined = pending + ("=" if pending.lstrip("-") in ("std", "maxrregcount") else "") + flag
            pending = ""
            if _SAFE_FLAG.fullmatch(joined):
                kept.append(joined)
        elif flag in _PAIRED_FLAG:
            pending = flag
        elif _SAFE_FLAG.fullmatch(flag):
            kept.append(flag)
    return tuple(kept)


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise ValueError("a list of texts was expected")
    return tuple(value)
