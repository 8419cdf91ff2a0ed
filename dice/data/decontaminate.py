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
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dice.problem import Problem, ProblemError, load_problems

SHINGLE = 5
THRESHOLD = 0.9
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
    shingles: frozenset[tuple[str, ...]]


class Index:
    """Fingerprints of a benchmark's problems, to compare others with."""

    def __init__(self, problems: Iterable[Problem], threshold: float = THRESHOLD) -> None:
        self.threshold = threshold
        self._by_digest: dict[str, str] = {}
        self._prints: list[tuple[str, frozenset[tuple[str, ...]]]] = []
        self._by_shingle: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for problem in problems:
            self._insert(problem)

    @classmethod
    def from_folders(cls, folders: Sequence[Path], threshold: float = THRESHOLD) -> Index:
        """Every problem below the folders. Raises `ProblemError` when one is missing or holds no problem."""
        problems = [problem for folder in folders for problem in load_problems(folder)]
        if folders and not problems:
            raise ProblemError(f"There are no problem files below {', '.join(map(str, folders))}.")
        return cls(problems, threshold)

    def __len__(self) -> int:
        return len(self._prints)

    @property
    def digest(self) -> str:
        """Hash of everything this index keeps out."""
        text = f"{self.threshold} {sorted(self._by_digest)}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _insert(self, problem: Problem) -> None:
        found = fingerprint(problem)
        self._by_digest.setdefault(found.digest, problem.name)
        for shingle in found.shingles:
            self._by_shingle[shingle].append(len(self._prints))
        self._prints.append((problem.name, found.shingles))

    def find(self, problem: Problem) -> Match | None:
        """The benchmark problem that this one repeats, or None."""
        found = fingerprint(problem)
        if found.digest in self._by_digest:
            return Match(problem.name, self._by_digest[found.digest], "same program", 1.0)
        name, similarity = self._nearest(found.shingles)
        return Match(problem.name, name, "near duplicate", similarity) if similarity >= self.threshold else None

    def _nearest(self, shingles: frozenset[tuple[str, ...]]) -> tuple[str, float]:
        shared: dict[int, int] = defaultdict(int)
        for shingle in shingles:
            for index in self._by_shingle.get(shingle, ()):
                shared[index] += 1
        best = ("", 0.0)
        for index, common in shared.items():
            name, other = self._prints[index]
            similarity = common / (len(shingles) + len(other) - common)
            best = max(best, (name, similarity), key=lambda item: item[1])
        return best


def fingerprint(problem: Problem) -> Fingerprint:
    """Normalise and hash. A source that is not Python is compared as plain words."""
    try:
        tree = ast.parse(problem.source)
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


def _shingles(tokens: Sequence[str]) -> frozenset[tuple[str, ...]]:
    count = max(1, len(tokens) - SHINGLE + 1)
    return frozenset(tuple(tokens[start : start + SHINGLE]) for start in range(count))


def _tokens(nodes: Sequence[ast.AST]) -> list[str]:
    """The tree in depth-first order: node types, library names, numbered names; constants only by their type."""
    tokens: list[str] = []
    attributes: dict[str, str] = {}
    names: dict[str, str] = {}  # of the function at hand: the same name in two functions is two names

    def number(text: str, known: dict[str, str], letter: str) -> str:
        return text if text in _LIBRARY else known.setdefault(text, f"{letter}{len(known)}")

    def visit(node: ast.AST) -> None:
        match node:
            case ast.Constant(value=value):
                tokens.append(type(value).__name__)
            case ast.Name(id=text) | ast.arg(arg=text):  # annotations are prose
                tokens.append(number(text, names, "v"))
            case ast.Attribute(value=ast.Name(id="self"), attr=text):
                tokens.append(f"self.{number(text, attributes, 'a')}")
            case ast.Attribute(value=owner, attr=text):
                visit(owner)
                tokens.append(f".{text}")
            case ast.Expr(value=ast.Constant(value=str())) | ast.expr_context():
                pass
            case ast.FunctionDef(name=text, args=arguments, body=body):
                names.clear()
                tokens.append(f"def {number(text, attributes, 'a')}")
                visit_all([arguments, *body])
            case ast.ClassDef(name=text, bases=bases, body=body):
                tokens.append(f"class {number(text, attributes, 'a')}")
                visit_all([*bases, *body])
            case ast.keyword(arg=keyword, value=value):
                tokens.append(f"{keyword}=")
                visit(value)
            case _:
                tokens.append(type(node).__name__)
                visit_all(ast.iter_child_nodes(node))

    def visit_all(children: Iterable[ast.AST]) -> None:
        for child in children:
            visit(child)

    visit_all(nodes)
    return tokens
