"""What a run leaves behind and shows: config.json, versions.json, metrics.jsonl; a bar or lines on the terminal."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from types import TracebackType

import torch
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

import dice
from dice.files import JsonObject
from dice.files.atomic import write_json, write_text
from dice.files.journal import read_rows
from dice.terminal import Console


class RunLog:
    """Writes into `folder`, and shows a bar on a terminal and plain lines elsewhere. `silent`: does neither, for all
    processes of a run but its leader."""

    def __init__(self, folder: Path, title: str, silent: bool = False) -> None:
        self.folder = folder
        self.silent = silent
        self.console = Console(highlight=False, soft_wrap=True, quiet=silent)
        self._bar = Progress(
            TextColumn(title, markup=False), BarColumn(), TaskProgressColumn(), TimeElapsedColumn(),
            TextColumn("{task.fields[text]}", markup=False), console=self.console, disable=not self.console.is_terminal,
        )  # fmt: skip
        self._task = self._bar.add_task(title, total=1.0, text="")

    def __enter__(self) -> RunLog:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        self.console.print(text, markup=False)

    def show(self, progress: float, text: str) -> None:
        """One step's numbers: the bar on a terminal, a line elsewhere."""
        if self.console.is_terminal:
            self._bar.update(self._task, completed=progress, text=text)
        else:
            self.say(f"{progress:6.1%}  {text}")

    def begin(self, config: JsonObject, step: int, device: torch.device) -> None:
        """Write config and versions; drop metrics after `step`, which a resumed run will write again."""
        if self.silent:
            return
        write_json(self.folder / "config.json", config)
        write_json(self.folder / "versions.json", versions(device))
        path = self.folder / "metrics.jsonl"
        if path.exists():
            kept = (row for row in read_rows(path) if isinstance(row.get("step"), int) and row["step"] <= step)
            write_text(path, "".join(map(_line, kept)))

    def metrics(self, **values: float | int | str) -> None:
        if self.silent:
            return
        with (self.folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(_line(values))


def _line(values: JsonObject) -> str:
    return json.dumps(values) + "\n"


def versions(device: torch.device) -> dict[str, object]:
    processor = platform.processor() or platform.machine()
    return {
        "dice": dice.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else processor,
        "platform": platform.platform(),
    }


def duration(seconds: float) -> str:
    """`1h02m`, `3m05s` or `7s`."""
    whole = int(seconds)
    if whole >= 3600:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 60}m{whole % 60:02d}s" if whole >= 60 else f"{whole}s"
