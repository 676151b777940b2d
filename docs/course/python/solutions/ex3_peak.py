"""Exercise 3, solved."""

from __future__ import annotations

from typing import Any

from ledger import State

from .ex2_summarise import phase_totals


def find_peak(states: list[State]) -> dict[str, Any]:
    """The earliest of the largest totals, and who is there."""
    highest = max(phase_totals(states), key=lambda record: record["total_mb"])  # the first of equals
    sizes = {state["name"]: state["size_mb"] for state in states}
    contributors = sorted(highest["states"], key=lambda name: (-sizes[name], name))
    return {"phase": highest["phase"], "total_mb": highest["total_mb"], "contributors": contributors}
