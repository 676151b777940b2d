"""Ledgers: what is where and when, from a file, from a list of states, or from a document."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

from . import _native
from ._answers import Answer, Phased, Record
from ._errors import PeakledgerError
from ._frames import frame


class Ledger(Phased):
    """A ledger of training memory, checked when it is made; it never changes.

    Sizes are whole bytes and every sum is exact. ``peak``, ``phases`` and ``contributors`` are those of
    ``peakledger show``, with its field names.

    Args:
        source: a path of a ledger file (a ``str`` or ``os.PathLike``), the states (an iterable of dicts, in the form that
            ``validate_state_lifecycle`` takes, or with ``size_bytes`` or ``residencies``), or a document (a dict with
            ``schema_version`` and ``states``). ``docs/ledger.schema.json`` of the repository describes both forms.

    Raises:
        PeakledgerError: what is wrong with it, with the place and the mend.
        TypeError: a state holds something that JSON has no form for.

    >>> states = [
    ...     dict(name="weights", category="parameter", size_mb=800, start_phase="load", end_phase="zero_grad",
    ...          device="gpu", persistent=True),
    ...     dict(name="activations", category="activation", size_mb=300, start_phase="forward", end_phase="backward",
    ...          device="gpu", persistent=False),
    ... ]
    >>> ledger = Ledger(states)
    >>> ledger.peak["peak_phase"], ledger.peak["peak_bytes"]
    ('forward', 1153433600)
    """

    def __init__(self, source: str | os.PathLike[str] | Mapping[str, Any] | Iterable[Mapping[str, Any]]) -> None:
        if isinstance(source, str | os.PathLike):
            self._take(_native.Ledger.open(source))
        else:
            held = source if isinstance(source, Mapping) else list(source)
            self._take(_native.Ledger.parse(json.dumps(held)))

    @classmethod
    def of_json(cls, text: str) -> Ledger:
        """The ledger of a JSON text, in either form.

        Raises:
            PeakledgerError: what is wrong with it, with the place and the mend.
        """
        ledger = cls.__new__(cls)
        ledger._take(_native.Ledger.parse(text))
        return ledger

    def _take(self, native: _native.Ledger) -> None:
        self._native = native
        super().__init__(*native.show())

    def __len__(self) -> int:
        """How many states it has."""
        return len(self._native)

    def __bool__(self) -> bool:
        """An empty ledger is a ledger."""
        return True

    def compare(self, candidates: Mapping[str, Ledger] | None = None, /, **named: Ledger) -> Comparison:
        """Compares other ledgers with this one; candidates inside this one's document take part first.

        Args:
            candidates: ledgers by name.
            named: more of them, where the name is one that Python takes.

        Raises:
            PeakledgerError: there is no candidate, or two have one name.
        """
        pairs = [*(candidates or {}).items(), *named.items()]
        return Comparison(*self._native.compare([(name, ledger._native) for name, ledger in pairs]))

    def to_document(self) -> Record:
        """The ledger itself, not what it shows: a document that ``Ledger`` and ``peakledger show`` read back."""
        document: Record = json.loads(self._native.document())
        return document

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """Writes the document to a file, for ``peakledger show`` and ``compare``.

        Raises:
            PeakledgerError: the file exists and ``force`` is not set.
            OSError: it cannot be written.
        """
        write(path, self._native.document() + "\n", force)


class Comparison(Answer):
    """Candidates against a baseline, as ``peakledger compare`` answers."""

    @property
    def baseline(self) -> Record:
        """The baseline's peak."""
        baseline: Record = self._dict["baseline"]
        return baseline

    @property
    def candidates(self) -> dict[str, Record]:
        """For each candidate its peak, ``memory_saving_bytes`` (negative where it needs more), and what moved."""
        candidates: dict[str, Record] = self._dict["candidates"]
        return candidates

    def to_dataframe(self, backend: Any = None) -> Any:
        """A row for the baseline and for each candidate; ``backend`` as of :meth:`Ledger.to_dataframe`."""
        rows = [{"name": "baseline", **self.baseline, "memory_saving_bytes": 0}]
        rows += [{"name": name, **candidate} for name, candidate in self.candidates.items()]
        keys = ("name", "peak_phase", "micro_batch", "peak_bytes", "memory_saving_bytes")
        return frame([{key: row[key] for key in keys} for row in rows], backend)


def write(path: str | os.PathLike[str], text: str, force: bool) -> None:
    """Writes a file whole or not at all."""
    if not force and os.path.lexists(path):
        cause, mend = "the file exists", "add `force=True` to overwrite it"
        name = os.fspath(path)
        raise PeakledgerError(f"{name}: {cause}\n  help: {mend}", cause=cause, mend=mend, file=name)
    beside = f"{os.fspath(path)}.{os.getpid()}.tmp"
    try:
        with open(beside, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        os.replace(beside, path)
    except BaseException:
        if os.path.lexists(beside):
            os.unlink(beside)
        raise
