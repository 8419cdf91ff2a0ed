"""`dice data ...`: make training data."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from dice.commands.arguments import at_least
from dice.commands.progress import bars

if TYPE_CHECKING:
    from dice.cli_data import Bpe, Synth


def synth(args: Synth) -> int:
    from dice.data.corpus import build
    from dice.errors import UserError

    at_least(0, pairs=args.pairs, heldout=args.heldout, control=args.control)
    at_least(1, workers=args.workers)
    missing = next((folder for folder in args.decontaminate if not folder.is_dir()), None)
    if not 0 <= args.infill_share <= 1:
        raise UserError(f"--infill-share must lie between 0 and 1, not {args.infill_share:g}.")
    if missing is not None:
        raise UserError(f"There is no folder {missing} to decontaminate against.")
    with bars() as show:
        show("pairs", 0, None)
        report = build(
            args.out,
            args.pairs,
            args.seed,
            heldout=args.heldout,
            control=args.control,
            workers=args.workers,
            verify=args.verify,
            backend=args.backend,
            decontaminate=args.decontaminate,
            prose_free=args.prose_free,
            infill_share=args.infill_share,
            progress=lambda done, total, what: show("pairs", done, total, what),
        )
    if args.json:
        print(json.dumps(report))
        return 0
    for name in ("train", "heldout", "control"):
        part = report[name]
        dropped = ", ".join(f"{count} {reason}" for reason, count in part["dropped"].items()) or "none"
        print(f"{name}: {part['pairs']} pairs, {part['compositions']} compositions; dropped: {dropped}")
    print(f"written to {args.out}; counts in {args.out / 'report.json'}")
    return 0


def bpe(args: Bpe) -> int:
    from dice.data.bpe import train_tokenizer

    print(f"tokenizer in {train_tokenizer(args.data, args.out, args.vocab_size)}")
    return 0
