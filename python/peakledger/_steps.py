"""A step of a tape: its ledger, its phases, and who forms its peak."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from ._answers import Record
from ._tape import Mark, Stored, Tape


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase of a step, at op level: the batch counts from the op that first takes a view of it."""

    phase: str
    """``load``, ``forward``, ``loss``, ``backward``, ``update`` or ``zero_grad``."""
    micro_batch: int | None
    """Counted from 0; None outside forward, loss and backward."""
    peak_bytes: int
    """The largest total of allocated bytes inside the phase."""
    end_bytes: int
    """The total when it ends."""
    by_category: dict[str, int]
    """The peak by category."""
    module: str
    """The module that runs at the peak."""
    op: str
    """The op at the peak, by torch's name."""
    moment: int
    """The moment of the peak, in the log."""

    def to_dict(self) -> Record:
        """The fields by name, as ``peakledger plan --format json`` has them."""
        return {name: getattr(self, name) for name in self.__slots__ if name != "moment"}


class Step:
    """One step of a tape."""

    def __init__(self, tape: Tape, moments: range, note: str, device: str = "gpu") -> None:
        """
        Args:
            tape: The tape.
            moments: The moments of it that the step took.
            note: What the ledger says about where it comes from.
            device: The device whose bytes the phases count, ``gpu`` or ``cpu``.
        """
        self.note = note
        self.device = device
        self._tape = tape
        self._moments = moments
        marks = [mark for mark in tape.marks if mark.first in moments]
        ends = [mark.first for mark in marks[1:]] + [moments.stop]
        self._slots = [(mark, range(mark.first, end)) for mark, end in zip(marks, ends, strict=True)]
        self._stays = [(stored, stay) for stored in tape.stored if (stay := self._stay(stored, stored.birth))]
        self.phases: list[Phase] = list(self._phases())
        """The phases in order."""

    @property
    def peak(self) -> Phase:
        """The phase with the largest total; of equal ones the earliest."""
        return max(self.phases, key=lambda phase: phase.peak_bytes)

    def contributors(self) -> list[Record]:
        """Who is there at the peak, at op level: the largest first, then by name."""
        at, total = self.peak.moment, self.peak.peak_bytes
        names: Counter[str] = Counter()
        found = []
        for stored, _ in self._stays:
            name = _unique(names, stored)
            if stored.device == self.device and at in self._stay(stored, stored.seen):
                found.append((name, stored))
        return [
            {
                "name": name,
                "category": _category(stored),
                "detail": _detail(stored),
                "bytes": stored.bytes,
                "size_mb": stored.bytes / 2**20,
                "share": stored.bytes / total if total else 0.0,
            }
            for name, stored in sorted(found, key=lambda pair: (-pair[1].bytes, pair[0]))
        ]

    def to_document(self) -> Record:
        """The step as a ledger in the document form (docs/ledger.schema.json), with the batch there from the beginning.

        ``size_bytes`` are allocated bytes; ``x-requested-bytes`` says what was asked for where that is less.
        """
        names: Counter[str] = Counter()
        return {
            "schema_version": 1,
            "note": self.note,
            "timeline": [
                _slot(mark, moments, phase) for (mark, moments), phase in zip(self._slots, self.phases, strict=True)
            ],
            "states": [self._state(stored, stay, names) for stored, stay in self._stays],
        }

    def _stay(self, stored: Stored, since: int) -> range:
        """The moments of this step at which a storage is there; empty if there are none."""
        return range(max(since, self._moments.start), min(stored.death + 1, self._moments.stop))

    def _phases(self) -> Iterator[Phase]:
        changes: dict[int, Counter[str]] = {}
        for stored, _ in self._stays:
            stay = self._stay(stored, stored.seen)
            if stored.device == self.device and stay:
                changes.setdefault(stay.start, Counter())[_category(stored)] += stored.bytes
                changes.setdefault(stay.stop, Counter())[_category(stored)] -= stored.bytes
        held: Counter[str] = Counter()
        for mark, moments in self._slots:
            peak, total, at, by_category = -1, 0, mark.first, {}
            for moment in moments:
                held.update(changes.get(moment, {}))
                total = sum(held.values())
                if total > peak:
                    peak, at, by_category = total, moment, {name: size for name, size in sorted(held.items()) if size}
            where = self._tape.moments[at]
            yield Phase(mark.phase, mark.micro_batch, peak, total, by_category, where.module, where.op, at)

    def _state(self, stored: Stored, stay: range, names: Counter[str]) -> Record:
        state: Record = {"name": _unique(names, stored), "category": _category(stored)}
        if detail := _detail(stored):
            state["detail"] = detail
        state["size_bytes"] = stored.bytes
        if stored.requested != stored.bytes:
            state["x-requested-bytes"] = stored.requested
        state["persistent"] = stored.persistent
        start, start_moment, _ = self._place(stay.start)
        end, end_moment, at_end = self._place(stay.stop - 1)
        if start_moment == 0 and at_end:
            return state | {"device": stored.device, "start_phase": start, "end_phase": end}
        residency: Record = {"device": stored.device, "start_phase": start}
        if start_moment:
            residency["start_moment"] = start_moment
        residency["end_phase"] = end
        if not at_end:
            residency["end_moment"] = end_moment
        return state | {"residencies": [residency]}

    def _place(self, moment: int) -> tuple[str, int, bool]:
        """A moment of the log as the name of a phase, a moment of that, and whether it is its last."""
        at = bisect_right(self._slots, moment, key=lambda slot: slot[0].first) - 1
        mark, moments = self._slots[at]
        name = mark.phase if mark.micro_batch is None else f"{mark.phase}.{mark.micro_batch}"
        return name, moment - moments.start, moment == moments.stop - 1


def _slot(mark: Mark, moments: range, phase: Phase) -> Record:
    slot: Record = {"phase": mark.phase}
    if mark.micro_batch is not None:
        slot["micro_batch"] = mark.micro_batch
    if len(moments) > 1:
        slot["moments"] = len(moments)
    return slot | {"peak_op": f"{phase.module}: {phase.op}" if phase.module else phase.op}


def _category(stored: Stored) -> str:
    if stored.category:
        return stored.category
    in_forward = stored.phase in ("load", "forward", "loss") or stored.recomputed
    return "activation" if in_forward else "workspace"


def _detail(stored: Stored) -> str | None:
    return stored.detail or ("temporary" if _category(stored) == "workspace" else None)


def _unique(names: Counter[str], stored: Stored) -> str:
    """A name that no other state has: ``model.norm: mul.Tensor #2``."""
    name = stored.name or f"{stored.module or 'step'}: {stored.op}"
    names[name] += 1
    return name if names[name] == 1 else f"{name} #{names[name]}"
