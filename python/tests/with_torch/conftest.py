"""Tests that import torch run when PEAKLEDGER_TORCH=1, and that they do not is said aloud."""

from __future__ import annotations

import os
from typing import Any

WANTED = os.environ.get("PEAKLEDGER_TORCH") == "1"
collect_ignore_glob = [] if WANTED else ["test_*.py"]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if not WANTED:
        terminalreporter.write_line("SKIPPED: python/tests/with_torch; with PEAKLEDGER_TORCH=1 ./test installs torch")
