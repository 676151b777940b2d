"""``peakledger.record``: what a real training loop did hold."""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import torch

from .._answers import Record
from .._ledger import Ledger
from .._read import read
from .._reconcile import Reconciliation, reconcile
from .._steps import Step
from .._tape import Tape
from .card import CardRecorder
from .host import HostRecorder
from .phases import Phases

__all__ = ["Recording", "record"]


def record(
    device: Literal["cuda", "cpu"] | None = None,
    *,
    snapshot: str | os.PathLike[str] | None = None,
    max_entries: int = 1_000_000,
    stacks: Literal["python", "all"] | None = "python",
) -> Recording:
    """Records the memory of the training loop inside ``with``.

    >>> with peakledger.record() as run:                          # doctest: +SKIP
    ...     for batch in batches:
    ...         loss_of(model(batch)).backward()
    ...         optimizer.step()
    ...         optimizer.zero_grad()
    >>> print(run.ledger())                                       # doctest: +SKIP

    Phases are told by hooks on modules, ``backward`` and optimizers (`peakledger.recording.phases.Phases`); where a loop
    hides them, ``with run.phase("forward"):`` says them. On CUDA the history of the caching allocator is recorded, on the
    CPU torch's profiler; either costs a few microseconds an allocation, and a run of a few steps is enough.

    Args:
        device: ``cuda`` or ``cpu``; if None, CUDA where it is available.
        snapshot: Keep the memory snapshot of a CUDA recording in this file.
        max_entries: The most events of the allocator that are kept, on CUDA; the oldest go first.
        stacks: The stacks that an allocation is kept with, on CUDA.

    Raises:
        ValueError: ``device`` is neither.

    Source: ``torch.cuda.memory._record_memory_history`` and ``_snapshot``; ``torch.profiler`` with ``profile_memory``.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device not in ("cuda", "cpu"):
        raise ValueError(f"device: {device!r} is neither 'cuda' nor 'cpu'")
    recorder = CardRecorder(max_entries, stacks) if device == "cuda" else HostRecorder()
    return Recording(recorder, Path(snapshot) if snapshot is not None else None)


class Recording:
    """A recorded run; see :func:`record`. Its ledgers are there once ``with`` has ended, by an exception too."""

    def __init__(self, recorder: CardRecorder | HostRecorder, snapshot: Path | None) -> None:
        self._recorder = recorder
        self._phases = Phases(recorder)
        self._exits = ExitStack()
        self._tape: Tape | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        if snapshot is None:
            self._folder = tempfile.TemporaryDirectory(prefix="peakledger-")
            snapshot = Path(self._folder.name, "snapshot.pickle")
        self._file = snapshot

    @property
    def snapshot(self) -> Path:
        """The memory snapshot of a CUDA recording, for ``peakledger read`` and pytorch.org/memory_viz.

        Raises:
            RuntimeError: There is none, since ``with`` has not ended or the recording is of the CPU.
        """
        if not self._file.exists():
            raise RuntimeError(
                "snapshot: a CUDA recording has its snapshot once its `with` has ended, one of the CPU has none"
            )
        return self._file

    def __enter__(self) -> Recording:
        self._recorder.start()
        self._exits.callback(self._recorder.stop)
        self._exits.enter_context(self._phases.told())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(self._recorder, HostRecorder):
            self._exits.close()
            self._tape = self._recorder.tape()
            return
        with self._exits:
            try:
                self._recorder.dump(self._file)
            except RuntimeError:
                if (
                    error is None
                ):  # after a failed kernel the card answers nothing, and the first error is the one to see
                    raise

    def phase(self, name: str) -> Any:
        """A context in which the loop is in this phase, whatever the hooks would say.

        Args:
            name: ``forward``, ``loss``, ``backward``, ``update`` or ``zero_grad``.

        Raises:
            ValueError: It is none of them.
        """
        return self._phases.by_hand(name)

    @property
    def steps(self) -> list[Step]:
        """The training steps of a CPU recording, in order."""
        if self._tape is None:
            raise RuntimeError(
                "steps: a recording has its steps once its `with` has ended, and on CUDA none; see ledger()"
            )
        starts = [mark.first for mark in self._tape.marks if mark.phase == "load"]
        ends = [*starts[1:], len(self._tape.moments)]
        note = "peakledger.record on the CPU, by torch.profiler: requested bytes"
        return [Step(self._tape, range(start, end), note, "cpu") for start, end in zip(starts, ends, strict=True)]

    def ledger(self, step: int = -1, *, on: Literal["gpu"] | None = None) -> Ledger:
        """What was measured, as a ledger.

        Args:
            step: Of a CPU recording, which training step: the last, unless another is asked for. A CUDA recording is one
                ledger, in which each repetition of a phase has its number.
            on: ``gpu`` counts the CPU's bytes as those of the device that trains, so that they can be set beside a plan.

        Raises:
            IndexError: There is no such step.
            PeakledgerError: The snapshot cannot be read.
        """
        if isinstance(self._recorder, CardRecorder):
            return read(self.snapshot).ledger()
        document = self.steps[step].to_document()
        return Ledger(_moved(document) if on == "gpu" else document)

    @property
    def peak(self) -> Record:
        """The peak of :meth:`ledger`."""
        return self.ledger().peak

    def reconcile(self, plan: Any, **options: Any) -> Reconciliation:
        """Sets a plan beside what was measured, phase by phase and category by category, and names the rest.

        Args:
            plan: A :class:`peakledger.Plan`, a trace of :func:`peakledger.trace`, or a :class:`peakledger.Ledger`.
            options: Those of :func:`peakledger.reconcile`.

        Raises:
            PeakledgerError: They cannot be set side by side.
        """
        measured = self.snapshot if isinstance(self._recorder, CardRecorder) else self.ledger(on="gpu")
        return reconcile(plan, measured, **options)


def _moved(document: Record) -> Record:
    """The document with everything on the device that trains."""
    for state in document["states"]:
        for residency in state.get("residencies", [state]):
            residency["device"] = "gpu"
    return document
