"""Exercise 3: where is the peak, and who forms it?"""

from __future__ import annotations

from typing import Any

from ledger import State

from .ex2_summarise import phase_totals


def find_peak(states: list[State]) -> dict[str, Any]:
    """``{"phase": "backward", "total_mb": 2200.0, "contributors": ["parameters", …]}``.

    The phase with the largest total; of several that are equally large the earliest. The contributors are the states
    that are there, the largest first, and those of one size by name.
    """
    # 1. Ask exercise 2 for the totals.
    # 2. Take the largest. Which of two equals does max(…) return?
    # 3. Sort the names of that phase: sorted(…, key=…) takes a tuple, and -size turns the order around.
    raise NotImplementedError("exercise 3 is not done yet: write `find_peak` in exercises/ex3_peak.py")
