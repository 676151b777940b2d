"""The seed's rules written down as plainly as Python lets one, to hold the engine against and to measure it by."""

from __future__ import annotations

from typing import Any

ORDER = ["load", "forward", "loss", "backward", "update", "zero_grad"]
KINDS = {
    "parameter",
    "master_weight",
    "activation",
    "gradient",
    "optimizer_state",
    "workspace",
    "communication_buffer",
}
FIELDS = {"name", "category", "size_mb", "start_phase", "end_phase", "device", "persistent"}


def check(state: Any) -> None:
    absent = sorted(FIELDS - set(state))
    if absent:
        raise KeyError(absent)
    size = state["size_mb"]
    if isinstance(size, bool) or not isinstance(size, (int, float)):
        raise TypeError("size_mb")
    if float(size) < 0:
        raise ValueError("size_mb")
    if state["category"] not in KINDS:
        raise ValueError("category")
    if state["device"] not in {"cpu", "gpu"}:
        raise ValueError("device")
    if state["start_phase"] not in ORDER or state["end_phase"] not in ORDER:
        raise ValueError("phase")
    if ORDER.index(state["start_phase"]) > ORDER.index(state["end_phase"]):
        raise ValueError("interval")
    if not isinstance(state["persistent"], bool):
        raise TypeError("persistent")


def summary(states: list[Any]) -> list[dict[str, Any]]:
    for state in states:
        check(state)
    records = []
    for index, phase in enumerate(ORDER):
        there = [
            state
            for state in states
            if state["device"] == "gpu"
            and ORDER.index(state["start_phase"]) <= index <= ORDER.index(state["end_phase"])
        ]
        records.append(
            {
                "phase": phase,
                "total_mb": sum(float(state["size_mb"]) for state in there),
                "active_states": [str(state["name"]) for state in there],
                "state_sizes_mb": {str(state["name"]): float(state["size_mb"]) for state in there},
            }
        )
    return records


def peak(records: list[dict[str, Any]]) -> dict[str, Any]:
    if not records:
        raise ValueError("records")
    largest = max(records, key=lambda record: float(record["total_mb"]))
    sizes = largest.get("state_sizes_mb", {})
    return {
        "peak_phase": largest["phase"],
        "peak_mb": float(largest["total_mb"]),
        "contributors": sorted(sizes, key=lambda name: (-float(sizes[name]), name)),
    }


def comparison(baseline: list[Any], candidates: dict[str, list[Any]]) -> dict[str, Any]:
    if not candidates:
        raise ValueError("candidates")
    ours = peak(summary(baseline))
    answers = {}
    for name, states in candidates.items():
        if not name:
            raise ValueError("name")
        theirs = peak(summary(states))
        answers[name] = {
            "peak_phase": theirs["peak_phase"],
            "peak_mb": theirs["peak_mb"],
            "memory_saving_mb": ours["peak_mb"] - theirs["peak_mb"],
        }
    return {"baseline": ours, "candidates": answers}
