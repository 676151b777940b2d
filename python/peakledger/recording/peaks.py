"""The peak of each phase of a step, to be logged while a training runs."""

from __future__ import annotations

from contextlib import ExitStack

import torch

from . import Recording, record
from .phases import Phases, Watcher


class CardPeaks(Watcher):
    """Asks the CUDA allocator's own statistics at each change of phase; it costs nothing that can be measured.

    torch's peak statistics are reset at each change, so whoever else resets or reads them in between disturbs, or is disturbed.
    """

    def __init__(self) -> None:
        self._peaks: dict[str, int] = {}
        self._exits = ExitStack()

    def start(self) -> None:
        """A step begins, or the training."""
        self.stop()  # an earlier training may have ended by an exception
        self._exits.enter_context(Phases(self).told())

    def stop(self) -> None:
        """It ends."""
        self._exits.close()

    def take(self) -> dict[str, int]:
        """The largest allocated bytes in each phase since the last time."""
        taken, self._peaks = self._peaks, {}
        return taken

    def phase_began(self, phase: str) -> None:
        del phase
        torch.cuda.reset_peak_memory_stats()

    def phase_ended(self, phase: str) -> None:
        self._peaks[phase] = max(self._peaks.get(phase, 0), torch.cuda.max_memory_allocated())


class HostPeaks:
    """Profiles each step on the CPU; this slows a step down several times."""

    def __init__(self) -> None:
        self._run: Recording | None = None
        self._peaks: dict[str, int] = {}

    def start(self) -> None:
        """A step begins."""
        self.stop()
        self._run = record("cpu").__enter__()

    def stop(self) -> None:
        """It ends."""
        if self._run is None:
            return
        self._run.__exit__(None, None, None)
        for phase in self._run.steps[-1].phases:
            if phase.phase != "load":
                self._peaks[phase.phase] = max(self._peaks.get(phase.phase, 0), phase.peak_bytes)
        self._run = None

    def take(self) -> dict[str, int]:
        """The largest requested bytes in each phase since the last time."""
        taken, self._peaks = self._peaks, {}
        return taken
