"""The README's picture: a kernel as nano wrote it, coloured by the denoising step that revealed each token.

python benchmarks/denoising_picture.py examples/matmul.py docs/denoising.svg
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import torch
from rich.console import Console
from rich.text import Text

from dice.decode.generate import DecodeConfig, generate
from dice.evaluate.report.denoised import pieces
from dice.model.checkpoint import load_model, resolve_model
from dice.model.tokenizer import Tokenizer
from dice.problem import Problem
from dice.prompts import compact

COLOURS = ("#7ee787", "#f2cc60", "#ff9e64", "#ff7b72")


def main(problem: Path, picture: Path) -> None:
    folder = resolve_model("nano")
    tokenizer, model = Tokenizer.from_folder(folder), load_model(folder, torch.float32, "cpu")
    prompt = tokenizer.encode_chat([{"role": "user", "content": compact(Problem.from_file(problem))}])
    config = DecodeConfig(stop_ids=tokenizer.stop_ids, temperature=0.0, confidence_threshold=0.99)
    (trace,) = generate(model, [prompt], config)
    shown = pieces(trace, tokenizer)
    text = Text()
    for piece, within in zip(shown["texts"], shown["within"], strict=True):
        text.append(piece, style=COLOURS[min(within, len(COLOURS) - 1)])
    console = Console(record=True, width=124, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(text)
    legend = Text("revealed in denoising step ")
    for number, colour in enumerate(COLOURS, 1):
        legend.append(f" {number} ", style=f"bold {colour}")
    legend.append(
        f" of its block of {trace.block_size}: {len(trace.response_ids)} tokens in {trace.denoising_steps} steps"
    )
    console.print(legend)
    picture.parent.mkdir(parents=True, exist_ok=True)
    svg = console.export_svg(title=f"dice generate {problem}")
    picture.write_text(re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL))  # no fonts from elsewhere


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
