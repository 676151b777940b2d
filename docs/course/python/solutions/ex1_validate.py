"""Exercise 1, solved."""

from __future__ import annotations

from ledger import CATEGORIES, DEVICES, PHASES, State


def faults(state: State) -> list[str]:
    """The fields that are wrong."""
    name, size = state.get("name"), state.get("size_mb")
    start, end = state.get("start_phase"), state.get("end_phase")
    is_number = isinstance(size, int | float) and not isinstance(size, bool)
    # an end can only be compared with a start that is a phase
    in_order = end in PHASES and (start not in PHASES or PHASES.index(start) <= PHASES.index(end))
    sound = {
        "name": isinstance(name, str) and name != "",
        "category": state.get("category") in CATEGORIES,
        "size_mb": is_number and size >= 0,
        "device": state.get("device") in DEVICES,
        "start_phase": start in PHASES,
        "end_phase": in_order,
        "persistent": isinstance(state.get("persistent"), bool),
    }
    return [field for field, is_sound in sound.items() if not is_sound]
