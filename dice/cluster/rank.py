"""One process of a training over hosts: `dice`, which ends with the process that started it.

python -P launch.py dice.cluster.rank PARENT [ARGUMENT...]
"""

import os
import runpy
import signal
import sys

from dice.verify.sandbox.jail import PR_SET_PDEATHSIG, prctl

if __name__ == "__main__":
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(sys.argv.pop(1)):  # it has ended before we asked
        sys.exit(1)
    runpy.run_module("dice", run_name="__main__", alter_sys=True)
