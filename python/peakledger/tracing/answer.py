"""What a trace says: its two steps as ledgers, and their phases as torch's tracker counts them."""

from __future__ import annotations

import json
import os
from typing import Literal

from .._answers import Phased, Record, flat
from .._ledger import Ledger
from .._steps import Step
from .._tape import Tape

WhichStep = Literal["first", "steady"]


class Trace(Phased):
    """A traced training step: the first one, which makes the optimizer state, and every later one.

    ``peak``, ``phases`` and ``contributors`` are at op level, as torch's tracker counts; the ledgers have the batch from
    the beginning of the step. ``print(trace)`` shows the steady step's ledger.
    """

    def __init__(self, tape: Tape, first: range, steady: range) -> None:
        note = "peakledger.trace, the {} step: what the dispatcher hands out, and the batch"
        self.first = Step(tape, first, note.format("first"))
        self.steady = Step(tape, steady, note.format("steady"))
        self.notes: tuple[str, ...] = tuple(tape.notes)
        """What had to be assumed."""
        answer = {
            "first_step": {"phases": [phase.to_dict() for phase in self.first.phases]},
            "steady_step": {"phases": [phase.to_dict() for phase in self.steady.phases]},
            "peak": self._peak(),
            "notes": self.notes,
        }
        super().__init__(json.dumps(answer), "")

    def _peak(self) -> Record:
        first, steady = self.first.peak, self.steady.peak
        which, step = ("first", self.first) if first.peak_bytes > steady.peak_bytes else ("steady", self.steady)
        peak = step.peak.to_dict()
        size = peak.pop("peak_bytes")
        del peak["end_bytes"]
        return {"step": which, **peak, "bytes": size, "contributors": step.contributors()}

    @property
    def phases(self) -> list[Record]:
        """The phases of the steady step."""
        phases: list[Record] = self._dict["steady_step"]["phases"]
        return phases

    def ledger(self, step: WhichStep = "steady") -> Ledger:
        """The ledger of a step."""
        return Ledger(self.to_document(step))

    def to_document(self, step: WhichStep = "steady") -> Record:
        """A step as a ledger in the document form (docs/ledger.schema.json)."""
        return self.steady.to_document() if step == "steady" else self.first.to_document()

    def save(self, path: str | os.PathLike[str], step: WhichStep = "steady", *, force: bool = False) -> None:
        """Writes the ledger of a step to a file, for ``peakledger show`` and ``compare``.

        Raises:
            PeakledgerError: The file exists and ``force`` is not set.
        """
        self.ledger(step).save(path, force=force)

    def __str__(self) -> str:
        return str(self.ledger())

    def __repr__(self) -> str:
        peak = self.peak
        where = peak["phase"] if peak["micro_batch"] is None else f"{peak['phase']}.{peak['micro_batch']}"
        return f"<peakledger.Trace: {peak['step']} step, {where}, {peak['bytes'] / 2**20:.1f} MiB>"

    def _repr_html_(self) -> str:
        return self.ledger()._repr_html_()

    def _rows(self) -> list[Record]:
        steps = (("first", self.first), ("steady", self.steady))
        return [{"step": name, **flat(phase.to_dict())} for name, step in steps for phase in step.phases]
