"""What every test shares: tests marked ``torch`` run when PEAKLEDGER_TORCH=1, and a skip is said aloud."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("PEAKLEDGER_TORCH") == "1":
        return  # then torch must be there: a test that cannot import it fails
    skip = pytest.mark.skip(reason="SKIPPED: needs torch; with PEAKLEDGER_TORCH=1 ./test installs it")
    for item in items:
        if item.get_closest_marker("torch"):
            item.add_marker(skip)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of the full truth data."""
    named = os.environ.get("PEAKLEDGER_SHARED")
    folder = Path(named) if named else REPOSITORY.parent / "shared"
    if not folder.is_dir():
        pytest.skip(f"SKIPPED: the full data is not at {folder}")
    return folder


@pytest.fixture(scope="session")
def command_line() -> Callable[..., str]:
    """Runs the built binary and returns what it prints; PEAKLEDGER_BINARY names it, as ./test does."""
    named = os.environ.get("PEAKLEDGER_BINARY")
    if not named:
        pytest.skip("SKIPPED: PEAKLEDGER_BINARY names no binary to compare with; ./test builds one")

    def run(*words: str, code: int = 0) -> str:
        ran = subprocess.run([named, *words], capture_output=True, check=False, stdin=subprocess.DEVNULL)
        assert ran.returncode == code, ran.stderr.decode()
        return ran.stdout.decode()

    return run
