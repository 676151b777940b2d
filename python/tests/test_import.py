"""Importing the package needs nothing beside it."""

from __future__ import annotations

import subprocess
import sys


def test_importing_needs_neither_torch_nor_numpy() -> None:
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['torch', 'numpy', 'pandas', 'polars']));"
        "import peakledger; print(peakledger.__version__)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip().count(".") == 2
