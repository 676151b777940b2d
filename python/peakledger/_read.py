"""What a run did hold, from the files that PyTorch writes, and what the caching allocator makes of it. Nothing in a file is
ever run."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ._answers import Answer, Question, Record, flat
from ._errors import no_standard_input
from ._frames import frame
from ._ledger import Ledger
from ._words import words_of

if TYPE_CHECKING:
    from ._plan import Plan

    if sys.version_info >= (3, 11):
        from typing import Unpack
    else:
        from typing_extensions import Unpack

    from ._words import ReadOptions, ReplayOptions


def read(path: str | os.PathLike[str], /, **options: Unpack[ReadOptions]) -> Reading:
    """Reads a memory snapshot, a profiler's trace, a memory timeline, or the text of an out-of-memory error.

    Args:
        path: the file, gzipped or not: what ``torch.cuda.memory._dump_snapshot``, ``prof.export_chrome_trace`` or
            ``prof.export_memory_timeline`` wrote, or a log (then with ``oom_message=True``).
        options: those of ``peakledger read`` with underscores for dashes (:class:`peakledger.ReadOptions`).

    Returns:
        What the file says, with the fields of the command line's JSON. A snapshot's are by device: requested bytes are what
        was asked for, allocated that rounded up to 512, reserved what the caching allocator holds from the driver.

    Raises:
        PeakledgerError: the file cannot be read, is damaged, or is none of these; the place, the cause and the mend.

    Source: pytorch, ``torch/csrc/cuda/memory_snapshot.cpp`` and ``torch/profiler``, versions 2.0 to 2.15.
    """
    return Reading(Question("read", words_of(options), no_standard_input(os.fspath(path))))


class Reading(Answer):
    """What a run did hold: the answer of ``peakledger read``."""

    def __init__(self, question: Question) -> None:
        super().__init__(*question.ask())
        self._question = question

    @property
    def devices(self) -> list[Record]:
        """The devices of the file, each with its peak; none where it is a text or a timeline."""
        devices: list[Record] = self._dict.get("devices", [])
        return devices

    def ledger(self) -> Ledger:
        """The ledger of the device with the largest peak: what ``peakledger read --save`` writes.

        Raises:
            PeakledgerError: the file makes none.
        """
        with tempfile.TemporaryDirectory(prefix="peakledger-") as folder:
            path = Path(folder, "ledger.json")
            self._question.ask(f"--save={path}")
            return Ledger.of_json(path.read_text(encoding="utf-8"))

    def to_dataframe(self, backend: Literal["pandas", "polars"] | None = None) -> Any:
        """The devices as a data frame; ``backend`` as of :meth:`peakledger.Plan.to_dataframe`."""
        return frame([flat(device) for device in self.devices], backend)


def replay(of: str | os.PathLike[str] | Ledger | Plan, /, **options: Unpack[ReplayOptions]) -> Replay:
    """Replays requests through PyTorch's caching allocator: what it reserves, and what other settings would change.

    Args:
        of: a snapshot's or a ledger's file, a ledger, or a plan (of which the steady step is taken).
        options: those of ``peakledger replay`` with underscores for dashes (:class:`peakledger.ReplayOptions`).

    Returns:
        What each of the settings comes to, in bytes, with the fields of the command line's JSON.

    Raises:
        PeakledgerError: the file or a setting cannot be used; the place, the cause and the mend.

    Source: pytorch, ``c10/cuda/CUDACachingAllocator.cpp``.
    """
    words = words_of(options)
    if isinstance(of, str | os.PathLike):
        return Replay(*Question("replay", words, no_standard_input(os.fspath(of))).ask())
    with tempfile.TemporaryDirectory(prefix="peakledger-") as folder:
        path = os.path.join(folder, "ledger.json")
        of.save(path)
        return Replay(*Question("replay", words, path).ask())


class Replay(Answer):
    """What the caching allocator makes of it: the answer of ``peakledger replay``."""
