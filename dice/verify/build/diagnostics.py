"""Reading a compiler's log: the candidate's own error lines, and whether the shadow headers may be to blame."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from dice.verify.build.units import BINDING, CPP_SOURCE, CUDA_SOURCE, strip_comments
from dice.verify.toolchain import CUDA_API_HEADERS, SHADOW_HEADERS, torch_includes

MAX_LINES = 20
OWN_FILES = (CUDA_SOURCE, CPP_SOURCE, BINDING)

# g++: `file:12:5: error: text`; nvcc's front end: `file(12): error: text`, with `error #20: ` in some versions.
_ERROR = re.compile(
    r"^(?P<file>[^\s:()][^:()\n]*)(?:\((?P<nvcc>\d+)\)|:(?P<gcc>\d+)(?::\d+)?)\s*:"
    r" (?:fatal |catastrophic )?error\b[^:]*: (?P<text>.*)$"
    r"(?:\n(?P<code>[^\n]*)\n(?P<caret>[ ]*)\^[ ]*$)?",  # nvcc points below the name it means
    re.M,
)
_LINK = re.compile(
    r"(multiple definition of|undefined reference to|undefined symbol|relocation|cannot find -l|hidden symbol)[^\n]*"
)
# g++ on what stands in a header: the line of the source that uses the macro, or the template.
_OWN_LINE = rf"^(?P<file>{'|'.join(OWN_FILES)}):(?P<line>\d+):\d+: +"
_EXPANDED_AT = re.compile(_OWN_LINE + "note: +in expansion of macro", re.M)
_REQUIRED_AT = re.compile(_OWN_LINE + "required from here", re.M)
_QUOTED = re.compile(r"[‘'\"“]([^‘’'\"“”\n]*)[’'\"”]")


@dataclass(frozen=True, slots=True)
class Diagnostic:
    file: str
    line: int
    text: str
    pointed: str = ""  # the name that nvcc's caret points at

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: error: {self.text}"


def read_errors(log: str) -> list[Diagnostic]:
    """Every compiler error in the order of the log."""
    return [_diagnostic(match) for match in _ERROR.finditer(log)]


def _diagnostic(match: re.Match[str]) -> Diagnostic:
    return Diagnostic(match["file"], int(match["nvcc"] or match["gcc"]), match["text"].strip(), _pointed(match))


def _at_own_lines(log: str) -> list[Diagnostic]:
    """The errors again, those in headers with the line of the source that led to them where g++ names one: before the
    error where a template was instantiated, behind it where a macro was expanded."""
    matches = list(_ERROR.finditer(log))
    begins = [0, *(match.end() for match in matches)]
    ends = [*(match.start() for match in matches[1:]), len(log)]
    found = []
    for match, begin, end in zip(matches, begins, ends, strict=False):
        error = _diagnostic(match)
        used = _EXPANDED_AT.search(log, match.end(), end) or _REQUIRED_AT.search(log, begin, match.start())
        if error.file not in OWN_FILES and used is not None:
            error = replace(error, file=used["file"], line=int(used["line"]))
        found.append(error)
    return found


def _pointed(match: re.Match[str]) -> str:
    if match["nvcc"] is None or match["code"] is None:
        return ""
    name = re.match(r"\w+", match["code"][len(match["caret"]) :])
    return name[0] if name else ""


def error_lines(log: str) -> tuple[str, ...]:
    """What a writer needs to mend the source: errors at its own lines, else the linker's or the last words."""
    errors = list(dict.fromkeys(_at_own_lines(log)))
    own = [str(error) for error in errors if error.file in OWN_FILES]
    if any(_MODULE_TWICE.match(error.text) for error in errors):
        own = [f"{BINDING}:1: error: PYBIND11_MODULE stands in the source, and functions=[...] asks for another one"]
    if own:
        return tuple(own[:MAX_LINES])
    if errors:
        return tuple(str(error) for error in errors[:MAX_LINES])
    linker = [match.group(0) for match in _LINK.finditer(log)]
    return tuple((linker or log.strip().splitlines()[-5:])[:MAX_LINES])


