"""What the exercises share: the words of a ledger, and one to try them on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

State = dict[str, Any]
"""A piece of memory: ``name``, ``category``, ``size_mb``, ``device``, ``start_phase``, ``end_phase``, ``persistent``."""

PHASES = ["load", "forward", "loss", "backward", "update", "zero_grad"]
"""In the order of a step."""

CATEGORIES = [
    "parameter",
    "master_weight",
    "activation",
    "gradient",
    "optimizer_state",
    "workspace",
    "communication_buffer",
]

DEVICES = ["gpu", "cpu"]


def step() -> list[State]:
    """The step of ``examples/step.json``, anew each time."""
    return json.loads((Path(__file__).parents[3] / "examples" / "step.json").read_text())
