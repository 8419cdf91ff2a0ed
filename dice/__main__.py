"""The `dice` command, and `python -m dice`: Ctrl-C says one line from the first moment on, while modules still load."""

import sys


def main() -> int:
    try:
        from dice.launch import leave_working_directory

        leave_working_directory()  # before anything is imported from there: `python -m` looks there first
        from dice.cli import main as run
    except KeyboardInterrupt:
        exec("")  # for the exit code, as in `dice.cli.main`: modules that load make classes by exec()
        print("dice: interrupted", file=sys.stderr)
        return 130
    return run()


if __name__ == "__main__":
    sys.exit(main())
