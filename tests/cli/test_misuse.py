"""What cannot be meant is refused in one sentence before any work is spent: numbers, paths, folders of others."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dice.cli import main
from dice.data.sample import Sample, write_samples
from dice.prompts import EXAMPLE_KERNEL, EXAMPLE_PROBLEM

pytestmark = pytest.mark.usefixtures("lasting_zygote")  # where one is started before it is refused

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
    whole, table = Path("samples.parquet").read_bytes(), pq.read_table("samples.parquet")
    Path("rotten.parquet").write_bytes(whole[:200] + b"\xff" * 100 + whole[300:])
    pq.write_table(table.set_column(0, "problem", pa.array([7])), "typed.parquet")
    pq.write_table(table.set_column(table.column_names.index("verdict"), "verdict", pa.array(["["])), "garbled.parquet")
    Path("deep.json").write_text("[" * 100_000)
    Path("deep.py").write_text(f"x = {'-' * 100_000}1\n{EXAMPLE_PROBLEM}")
    Path("half.jsonl").write_text('{"prompt": "\\ud800", "response": "x"}\n')


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (f"{PAIR} --trials 0", "trials must be at least 1, not 0"),
        (f"{PAIR} --scale -1", "scale must be in (0, 1], not -1.0"),
        (f"{PAIR} --memory-mb 0", "limits must be positive"),
        (f"{PAIR} --run-timeout nan", "--run-timeout must be a finite number, not nan"),
        (f"{PAIR} --memory-mb 99999999999999999999", "--memory-mb must fit into 64 bits, and 9999"),
        ("verify deep.py kernel.py", "deep is not valid Python: it is nested too deeply"),
        ("generate problem.py --scale 0", "scale must be in (0, 1], not 0.0"),
        ("generate problem.py --samples 0", "--samples must be at least 1, not 0"),
        ("generate problem.py --refine -1", "--refine must be at least 0, not -1"),
        ("generate problem.py -o file/kernel.py", A_FILE),
        ("generate problem.py --temperature inf", "--temperature must be a finite number, not inf"),
        ("generate problem.py --seed -99999999999999999999", "--seed must fit into 64 bits, and -9999"),
        ("generate problem.py -o problem.py", "problem.py is read from"),
        ("generate problem.py --trace problem.py", "problem.py is read from"),
        ("generate problem.py --trace damaged", "damaged is a folder, and a file is needed"),
        ("generate problem.py -o new.py --trace ./new.py", "new.py would be written twice"),
        ("generate problem.py problem.py -o damaged", "problem_kernel.py would be written twice"),
        (f"{EVAL} --ids 1-99999999999", "'1-99999999999' is no number and no range"),
        (f"{EVAL} --report file", A_FILE),
        (f"{EVAL} --samples 1000000000000000000 --out run", "--samples must be at most 10,000"),
        ("eval --answers deep.json --problems problem.py", "deep.json cannot be read as JSON: it is nested too deeply"),
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
        ("data synth --out corpus --styles wide --without-style nothing", "There is no style nothing; styles are "),
        ("data synth --out corpus --without-style einsum", "Only wide styles can be left out: add --styles wide."),
        ("data synth --out corpus --workers 0", "--workers must be at least 1, not 0"),
        ("data import problem.py -o file/x.parquet", A_FILE),
        ("data measure samples.parquet --out file", A_FILE),
        ("data measure samples.parquet --out measured --workers -1", "--workers must be at least 0, not -1"),
        ("data measure rotten.parquet --out measured", "rotten.parquet cannot be read as parquet"),
        (
            "data measure typed.parquet --out measured",
            "typed.parquet holds a row that is no sample of ours: its pro",
        ),
        ("data inspect garbled.parquet --audit never", "garbled.parquet holds a row that is no sample of ours"),
        ("data inspect problem.py --audit never --html problem.py", "problem.py is read from"),
        ("data inspect problem.py -o problem.json --html problem.json", "problem.json would be written twice"),
        ("data tokenizer --data half.jsonl --out tokenizer", "half.jsonl, line 1: its text is not valid Unicode"),
        ("data measure torn.parquet --out measured", "torn.parquet cannot be read as parquet"),
        ("data rl samples.parquet --out rl --workers 0", "--workers must be at least 1, not 0"),
        ("data rl samples.parquet --out rl --infill -1", "--infill must be at least 0, not -1"),
        (f"data teach problem.py {TEACHER} --out file", A_FILE),
        (
            "data teach problem.py --base-url http://localhost:99999/v1 --model m",
            "localhost:99999/v1 is no URL (",
        ),
        ("data difficulty samples.parquet --out samples.parquet", "samples.parquet is read from"),
        ("train sft --data d --tokenizer t --out o --max-steps -1", "max_steps must be positive, not -1"),
        ("train sft --data d --tokenizer t --out o --max-steps 1 --micro-rows 0", "micro_rows must be positive, not 0"),
        ("train sft --lr nan", "--lr must be a finite number, not nan"),
        ("train sft --shape.hidden-size 99999999999999999999", "--shape.hidden-size must fit into 64 bits"),
        ("data difficulty torn.parquet", "torn.parquet cannot be read as parquet"),
        ("data difficulty problem.py --out damaged --workers 1", "damaged is a folder, and a file is needed"),
    ],
    ids=lambda value: value if " " in value else None,
)
def test_misuse_is_one_sentence(command: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command.split()) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("dice: ") and words in said and not said.endswith("..")


def test_nothing_that_is_read_was_written() -> None:
    for command in ("generate problem.py --trace problem.py", "data difficulty problem.py --out problem.py"):
        assert main(command.split()) == 2
    assert Path("problem.py").read_text() == EXAMPLE_PROBLEM


def test_the_curves_of_a_damaged_run_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    Path("damaged", "config.json").write_text("[1]")
    Path("damaged", "metrics.jsonl").write_text('{"loss": 2}\n{"step": "x", "loss": 2}\n{"step": 7, "seconds": 1}\n')
    assert main(["train", "watch", "damaged", "--once"]) == 0
    assert "damaged: step 7," in capsys.readouterr().out
