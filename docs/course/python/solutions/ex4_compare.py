"""Exercise 4, solved."""

from __future__ import annotations

from typing import Any

from ledger import State

from .ex3_peak import find_peak


def compare(baseline: list[State], candidates: dict[str, list[State]]) -> dict[str, dict[str, Any]]:
    """The peak of each candidate, and what it saves."""
    before = find_peak(baseline)["total_mb"]
    compared = {}
    for name, states in candidates.items():
        if not name:
            raise ValueError("a candidate without a name")
        peak = find_peak(states)
        compared[name] = {
            "phase": peak["phase"],
            "total_mb": peak["total_mb"],
            "saves_mb": before - peak["total_mb"],
        }
    return compared
