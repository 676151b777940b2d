"""``peakledger.PeakLedgerCallback``: peaks in the logs of a Trainer, and an explanation when memory runs out."""

from __future__ import annotations

import os
import pickle
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from ._errors import PeakledgerError
from ._read import read
from .recording.peaks import CardPeaks, HostPeaks


def _bases() -> tuple[type, ...]:
    """The callback classes of those frameworks that are installed."""
    found: list[type] = []
    for package, module, name in (
        ("transformers", "transformers.trainer_callback", "TrainerCallback"),
        ("lightning", "lightning.pytorch.callbacks", "Callback"),
        ("pytorch_lightning", "pytorch_lightning.callbacks", "Callback"),
    ):
        if find_spec(package) is not None:
            found.append(getattr(import_module(module), name))
    return tuple(found)


class _Memory:
    """What the callback does, whoever calls it."""

    def __init__(
        self, snapshot: str | os.PathLike[str] = "peakledger-oom.pickle", *, max_entries: int = 100_000
    ) -> None:
        """
        Args:
            snapshot: Where the memory snapshot goes when a CUDA allocation fails; an older one is overwritten.
            max_entries: The most events of the allocator that it has.
        """
        super().__init__()
        self.snapshot = Path(snapshot)
        self._max_entries = max_entries
        self._on_card = torch.cuda.is_available()
        self._peaks = CardPeaks() if self._on_card else HostPeaks()

    def _begin(self) -> None:
        if self._on_card:
            self._peaks.start()
            torch.cuda.memory._record_memory_history(max_entries=self._max_entries, stacks="python")
            torch._C._cuda_attach_out_of_memory_observer(self._out_of_memory)

    def _begin_step(self) -> None:
        if not self._on_card:
            self._peaks.start()

    def _end_step(self) -> None:
        if not self._on_card:
            self._peaks.stop()

    def _end(self) -> None:
        self._peaks.stop()
        if self._on_card:
            torch.cuda.memory._record_memory_history(None)

    def _logs(self) -> dict[str, float]:
        return {f"peakledger/{phase}_peak_bytes": float(size) for phase, size in self._peaks.take().items()}

    def _out_of_memory(self, device: int, asked: int, total: int, free: int) -> None:
        """Called by the allocator before it raises: the snapshot has everything that is still there."""
        with self.snapshot.open("wb") as file:
            pickle.dump(torch.cuda.memory._snapshot(), file)
        print(explained(self.snapshot, device, asked, total, free), file=sys.stderr)


def explained(snapshot: Path, device: int, asked: int, total: int, free: int) -> str:
    """What an out-of-memory error is about: what was asked for, and who has the rest.

    Args:
        snapshot: The memory snapshot of that moment.
        device: The index of the CUDA device.
        asked: Bytes that were asked for.
        total: Bytes of the device.
        free: Bytes that the device had free.
    """
    lines = [
        f"peakledger: cuda:{device} ran out of memory: {_gib(asked)} asked for, {_gib(free)} of {_gib(total)} free on the device",
        f"the snapshot is {snapshot}; `peakledger read {snapshot}` shows:",
    ]
    try:
        table = str(read(snapshot))
    except PeakledgerError as problem:
        table = str(problem)
    return "\n".join([*lines, table])


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"


class PeakLedgerCallback(_Memory, *_bases()):  # type: ignore[misc]
    """Puts the peak of each phase into the logs of a Hugging Face Trainer or of Lightning, and explains running out of memory.

    The logs get ``peakledger/forward_peak_bytes``, and so for ``loss``, ``backward``, ``update`` and ``zero_grad``: the largest
    bytes in that phase since the last log; allocated bytes on CUDA. Without CUDA each step is profiled, which is slow, and they
    are requested bytes. When a CUDA allocation fails, a memory snapshot is written and explained on stderr.

    >>> trainer = Trainer(model, args, callbacks=[PeakLedgerCallback()])      # doctest: +SKIP
    >>> trainer = lightning.Trainer(callbacks=[PeakLedgerCallback()])         # doctest: +SKIP

    A Trainer's reporters (TensorBoard, wandb) are called before its other callbacks: ``PeakLedgerCallback().attach(trainer)``
    puts it before them.

    Args:
        snapshot: Where the memory snapshot goes when a CUDA allocation fails; an older one is overwritten.
        max_entries: The most events of the allocator that it has.
    """

    def attach(self, trainer: Any) -> None:
        """Makes it the first callback of a Hugging Face Trainer."""
        handler = trainer.callback_handler
        if self in handler.callbacks:
            handler.callbacks.remove(self)
        handler.callbacks.insert(0, self)

    # Hugging Face

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The training begins."""
        self._begin()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A step begins: one update, whatever its micro-batches."""
        self._begin_step()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The step ends."""
        self._end_step()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        """Adds the peaks to what is logged."""
        peaks = self._logs()
        if logs is not None:
            logs.update(peaks)
        if state.log_history:
            state.log_history[-1].update(peaks)

    # Lightning

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """The training begins."""
        self._begin()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """A batch begins."""
        self._begin_step()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """The batch ends; its peaks are logged."""
        self._end_step()
        pl_module.log_dict(self._logs())

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """The training ends by an exception."""
        self._end()

    # both

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        """The training ends."""
        self._end()
