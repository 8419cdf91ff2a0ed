"""The paper's Tables 4, 5, 6, 7, 9 and 11 as it prints them: what training on other data, or in another way, came to.

Percent of KernelBench's problems, by level: (Exec, fast_1, fast_2), under the protocol that this project calls
`dice-paper`. Rows that are models of their own, with settings to run them by, are in `paper_rows.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

Numbers = dict[int, tuple[int, int, int]]


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """One row. `facts`: the cells before the numbers, under the table's `facts`. `levels` is empty in Table 9, of
    costs alone."""

    facts: tuple[str, ...]
    levels: Numbers


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """`facts`: the headings of the cells before the numbers."""

    number: int
    title: str
    facts: tuple[str, ...]
    rows: tuple[PublishedRow, ...]


def _rows(text: str) -> tuple[PublishedRow, ...]:
    """One line a row: facts apart by commas, `|`, and the nine numbers of three levels."""
    found = []
    for line in text.strip().splitlines():
        facts, _, numbers = line.partition("|")
        values = [int(word) for word in numbers.split()]
        triples = (values[place : place + 3] for place in range(0, len(values), 3))
        levels = {level: (one, two, three) for level, (one, two, three) in enumerate(triples, start=1)}
        found.append(PublishedRow(tuple(fact.strip() for fact in facts.split(",")), levels))
    return tuple(found)


TABLES: dict[int, PublishedTable] = {
    table.number: table
    for table in (
        PublishedTable(
            4,
            "SFT of SDAR-Chat-4B on CuKe at three speed-up thresholds",
            ("threshold", "samples"),
            _rows("""
                1.5x, 7940 | 26 14 3   9  5 2  18 6 4
                2.0x, 6303 | 29 17 6  21 16 5  10 2 0
                2.5x, 5685 | 27 14 5  17 13 5  16 6 2
            """),
        ),
        PublishedTable(
            5,
            "SFT of SDAR-Chat-8B on three data sets",
            ("data set", "samples"),
            _rows("""
                cudaLLM, 8920 | 24 15 5   7  5 1   2 2 0
                ConCuR, 4842  | 31 15 2  16 12 9  12 0 0
                CuKe, 6303    | 34 16 4  18 11 8  16 2 0
            """),
        ),
        PublishedTable(
            6,
            "What each part of BiC-RL adds",
            ("size", "training"),
            _rows("""
                8B, SDAR-Chat               |  6  2 1   2  0 0   0 0 0
                8B, SFT                     | 34 16 4  18 11 8  16 2 0
                8B, SFT + RL (baseline)     | 31 13 4  18  9 6  18 6 4
                8B, SFT + data scheduling   | 41 16 5  21 14 2  18 8 4
                8B, SFT + kernel infilling  | 37 13 4  16 10 2  16 6 4
                8B, DICE                    | 47 15 6  35 19 1  14 6 6
                4B, SDAR-Chat               |  5  0 0   1  0 0   4 0 0
                4B, SFT                     | 29 17 6  21 16 5  10 2 0
                4B, SFT + RL (baseline)     | 29 17 6  20 11 6  10 4 2
                4B, SFT + data scheduling   | 26 12 6  24 14 6  10 4 0
                4B, SFT + kernel infilling  | 27 13 4  23 14 7  12 6 4
                4B, DICE                    | 27 13 4  24 15 9  12 6 4
                1.7B, SDAR-Chat             |  0  0 0   0  0 0   0 0 0
                1.7B, SFT                   | 16  7 3   6  3 1   8 4 2
                1.7B, SFT + RL (baseline)   | 23 11 2   4  2 1   8 6 2
                1.7B, SFT + data scheduling | 24 12 3   5  5 3   8 6 4
                1.7B, SFT + kernel infilling| 25 13 3   5  3 2   6 6 2
                1.7B, DICE                  | 24 12 3   6  3 2  10 6 4
            """),
        ),
        PublishedTable(
            7,
            "SFT on CuKe of SDAR-Chat and of Qwen3",
            ("size", "model"),
            _rows("""
                1.7B, SDAR-Chat       |  0  0 0   0  0 0   0 0 0
                1.7B, SDAR-Chat + SFT | 16  7 3   6  3 1   8 4 2
                1.7B, Qwen3           |  0  0 0   1  0 0   0 0 0
                1.7B, Qwen3 + SFT     |  6  2 2   6  1 1   8 2 0
                4B, SDAR-Chat         |  5  0 0   1  0 0   4 0 0
                4B, SDAR-Chat + SFT   | 29 17 6  21 16 5  10 2 0
                4B, Qwen3             |  3  2 2  29 14 4  14 2 0
                4B, Qwen3 + SFT       |  9  0 0  13  3 0  10 6 0
                8B, SDAR-Chat         |  6  2 1   2  0 0   0 0 0
                8B, SDAR-Chat + SFT   | 34 16 4  18 11 8  16 2 0
                8B, Qwen3             |  8  1 0  25 11 6   4 2 2
                8B, Qwen3 + SFT       | 25 13 3  13  7 4  16 6 0
            """),
        ),
        PublishedTable(
            9,
            "Cost of training the 8B model on 8 A100 GPUs",
            ("stage", "GPU hours"),
            _rows("""
                SFT, about 22.4
                BiC-RL stage 1 (kernel infilling), about 120
                BiC-RL stage 2 (kernel generation), about 960
                Single-stage RL (baseline), about 960
            """),
        ),
        PublishedTable(
            11,
            "cudaLLM and DICE, 8B",
            ("model", "tokens", "SFT samples", "RL samples"),
            _rows("""
                cudaLLM, 4096, 8920, 71996  | 27 10 2   5  5 5   2 0 0
                cudaLLM, 32768, 8920, 71996 | 46 12 7  34 12 6   6 4 0
                DICE, 4096, 6303, 4992      | 47 15 6  35 19 1  14 6 6
            """),
        ),
    )
}