def headers_to_blame(log: str, source: str = "") -> bool:
    """True when an error may come from something that PyTorch's headers have and the shadow headers lack.

    Syntax errors, undefined names that PyTorch does not know either, and misuse of CUDA are the candidate's own: for
    them a second compilation, half a minute long, would say the same. Where such a name is the first error, nothing
    before it can be its cause, and whatever follows changes nothing.
    """
    errors = read_errors(log)
    if errors and _is_unknown_everywhere(errors[0]):
        return False
    if errors and any(_known_to_pytorch(name) for name in _macros_that_are_not_ours(source)):
        return True  # the message about what an unknown macro stands before names anything but the macro
    if _OF_TORCH_CUDA.search(source) and any(_NO_TORCH_CUDA.search(error.text) for error in errors):
        return True
    for alias in _NAMESPACE_ALIAS.findall(source):
        errors = [replace(error, text=re.sub(rf"([‘'\"]){alias}(?=\W)", r"\1torch", error.text)) for error in errors]
    return any(_suspicious(error) or _is_found_unscoped(error, source) for error in errors)


# What PyTorch's namespace `torch::cuda` has, and the shadow headers in part, beside the CUDA runtime; other names in it
# are the source's own.
_OF_TORCH_CUDA = re.compile(
    r"\btorch::cuda::(device_count|is_available|cudnn_is_available|manual_seed|manual_seed_all|synchronize)\b"
)
_NO_TORCH_CUDA = re.compile(r"[‘']torch::cuda[’'] has not been declared|namespace \"torch\" has no member \"cuda\"")
_NAMESPACE_ALIAS = re.compile(r"\bnamespace\s+(\w+)\s*=\s*(?:::)?(?:torch|at|c10)\b[\w:]*\s*;")


def _macros_that_are_not_ours(source: str) -> set[str]:
    return set(_MACRO.findall(strip_comments(source))) - _words_of_ours()


@cache
def _words_of_ours() -> frozenset[str]:
    """All words of the shadow headers, and what a build defines."""
    folders = (SHADOW_HEADERS, CUDA_API_HEADERS)
    texts = (path.read_text(encoding="utf-8") for folder in folders for path in folder.rglob("*.*h"))
    return frozenset({"TORCH_EXTENSION_NAME"}.union(*(re.findall(r"[A-Za-z_]\w+", text) for text in texts)))


_HEADER = re.compile(r"(?<![\w./+-])([\w./+-]+\.(?:h|hpp|cuh))\b")
_NOT_OPENED = re.compile(r"cannot open source file \"([^\"]+)\"")
_TYPE_TROUBLE = re.compile(
    r"no match|no suitable|no instance|no operator|could not convert|cannot convert|invalid initialization"
    r"|invalid conversion|does not match|ambiguous|no viable|incomplete type|is inaccessible|has no type"
    r"|no type named|no default constructor|too (many|few) arg|more than one|static assertion|template argument"
    r"|deduc|use of deleted|invalid use|not a (class|type)|discards qualifiers"
)
_NO_NAME = re.compile(
    r"no member|not a member|not declared|is undefined|does not name|not been declared|no template named|not a template"
)
_UNDECLARED = re.compile(
    r"[‘'](\w+)[’'] was not declared in this scope(?:;.*)?|identifier \"(\w+)\" is undefined|"
    r"[‘'](\w+)[’'] does not name a type(?:;.*)?"
)
_NO_MEMBER_OF_TENSOR = re.compile(
    r"[‘'](?:const )?(?:class )?at::Tensor[’'] has no member named [‘'](\w+)[’']|"
    r"class \"at::Tensor\" has no member \"(\w+)\""
)
_TENSOR_TO_POINTER = re.compile(r"at::Tensor\W+ to \W*(const )?\w+( \w+)?\s*\*")


def _suspicious(error: Diagnostic) -> bool:
    before, missing, _ = error.text.rpartition("No such file")
    header = (_HEADER.search(before) if missing else None) or _NOT_OPENED.search(error.text)
    if header is not None:
        return _real_header_exists(header[1])
    if _MODULE_TWICE.match(error.text) or (_OLD_DISPATCH.fullmatch(error.text) and not _dispatches_old_types()):
        return False
    if error.file not in OWN_FILES:
        return True  # inside our headers: an instantiation they did not foresee
    if error.text.startswith('name followed by "::"'):
        return error.pointed not in _SCOPES and _known_to_pytorch(error.pointed)
    member = _NO_MEMBER_OF_TENSOR.match(error.text)
    if member is not None:
        return (member[1] or member[2]) in _members_of_tensor()
    if _NO_NAME.search(error.text):
        return any(_known_to_pytorch(name) for name in _missing_names(error.text))
    if _TENSOR_TO_POINTER.search(error.text):
        return False
    return _OF_PYTORCH.search(error.text) is not None and _TYPE_TROUBLE.search(error.text) is not None


