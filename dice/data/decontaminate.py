"""Keep benchmark problems out of training data, whatever names, constants and shapes they were rewritten with.

Two tests against every problem of a benchmark folder:
- the same program: equal hashes of the normalised syntax tree (names of the author's choosing numbered by first use,
  constants and docstrings dropped, module-level constants and input shapes dropped);
- nearly the same program: Jaccard similarity of the 5-token shingles of the normalised computation (`Model`'s body)
  at or above a threshold.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dice import syntax
from dice.data.near_duplicates import Neighbours, Shingles
from dice.kernel import Kernel
from dice.problem import Problem, ProblemError, load_problems

SHINGLE = 5  # tokens that are compared together
THRESHOLD = 0.9  # Jaccard similarity of shingles from which a problem repeats another one
_CUDA_NOISE = re.compile(r"//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_CUDA_TOKEN = re.compile(r"(?:(\.|->|::)\s*)?\b([A-Za-z_]\w*)(\s*\()?|(\d[\w.]*)|([^\s\w])")
_CUDA_NAMES = re.compile(  # of values and types that the language or a library defines
    r"__\w+__|extern|const|void|int|unsigned|long|float|double|half|bool|auto|if|else|for|while|return|template|typename"
    r"|struct|threadIdx|blockIdx|blockDim|gridDim|torch|at|c10|INFINITY"
)
_NAMED = re.compile(r"\b\w+\s+(\w+)\s*\(")
_LIBRARY = frozenset({"torch", "nn", "F", "math", "np", "numpy", "super", "self", "Model", "forward", "__init__"})


@dataclass(frozen=True, slots=True)
class Match:
    """One problem that a benchmark already holds."""

    problem: str
    benchmark: str
    kind: str  # "same program" | "near duplicate"
    similarity: float


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What is left of a problem when names, numbers and prose are taken away."""

    digest: str
    shingles: Shingles


class Index:
    """Fingerprints of a benchmark's problems, to compare others with."""

    def __init__(self, problems: Iterable[Problem], threshold: float = THRESHOLD) -> None:
        self.threshold = threshold
        named = [(problem.name, fingerprint(problem)) for problem in problems]
        self._names = [name for name, _ in named]
        self._by_digest: dict[str, str] = {}
        self._neighbours = Neighbours(threshold, [found.shingles for _, found in named])
        for name, found in named:
            self._by_digest.setdefault(found.digest, name)
            self._neighbours.add(found.shingles)

    @classmethod
    def from_folders(cls, folders: Sequence[Path], threshold: float = THRESHOLD) -> Index:
        """Every problem below the folders. Raises `ProblemError` when one is missing or holds no problem."""
        problems = [problem for folder in folders for problem in load_problems(folder)]
        if folders and not problems:
            raise ProblemError(f"There are no problem files below {', '.join(map(str, folders))}.")
        return cls(problems, threshold)

    def __len__(self) -> int:
        return len(self._names)

    @property
    def digest(self) -> str:
        """Hash of everything this index keeps out."""
        text = f"{self.threshold} {sorted(self._by_digest)}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def find(self, problem: Problem) -> Match | None:
        """The benchmark problem that this one repeats, or None."""
        found = fingerprint(problem)
        if found.digest in self._by_digest:
            return Match(problem.name, self._by_digest[found.digest], "same program", 1.0)
        near = self._neighbours.find(found.shingles)
        if not near:
            return None
        return Match(problem.name, self._names[near[0].number], "near duplicate", near[0].similarity)


