"""What each subcommand of `dice` does; `dice/cli.py` says what each takes."""