# PYBIND11_MODULE beside `functions=[...]`, for which PyTorch writes another one.
_MODULE_TWICE = re.compile(r"redefinition of .*\bdice_(module_name|module_init|define_module)\b")
# `AT_DISPATCH_FLOATING_TYPES(x.type(), ...)`, as it was written for years.
_OLD_DISPATCH = re.compile(r"cannot convert \W*const at::DeprecatedTypeProperties\W* to \W*c10::ScalarType\W*.*")


@cache
def _dispatches_old_types() -> bool:
    """Whether this PyTorch still takes what `type()` gives where it dispatches."""
    return "DeprecatedTypeProperties" in (torch_includes()[0] / "ATen" / "Dispatch.h").read_text(encoding="utf-8")


def _undeclared(error: Diagnostic) -> str:
    """The name without a scope that it is about, or ""."""
    match = _UNDECLARED.fullmatch(error.text)
    return next(filter(None, match.groups())) if match else ""


def _is_found_unscoped(error: Diagnostic, source: str) -> bool:
    """Whether PyTorch has a name that is missing without a scope: the source uses a namespace of PyTorch, or calls an
    operator, which the type of its argument would find."""
    name = _undeclared(error)
    if not name or not _known_to_pytorch(name):
        return False
    called = re.search(rf"(?<![\w.:>]){name}\s*\(", source) is not None
    return _USING_PYTORCH.search(source) is not None or (called and _is_operator(name))


_USING_PYTORCH = re.compile(r"\busing\b[^;]*\b(at|torch|c10|caffe2|pybind11|py)\b")


def _is_unknown_everywhere(error: Diagnostic) -> bool:
    """Whether it is about a name without a scope that no header of PyTorch mentions in whatever place."""
    name = _undeclared(error)
    return error.file in OWN_FILES and name != "" and not _known_to_pytorch(name)


_OF_PYTORCH = re.compile(r"\b(at|c10|torch|caffe2|pybind11|py|dice)\b")
_MACRO = re.compile(r"\b(?:AT|TORCH|C10|PYBIND11)_\w+")


def _missing_names(text: str) -> list[str]:
    """Names that the error says do not exist, when they were looked for in PyTorch: inside its namespaces and classes,
    or as one of its macros. An undeclared plain word such as `sum` is the candidate's own mistake."""
    text = text.split("; did you mean", 1)[0]
    names = [name.split("::")[-1] for name in _QUOTED.findall(text)]
    names = [name for name in names if re.fullmatch(r"[A-Za-z_]\w*", name) and name not in _SCOPES]
    return names if _OF_PYTORCH.search(text) else [name for name in names if _MACRO.fullmatch(name)]


_SCOPES = frozenset({"at", "torch", "c10", "py", "pybind11", "std", "cuda", "Tensor", "detail", "class", "struct"})


def _real_header_exists(header: str) -> bool:
    return any((folder / header).is_file() for folder in torch_includes())


@cache
def _known_to_pytorch(name: str) -> bool:
    """True when PyTorch's headers mention `name`: an operator, or a word in the headers that extensions include."""
    return _is_operator(name) or name in _pytorch_words()


def _is_operator(name: str) -> bool:
    return (torch_includes()[0] / "ATen" / "ops" / f"{name}.h").is_file()


_SEARCHED = (
    "ATen/*.h",
    "ATen/core/*.h",
    "ATen/cuda/*.h",
    "ATen/cuda/*.cuh",
    "c10/**/*.h",
    "torch/*.h",
    "torch/headeronly/**/*.h",
    "torch/csrc/*.h",
    "torch/csrc/utils/*.h",
    "torch/csrc/autograd/*.h",
    "torch/csrc/api/include/torch/**/*.h",
    "pybind11/*.h",
)


@cache
def _members_of_tensor() -> frozenset[str]:
    """What PyTorch declares, or calls, as a function in the headers of its class: all methods are among that."""
    core = torch_includes()[0] / "ATen" / "core"
    texts = [(core / name).read_text(encoding="utf-8") for name in ("TensorBase.h", "TensorBody.h")]
    return frozenset(name for text in texts for name in re.findall(r"([A-Za-z_]\w*)\s*[(<]", text))


@cache
def _pytorch_words() -> frozenset[str]:
    include = torch_includes()[0]
    words: set[str] = set()
    for pattern in _SEARCHED:
        for path in include.glob(pattern):
            words.update(_significant_words(path))
    return frozenset(words)


def _significant_words(path: Path) -> set[str]:
    """Words of a header outside comments. Local names in them make this too generous, never too strict."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", " ", path.read_text(encoding="utf-8", errors="replace"), flags=re.S)
    return set(re.findall(r"[A-Za-z_]\w+", text))