def fingerprint(problem: Problem) -> Fingerprint:
    """Normalise and hash. A source that is not Python is compared as plain words."""
    try:
        tree = syntax.parse(problem.source)
    except (SyntaxError, ValueError):
        words = re.findall(r"\w+", problem.source)
        return Fingerprint(hashlib.sha256(" ".join(words).encode()).hexdigest(), _shingles(words))
    model = next((node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Model"), None)
    nodes: list[ast.stmt] = [node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    others = [
        node
        for node in nodes
        if node is not model and getattr(node, "name", "") not in ("get_inputs", "get_init_inputs")
    ]
    tokens = _tokens([*others, model] if model else others)
    return Fingerprint(hashlib.sha256(" ".join(tokens).encode()).hexdigest(), _shingles(tokens))


def kernel_shingles(kernel: Kernel) -> Shingles:
    """What is left of a kernel file without names, numbers, comments and layout: to find near-duplicates by.

    Its CUDA C++ word by word, where names that the author chose for values and functions are all alike, then its
    Python like a problem's.
    """
    words = [word for text in kernel.cuda_sources for word in _cuda_words(text)]
    try:
        body = syntax.parse(kernel.source).body
    except (SyntaxError, ValueError):
        return _shingles(re.findall(r"\w+", kernel.source))
    own = {f".{name}" for name in kernel.bound_functions}
    tokens = _tokens([node for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef)])
    return _shingles([*words, *(".name" if token in own else token for token in tokens)])


def _cuda_words(text: str) -> list[str]:
    text = _CUDA_NOISE.sub(" ", text)
    own = set(_defined_functions(text))
    words = []
    for member, name, call, number, sign in _CUDA_TOKEN.findall(text):
        if name:
            is_library = member or _CUDA_NAMES.fullmatch(name) or (call and name not in own)
            words += [part for part in (member, name if is_library else "name", "(" if call else "") if part]
        else:
            words.append("number" if number else sign)
    return words


def _defined_functions(text: str) -> Iterator[str]:
    """Names followed by parameters and a body."""
    pieces = re.split(r"([;{}])", text)
    for before, sign in zip(pieces[::2], pieces[1::2], strict=False):
        head = _NAMED.search(before) if sign == "{" and before.rstrip().endswith(")") else None
        if head:
            yield head[1]


def _shingles(tokens: Sequence[str]) -> Shingles:
    count = max(1, len(tokens) - SHINGLE + 1)
    return frozenset(tuple(tokens[start : start + SHINGLE]) for start in range(count))


def _tokens(nodes: Sequence[ast.AST]) -> list[str]:
    """The tree in depth-first order: node types, library names, numbered names; constants only by their type."""
    tokens: list[str] = []
    attributes: dict[str, str] = {}
    names: dict[str, str] = {}  # of the function at hand: the same name in two functions is two names

    def number(text: str, known: dict[str, str], letter: str) -> str:
        return text if text in _LIBRARY else known.setdefault(text, f"{letter}{len(known)}")

    pending: list[ast.AST | str] = [*reversed(nodes)]  # a tree may be deeper than Python's own stack
    while pending:
        node = pending.pop()
        match node:
            case str():
                tokens.append(node)
            case ast.Constant(value=value):
                tokens.append(type(value).__name__)
            case ast.Name(id=text) | ast.arg(arg=text):  # annotations are prose
                tokens.append(number(text, names, "v"))
            case ast.Attribute(value=ast.Name(id="self"), attr=text):
                tokens.append(f"self.{number(text, attributes, 'a')}")
            case ast.Attribute(value=owner, attr=text):
                pending += [f".{text}", owner]
            case ast.Expr(value=ast.Constant(value=str())) | ast.expr_context():
                pass
            case ast.FunctionDef(name=text, args=arguments, body=body):
                names.clear()
                tokens.append(f"def {number(text, attributes, 'a')}")
                pending += [*reversed(body), arguments]
            case ast.ClassDef(name=text, bases=bases, body=body):
                tokens.append(f"class {number(text, attributes, 'a')}")
                pending += [*reversed(body), *reversed(bases)]
            case ast.keyword(arg=keyword, value=value):
                tokens.append(f"{keyword}=")
                pending.append(value)
            case _:
                tokens.append(type(node).__name__)
                pending += reversed(list(ast.iter_child_nodes(node)))
    return tokens
