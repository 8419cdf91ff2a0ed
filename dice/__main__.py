"""`python -m dice` is the `dice` command."""

import sys

from dice.cli import main

sys.exit(main())
