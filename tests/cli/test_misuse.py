"""What cannot be meant is refused in one sentence before any work is spent: numbers, paths, folders of others."""

from __future__ import annotations

from pathlib import Path

import pytest

from dice.cli import main
from dice.data.sample import Sample, write_samples
from dice.prompts import EXAMPLE_KERNEL, EXAMPLE_PROBLEM

PAIR = "verify problem.py kernel.py"
EVAL = "eval --model nano --problems problem.py --backend emulated"
BENCH = "bench train --shape tiny --device cpu"
TEACHER = "--base-url http://localhost:1/v1 --model m"
A_FILE = "file is a file, and a folder is needed"
DAMAGED = "damaged/problems.json cannot be read as JSON"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("problem.py").write_text(EXAMPLE_PROBLEM)
    Path("kernel.py").write_text(EXAMPLE_KERNEL)
    Path("file").write_text("")
    Path("torn.parquet").write_bytes(b"PAR1")
    for name, problems in (("damaged", "["), ("foreign", '[{"a": 1}]')):
        Path(name).mkdir()
        Path(name, "problems.json").write_text(problems)
    write_samples(Path("samples.parquet"), [Sample(EXAMPLE_PROBLEM, EXAMPLE_KERNEL, name="add")])


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (f"{PAIR} --trials 0", "trials must be at least 1, not 0"),
        (f"{PAIR} --scale -1", "scale must be in (0, 1], not -1.0"),
        (f"{PAIR} --memory-mb 0", "limits must be positive"),
        ("generate problem.py --scale 0", "scale must be in (0, 1], not 0.0"),
        ("generate problem.py --samples 0", "--samples must be at least 1, not 0"),
        ("generate problem.py --refine -1", "--refine must be at least 0, not -1"),
        ("generate problem.py -o file/kernel.py", A_FILE),
        (f"{EVAL} --run-timeout 0", "limits must be positive"),
        (f"{EVAL} --workers 0", "--workers must be at least 1, not 0"),
        (f"{EVAL} --batch -1", "--batch must be at least 0, not -1"),
        (f"{EVAL} --subset absent", "Cannot read the subset absent: No such file"),
        ("eval --reverify damaged", DAMAGED),
        ("eval --compare foreign damaged", "foreign is a run of another version of dice"),
        ("report damaged", DAMAGED),
        ("report --case deceptive -o file", A_FILE),
        ("bench verify --candidates 0", "--candidates must be at least 1, not 0"),
        (f"{BENCH} --rounds 0", "--rounds must be at least 1, not 0"),
        (f"{BENCH} --documents 9 5", "--documents are the shortest and the longest in tokens, not 9 and 5"),
        ("bench train --device none", "There is no device 'none'"),
        ("data synth --out file --no-verify", "file/train leads through a file, and a folder is needed"),
        ("data synth --out corpus --pairs -1", "--pairs must be at least 0, not -1"),
        ("data synth --out corpus --workers 0", "--workers must be at least 1, not 0"),
        ("data import problem.py -o file/x.parquet", A_FILE),
        ("data measure samples.parquet --out file", A_FILE),
        ("data measure samples.parquet --out measured --workers -1", "--workers must be at least 0, not -1"),
        ("data measure torn.parquet --out measured", "torn.parquet cannot be read as parquet"),
        ("data rl samples.parquet --out rl --workers 0", "--workers must be at least 1, not 0"),
        ("data rl samples.parquet --out rl --infill -1", "--infill must be at least 0, not -1"),
        (f"data teach problem.py {TEACHER} --out file", A_FILE),
        ("data difficulty torn.parquet", "torn.parquet cannot be read as parquet"),
        ("data difficulty problem.py --out damaged --workers 1", "damaged is a folder, and a file is needed"),
    ],
    ids=lambda value: value if " " in value else None,
)
def test_misuse_is_one_sentence(command: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command.split()) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("dice: ") and words in said and not said.endswith("..")
