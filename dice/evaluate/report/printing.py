"""Tables for a terminal, as Markdown and as LaTeX (booktabs)."""

from __future__ import annotations

import re

from rich.table import Table as RichTable

from dice.evaluate.report.tables import Table
from dice.terminal import Console, clean

_TEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_TEX |= {character: "\\" + character for character in "&%$#_{}"}


def show(console: Console, table: Table) -> None:
    """A table in a terminal; tab-separated lines elsewhere, so that other tools can read them."""
    if not console.is_terminal:
        print(clean(f"# {table.title}"), file=console.file)  # rich would make blanks of the tabs
        for row in ([name for name, _ in table.columns], *table.rows):
            print(clean("\t".join(row)), file=console.file)
        print(file=console.file)
        return
    rich = RichTable(title=table.title, title_justify="left", caption=table.note, caption_justify="left", box=None)
    for name, side in table.columns:
        rich.add_column(name, justify="right" if side == "r" else "left", overflow="fold")
    for index, row in enumerate(table.rows):
        rich.add_row(*row, style="dim" if index in table.marked else "")
    console.print(rich)
    console.print()


def markdown(table: Table) -> str:
    """A heading, a pipe table, the note."""

    def line(cells: tuple[str, ...]) -> str:
        return "| " + " | ".join(re.sub(r"\s+", " ", cell).replace("|", r"\|") for cell in cells) + " |"

    rows = [
        tuple(f"*{cell}*" if index in table.marked and cell != "-" else cell for cell in row)
        for index, row in enumerate(table.rows)
    ]
    sides = "|" + "|".join("--:" if side == "r" else ":--" for _, side in table.columns) + "|"
    lines = [f"## {table.title}", "", line(tuple(name for name, _ in table.columns)), sides, *map(line, rows)]
    return "\n".join([*lines, *(["", table.note] if table.note else []), ""])


def latex(table: Table) -> str:
    """A `table` environment that needs booktabs; rows that are not measured here are set in italics."""

    def line(cells: tuple[str, ...], style: str = "") -> str:
        return " & ".join(f"\\{style}{{{tex(cell)}}}" if style else tex(cell) for cell in cells) + r" \\"

    body, marked = [], False
    for index, row in enumerate(table.rows):
        if index in table.marked and not marked and index:
            body.append(r"\midrule")
        marked = index in table.marked
        body.append(line(row, "textit" if marked else ""))
    label = re.sub(r"[^a-zA-Z0-9]+", "-", table.key).strip("-").lower()
    return "\n".join(
        [
            r"\begin{table}[t]",
            r"\centering\small",
            rf"\caption{{{tex(table.title)}. {tex(table.note)}}}".replace(". }", ".}"),
            rf"\label{{tab:{label}}}",
            rf"\begin{{tabular}}{{{''.join(side for _, side in table.columns)}}}",
            r"\toprule",
            line(tuple(name for name, _ in table.columns)),
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def tex(text: str) -> str:
    """`text` with every character that LaTeX would read as a command taken literally."""
    return "".join(_TEX.get(character, character) for character in re.sub(r"\s+", " ", text))
