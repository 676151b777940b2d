"""What the tests share: which half they look at, and what peakledger says of the same ledger."""

from __future__ import annotations

import importlib
import json
import os
import random
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path
from types import ModuleType
from typing import Any

from ledger import CATEGORIES, DEVICES, PHASES, State


def the(module: str) -> ModuleType:
    """Your module, or with ``COURSE=solutions`` the solved one."""
    return importlib.import_module(f"{os.environ.get('COURSE', 'exercises')}.{module}")


def peakledger(*words: str, **ledgers: list[State]) -> Any:
    """The tool's answer to a question about ledgers, each a file ``NAME.json``. Skips where there is no such command."""
    if shutil.which("peakledger") is None:
        raise unittest.SkipTest("no peakledger on the PATH to compare with: cargo install --path crates/cli")
    with tempfile.TemporaryDirectory() as folder:
        for name, states in ledgers.items():
            Path(folder, f"{name}.json").write_text(json.dumps(states))
        command = ["peakledger", *words, "--format", "json"]
        answer = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return json.loads(answer.stdout) if answer.returncode == 0 else None


def some_ledgers(count: int) -> list[list[State]]:
    """Ledgers by chance, the same on every run; many of their totals are equal."""
    dice = random.Random(20)
    return [[a_state(dice, number) for number in range(dice.randrange(9))] for _ in range(count)]


def a_state(dice: random.Random, number: int) -> State:
    """A sound state."""
    start, end = sorted(dice.choices(range(len(PHASES)), k=2))
    return {
        "name": f"state {number}",
        "category": dice.choice(CATEGORIES),
        "size_mb": float(dice.randrange(4) * 100),
        "device": dice.choice(DEVICES),
        "start_phase": PHASES[start],
        "end_phase": PHASES[end],
        "persistent": dice.random() < 0.5,
    }
