"""Exercise 2, solved."""

from __future__ import annotations

from typing import Any

from ledger import PHASES, State

from .ex1_validate import faults


def phase_totals(states: list[State]) -> list[dict[str, Any]]:
    """A record for each phase."""
    for state in states:
        if wrong := faults(state):
            raise ValueError(f"{state.get('name')}: {', '.join(wrong)}")
    return [total(phase, [state for state in states if is_there(state, phase)]) for phase in PHASES]


def is_there(state: State, phase: str) -> bool:
    """Whether a state is on the gpu in a phase."""
    start, end = PHASES.index(state["start_phase"]), PHASES.index(state["end_phase"])
    return state["device"] == "gpu" and start <= PHASES.index(phase) <= end


def total(phase: str, there: list[State]) -> dict[str, Any]:
    """The record of a phase."""
    return {
        "phase": phase,
        "total_mb": sum(state["size_mb"] for state in there),
        "states": [state["name"] for state in there],
    }
