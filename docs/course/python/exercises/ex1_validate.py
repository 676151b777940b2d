"""Exercise 1: does the record of a state make sense?"""

from __future__ import annotations

from ledger import CATEGORIES, DEVICES, PHASES, State


def faults(state: State) -> list[str]:
    """The fields that are wrong, in the order below; an empty list where all is well.

    ========================== ======================================================================================
    ``name``                   a text that is not empty
    ``category``               one of ``CATEGORIES``
    ``size_mb``                a number of 0 or more; ``True`` is no number
    ``device``                 one of ``DEVICES``
    ``start_phase``            one of ``PHASES``
    ``end_phase``              one of ``PHASES``, and not before ``start_phase``: both ends count, so they may be the same
    ``persistent``             ``True`` or ``False``
    ========================== ======================================================================================

    A field that is not there is wrong. A wrong field must not end in a Python error.
    """
    # 1. Begin an empty list.
    # 2. Look at each field in turn with state.get(…), and append its name where it is wrong.
    # 3. For end_phase: where is a phase in PHASES? PHASES.index(…) tells, of a phase that is one.
    raise NotImplementedError("exercise 1 is not done yet: write `faults` in exercises/ex1_validate.py")
