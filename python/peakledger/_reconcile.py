"""A plan against a measurement, and two measurements against each other."""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ._answers import Answer, Record
from ._errors import PeakledgerError, no_standard_input
from ._native import ask
from ._words import words_of

if TYPE_CHECKING:
    if sys.version_info >= (3, 11):
        from typing import Unpack
    else:
        from typing_extensions import Unpack

    from ._words import ReconcileOptions


class Saved(Protocol):
    """What can be saved as a ledger: a ledger, a plan, a trace."""

    def save(self, path: str | os.PathLike[str], /) -> None:
        """Writes the ledger."""


def reconcile(
    plan: str | os.PathLike[str] | Saved,
    measured: str | os.PathLike[str] | Saved,
    /,
    **options: Unpack[ReconcileOptions],
) -> Reconciliation:
    """Holds a plan against what a run did hold: by phase and category, and the rest by name.

    Args:
        plan: a plan, a ledger, or the file that ``plan.save`` wrote (the steady step, unless the first was saved).
        measured: a snapshot's, a trace's or a ledger's file, or a ledger.
        options: those of ``peakledger reconcile`` with underscores for dashes (:class:`peakledger.ReconcileOptions`).

    Returns:
        Bytes predicted and measured, with the fields of the command line's JSON.

    Raises:
        PeakledgerError: a file cannot be read, or there is no such step; the place, the cause and the mend.
    """
    with ExitStack() as folders:
        predicted, held = (_path(side, folders) for side in (plan, measured))
        return Reconciliation(
            *ask(["reconcile", f"--plan={predicted}", f"--measured={held}", *words_of(options)], None)
        )


class Reconciliation(Answer):
    """A plan beside a measurement: the answer of ``peakledger reconcile``."""

    @property
    def phases(self) -> list[Record]:
        """Each phase of the plan with what is predicted and measured, in bytes."""
        phases: list[Record] = self._dict["phases"]
        return phases

    @property
    def remainder(self) -> list[Record]:
        """From what is predicted to what the card holds, each part by its name, in bytes."""
        remainder: list[Record] = self._dict["remainder"]
        return remainder

    @property
    def agrees(self) -> bool | None:
        """Whether all is within the tolerance and every rule holds; None where none was asked for."""
        agrees: bool | None = self._dict["agrees"]
        return agrees


def diff(before: str | os.PathLike[str] | Saved, after: str | os.PathLike[str] | Saved, /) -> Diff:
    """Tells what grew from one measurement or ledger to another, by who asked for it, and what grows with every step.

    Args:
        before: a snapshot's, a trace's or a ledger's file, or a ledger.
        after: the same, later.

    Returns:
        Bytes at the peaks and at the ends, with the fields of the command line's JSON.

    Raises:
        PeakledgerError: a file cannot be read; the place, the cause and the mend.
    """
    with ExitStack() as folders:
        sides = [_path(side, folders) for side in (before, after)]
        return Diff(*ask(["diff", "--", *sides], None))


class Diff(Answer):
    """What grew: the answer of ``peakledger diff``."""

    @property
    def groups(self) -> list[Record]:
        """What changed, the largest change first, in bytes."""
        groups: list[Record] = self._dict["groups"]
        return groups


def _path(side: str | os.PathLike[str] | Saved, folders: ExitStack) -> str:
    if isinstance(side, str | os.PathLike):
        return no_standard_input(os.fspath(side))
    if not hasattr(side, "save"):
        cause, mend = f"a value of type {type(side).__name__} is no ledger", "pass a path, a plan or a ledger"
        raise PeakledgerError(f"{cause}\n  help: {mend}", cause=cause, mend=mend)
    folder = folders.enter_context(tempfile.TemporaryDirectory(prefix="peakledger-"))
    path = Path(folder, "ledger.json")
    side.save(path)
    return str(path)
