"""Sources on disk as texts that need no other file, and several files of a language as one text."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from dice.verify.candidate import source_files


def compiles(text: str, tmp_path: Path) -> bool:
    file = tmp_path / "one.cpp"
    file.write_text(text)
    return subprocess.run(["g++", "-w", "-fsyntax-only", str(file)], check=False, capture_output=True).returncode == 0


def test_headers_beside_a_source_and_in_named_folders_become_part_of_it(tmp_path: Path) -> None:
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "far.h").write_text('#pragma once\n#include "farther.h"\nint far();\n')
    (tmp_path / "include" / "farther.h").write_text("#ifndef FARTHER\n#define FARTHER\nstruct Farther {};\n#endif\n")
    (tmp_path / "near.h").write_text("#include <vector>\nint near();\n")
    source = tmp_path / "own.cu"
    source.write_text('#include "near.h" // ours\n#include <far.h>\n  # include "far.h"\nFarther f() { return {}; }\n')
    text = source_files.read(source, [tmp_path / "include"])
    assert text.count("int far()") == 1 and text.count("int near()") == 1 and text.count("#include") == 1
    assert compiles(text, tmp_path)


def test_headers_that_include_each_other_come_to_an_end(tmp_path: Path) -> None:
    (tmp_path / "a.h").write_text('#include "b.h"\n')
    (tmp_path / "b.h").write_text('#include "a.h"\n')
    with pytest.raises(ValueError, match="MiB"):
        source_files.with_headers('#include "a.h"\n', [tmp_path])


FIRST = """
#include <cmath>
#define SIZE 32
struct Pair { float a, b; };
constexpr int WIDTH = 4;
static const float TABLE[2] = {1, 2};
namespace { inline float twice(float x) { return 2 * x; } }
template <typename T> static T sum(T x) { for (int i = 0; i < WIDTH; ++i) { x += TABLE[0]; } return twice(x); }
float first(float x) { return sum(x) + std::sqrt(x); }
"""
SECOND = FIRST.replace("2 * x", "3 * x").replace("WIDTH = 4", "WIDTH = 5").replace("float first", "float second")


def test_what_two_files_define_for_themselves_is_told_apart(tmp_path: Path) -> None:
    assert not compiles(FIRST + SECOND, tmp_path)
    assert compiles(
        "".join(source_files.apart([FIRST, SECOND, "float first(float);\nfloat third() { return first(1); }"])),
        tmp_path,
    )


def test_files_that_share_no_name_are_left_as_they_are() -> None:
    texts = ("int a() { return 1; }", "int a();\nint b() { if (a()) { return 2; } return a(); }")
    assert source_files.apart(texts) == texts
