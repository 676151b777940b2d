"""A recording on CUDA: the allocator's own history, as PyTorch dumps it."""

from __future__ import annotations

import inspect
import pickle
from pathlib import Path
from typing import Any

import torch

from .phases import Watcher


class CardRecorder(Watcher):
    """Records the history of the CUDA caching allocator, and dumps a snapshot.

    Args:
        max_entries: How many events are kept; older ones are dropped, and the snapshot then says that it is not whole.
        stacks: ``python``, ``all`` (C++ too, which is slow) or None for no stacks.
    """

    def __init__(self, max_entries: int, stacks: str | None) -> None:
        self._options: dict[str, Any] = {"max_entries": max_entries, "context": "all" if stacks else None}
        if stacks:
            self._options["stacks"] = stacks

    def start(self) -> None:
        """The recording begins."""
        known = inspect.signature(torch.cuda.memory._record_memory_history).parameters
        options = dict(self._options)
        if "clear_history" in known:
            options["clear_history"] = True
        if "global_record_annotations" in known:
            options["global_record_annotations"] = True  # backward runs in a thread of its own
        torch.cuda.memory._record_memory_history("all", **options)

    def stop(self) -> None:
        """The recording ends."""
        torch.cuda.memory._record_memory_history(None)

    def dump(self, path: Path) -> None:
        """Writes the snapshot, while the recording is on."""
        torch.cuda.synchronize()
        with path.open("wb") as file:
            pickle.dump(torch.cuda.memory._snapshot(), file)
