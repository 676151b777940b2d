"""The ledger on plain dicts: the interface of the document that the project comes from, unchanged.

A state is a dict with these keys (more are ignored)::

    name         any str; every state should have one of its own
    category     one of VALID_CATEGORIES
    size_mb      an int or float, 0 or more, in units of 2**20 bytes
    start_phase  one of PHASES: the first phase in which it is there
    end_phase    one of PHASES: the last one; both count
    device       'gpu' or 'cpu'; only what is on the gpu is summed
    persistent   True or False: whether it lives from step to step

Sizes are the caller's floats, added in the order of the states as ``sum`` adds them on this Python. Rounding to bytes and
the stricter checks (unknown keys, repeated names) belong to :class:`peakledger.Ledger` and to files.

Source: "Unified Training Memory Ledger", steps 1 to 4, whose rules are the specification of the project's core.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from . import _native

PHASES: list[str] = _native.PHASES
"""The phases of a training step, in order: load, forward, loss, backward, update, zero_grad."""

VALID_CATEGORIES: set[str] = _native.VALID_CATEGORIES
"""The seven categories of state."""


def validate_state_lifecycle(state: Mapping[str, object]) -> None:
    """Checks that a state has its place on the timeline.

    Args:
        state: a dict of the form that the module's documentation shows.

    Raises:
        KeyError: a key is missing.
        TypeError: ``size_mb`` is no number, or ``persistent`` no bool.
        ValueError: ``size_mb`` is negative; a category, device or phase is not known; the state ends before it starts.
    """
    _native.validate_state_lifecycle(state)


def summarize_phase_memory(states: Iterable[Mapping[str, object]]) -> list[dict[str, Any]]:
    """Sums, for every phase, the states that are on the gpu in it.

    Args:
        states: states; each is checked first.

    Returns:
        One dict for each of the six phases, in order: ``phase``, ``total_mb`` (in units of 2**20 bytes),
        ``active_states`` (names, in the order of the states) and ``state_sizes_mb`` (size by name; of states with the same
        name the last one's, though all are in the total).

    Raises:
        KeyError, TypeError, ValueError: as :func:`validate_state_lifecycle` says, for the first state that breaks a rule.
    """
    return _native.summarize_phase_memory(states)


def find_peak_overlap(phase_records: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Finds the phase with the largest total, and who is in it.

    Args:
        phase_records: what :func:`summarize_phase_memory` returned.

    Returns:
        ``peak_phase`` (of several with the same total the earliest), ``peak_mb`` (in units of 2**20 bytes) and
        ``contributors`` (names, the largest first, then by name).

    Raises:
        ValueError: there are no records.
        KeyError: a record has no ``total_mb``, or the peak's no ``phase``.
    """
    return _native.find_peak_overlap(phase_records)


def compare_peak_candidates(
    baseline_states: Iterable[Mapping[str, object]],
    candidate_states: Mapping[str, Iterable[Mapping[str, object]]],
) -> dict[str, Any]:
    """Compares the peaks of candidates with that of a baseline.

    Args:
        baseline_states: the states of the baseline.
        candidate_states: the states of each candidate, by its name.

    Returns:
        ``baseline`` (as :func:`find_peak_overlap` returns it) and ``candidates``: for each name ``peak_phase``, ``peak_mb``
        and ``memory_saving_mb`` (baseline less candidate, in units of 2**20 bytes; negative where it needs more).

    Raises:
        ValueError: there is no candidate, or one has an empty name.
        KeyError, TypeError, ValueError: as :func:`validate_state_lifecycle` says.
    """
    return _native.compare_peak_candidates(baseline_states, candidate_states)
