"""Kernels written elsewhere: KernelBench's run folders, folders of files named as their problems, JSON and JSONL."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dice.errors import UserError
from dice.evaluate.models.base import Answer, Question
from dice.evaluate.run_folder import Task
from dice.files.atomic import read_json
from dice.files.tables import SUFFIXES, read_rows
from dice.problem import Problem, read_source
from dice.prompts import extract_kernel

KERNELBENCH = re.compile(r"level_(\d+)_problem_(\d+)_sample_(\d+)_kernel\.py")
_SAMPLE = re.compile(r"(.+?)(?:_kernel)?(?:_sample_(\d+))?(?:_kernel)?")
KERNEL = ("kernel", "custom_code", "cuda_code", "kernel_code", "kernel_src", "solution")
REPLY = ("response", "reply", "answer", "completion", "output")
NAME = ("problem", "key", "task", "problem_name", "name")
NUMBER = ("problem_id", "task_id", "number")
LEVEL = ("level", "level_id")
SOURCE = ("ref_code", "pytorch_code", "ref_arch_src", "problem", "reference")


class AnswersModel:
    """Raises `UserError` when made, for what cannot be read. A problem without an answer is an error of its own."""

    gpu: int | None = None

    def __init__(self, path: Path, tasks: Sequence[Task]):
        self._found = read_answers(path, tasks)
        if not self._found:
            raise UserError(f"{path} holds no kernel for any of the {len(tasks)} problems.")

    def answer(self, questions: Sequence[Question]) -> Iterator[tuple[Question, Answer]]:
        for question in questions:
            text = self._found.get(question.id)
            if text is None:
                yield question, Answer(stop="error", error="there is no answer to this problem")
            else:
                yield question, Answer(text, kernel=None if "```" in text else text)

    def close(self) -> None:
        """Nothing is held."""


def read_answers(path: Path, tasks: Sequence[Task]) -> dict[tuple[str, int], str]:
    """(task key, sample) -> the kernel's source, or the reply that holds it. Raises `UserError`."""
    if path.is_dir():
        return _folder(path, _Finder(tasks))
    if path.suffix in SUFFIXES:
        return _table(path, _Finder(tasks))
    raise UserError(f"{path} is neither a folder of kernels nor a {', '.join(SUFFIXES)} file.")


class _Finder:
    """Which task a name, a number or a reference's source means."""

    def __init__(self, tasks: Sequence[Task]):
        self._names: dict[str, str] = {}
        self._numbers: dict[tuple[int, int], str] = {}
        self._sources: dict[str, str] = {}
        levels = {task.level for task in tasks}
        self._only_level = next(iter(levels)) if len(levels) == 1 else None
        for task in tasks:
            self._names |= {task.key: task.key}
            self._names.setdefault(task.name, task.key)
            self._numbers[task.level, task.number] = task.key
            self._sources[Problem(task.source.strip()).id] = task.key

    def named(self, text: str) -> str | None:
        return self._names.get(text.removesuffix(".py"))

    def numbered(self, level: int | None, number: int) -> str | None:
        level = self._only_level if level is None else level
        return None if level is None else self._numbers.get((level, number))

    def sourced(self, text: str) -> str | None:
        return self._sources.get(Problem(text.strip()).id)


def _folder(path: Path, finder: _Finder) -> dict[tuple[str, int], str]:
    found: dict[tuple[str, int], str] = {}
    for file in sorted(path.rglob("*.py")):
        match = KERNELBENCH.fullmatch(file.name)
        if match:
            key, sample = finder.numbered(int(match[1]), int(match[2])), int(match[3])
        else:
            plain = _SAMPLE.fullmatch(file.stem)
            assert plain is not None
            key = finder.named(f"{file.parent.name}/{plain[1]}") or finder.named(plain[1])
            sample = int(plain[2] or 0)
        if key is not None:
            found.setdefault((key, sample), read_source(file, "kernel"))
    return found


def _table(path: Path, finder: _Finder) -> dict[tuple[str, int], str]:
    """Rows without a sample number are samples in their order."""
    found: dict[tuple[str, int], str] = {}
    following: dict[str, int] = {}
    for row in _rows(path):
        key, text = _task_of(row, finder), _text_of(row)
        if key is None or text is None:
            continue
        given = _whole(row.get("sample_id", row.get("sample")))
        sample = following.get(key, 0) if given is None else given
        following[key] = sample + 1
        found.setdefault((key, sample), text)
    return found


def _rows(path: Path) -> Iterator[Mapping[str, Any]]:
    """Also of a JSON object from problem to kernel, which is no table."""
    if path.suffix == ".json":
        data = read_json(path)
        if isinstance(data, dict) and all(isinstance(value, str) for value in data.values()):
            yield from ({"problem": name, "kernel": text} for name, text in data.items())
            return
    yield from (row.values for row in read_rows(path))


def _task_of(row: Mapping[str, Any], finder: _Finder) -> str | None:
    texts = [str(row[name]) for name in (*NAME, *SOURCE) if isinstance(row.get(name), str)]
    named = next((key for key in map(finder.named, texts) if key), None)
    named = named or next((key for key in map(finder.sourced, texts) if key), None)
    if named:
        return named
    number = next((whole for whole in (_whole(row.get(name)) for name in NUMBER) if whole is not None), None)
    level = next((whole for whole in (_whole(row.get(name)) for name in LEVEL) if whole is not None), None)
    return None if number is None else finder.numbered(level, number)


def _text_of(row: Mapping[str, Any]) -> str | None:
    texts = [row[name] for name in KERNEL if isinstance(row.get(name), str)]
    replies = [row[name] for name in REPLY if isinstance(row.get(name), str) and extract_kernel(row[name])]
    return next(iter(texts + replies), None)


def _whole(value: Any) -> int | None:
    text = str(value).removeprefix("level") if isinstance(value, int | str) else ""
    return int(text) if text.isdecimal() and len(text) < 10 else None
