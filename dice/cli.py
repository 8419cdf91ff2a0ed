"""The `dice` command: reads the command line, runs the command, and turns what went wrong into an exit code.

Each command is a dataclass in a file of its own under `dice/commands`: its fields are the arguments, its docstrings the
help texts, and its `run` does the work. Heavy modules load only inside `run`, so that `dice --help` answers at once.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Protocol

import tyro
from tyro.conf import OmitArgPrefixes, OmitSubcommandPrefixes, subcommand

import dice
from dice.commands.arguments import TYPES, numbers
from dice.commands.bench import Bench
from dice.commands.data import Data
from dice.commands.doctor import Doctor
from dice.commands.evaluate import Eval
from dice.commands.generate import Generate
from dice.commands.library import LibraryCommand
from dice.commands.optimize import Optimize
from dice.commands.plan import PlanCommand
from dice.commands.report import ReportCommand
from dice.commands.serve import Serve
from dice.commands.train import RECIPE_COMMANDS, Train
from dice.commands.verify import Verify
from dice.errors import MachineError, UserError
from dice.terminal import clean, cleaned, logged

UNUSABLE_INPUT, MACHINE, CRASHED, INTERRUPTED, CLOSED_PIPE = 2, 3, 70, 130, 141  # 70 is EX_SOFTWARE of sysexits.h
EXIT_CODES = (
    "Exit codes: 0 yes, 1 no (a kernel is wrong, nothing was kept), 2 unusable input, 3 this machine cannot do it, "
    "70 a fault of dice itself (with a traceback), 130 interrupted, 141 nobody reads the output any more."
)
MISPLACED = {  # what a path is, or holds, that nothing can be written to
    errno.EEXIST: "is a file, and a folder is needed",
    errno.ENOTDIR: "leads through a file, and a folder is needed",
    errno.EISDIR: "is a folder, and a file is needed",
    errno.ENAMETOOLONG: "is too long a name",
}
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)

Commands = OmitSubcommandPrefixes[
    OmitArgPrefixes[
        Annotated[Generate, subcommand("generate")]
        | Annotated[Optimize, subcommand("optimize")]
        | Annotated[LibraryCommand, subcommand("library")]
        | Annotated[Verify, subcommand("verify")]
        | Annotated[Eval, subcommand("eval")]
        | Annotated[ReportCommand, subcommand("report")]
        | Annotated[Serve, subcommand("serve")]
        | Annotated[Doctor, subcommand("doctor")]
        | Annotated[Data, subcommand("data")]
        | Annotated[Train, subcommand("train")]
        | Annotated[PlanCommand, subcommand("plan")]
        | Annotated[Bench, subcommand("bench")]
    ]
]


class Command(Protocol):
    def run(self) -> int:
        """Do what was asked, and return the exit code."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments == ["--version"]:
        print(f"dice {dice.__version__}")
        return 0
    try:
        command = parse(arguments)
        with cleaned(), logged():
            numbers(command, group=None)
            return command.run()
    except UserError as error:
        return _say(error, UNUSABLE_INPUT)
    except MachineError as error:
        return _say(error, MACHINE)
    except KeyboardInterrupt:
        # Python remembers an interrupt that left text run by exec() and kills itself with SIGINT at exit; running
        # another text to its end clears that memory, so that the exit code says 130 wherever Ctrl-C landed.
        exec("")
        return _say("interrupted", INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED_PIPE
    except OSError as error:
        if error.errno in MISPLACED and error.filename:
            return _say(f"{error.filename2 or error.filename} {MISPLACED[error.errno]}.", UNUSABLE_INPUT)
        if error.errno not in UNWRITABLE:
            return _crash()
        where = f" ({error.filename})" if error.filename else ""
        return _say(f"cannot write: {error.strerror}{where}.", MACHINE)
    except Exception:
        return _crash()


def parse(arguments: list[str]) -> Command:
    """The command with its arguments. Prints the help texts, and what cannot be read, and exits."""
    match arguments:
        case [
            "train",
            "sft" | "rl" | "adapt" as stage,
            *flags,
        ]:  # the flags are the fields of a recipe, known once it is chosen
            return RECIPE_COMMANDS[stage](tuple(flags))
        case [] | [("bench" | "data" | "train")]:  # alone, they list their parts
            arguments = [*arguments, "--help"]
    description = f"{dice.__doc__}\n\n{EXIT_CODES}"
    command: Command = tyro.cli(Commands, prog="dice", description=description, args=arguments, registry=TYPES)
    return command


def _crash() -> int:
    """A traceback is for our own faults alone. It may quote other people's text."""
    print(clean(traceback.format_exc()), file=sys.stderr, end="")
    return _say("that is a fault of dice itself; please report it with the lines above.", CRASHED)


def _say(message: object, code: int) -> int:
    print(f"dice: {clean(str(message))}", file=sys.stderr)
    return code
