"""What every test shares: tests marked ``torch`` run when PEAKLEDGER_TORCH=1, and a skip is said aloud."""

from __future__ import annotations

import os

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("PEAKLEDGER_TORCH") == "1":
        return  # then torch must be there: a test that cannot import it fails
    skip = pytest.mark.skip(reason="needs torch: set PEAKLEDGER_TORCH=1 and ./test installs it")
    for item in items:
        if item.get_closest_marker("torch"):
            item.add_marker(skip)
