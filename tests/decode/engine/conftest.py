"""Triton's kernels run in its interpreter where there is no GPU, if that is said before anything imports Triton."""

from __future__ import annotations

import os
import sys
from pathlib import Path

if not Path("/dev/nvidiactl").exists() and "triton" not in sys.modules:
    os.environ.setdefault("TRITON_INTERPRET", "1")
