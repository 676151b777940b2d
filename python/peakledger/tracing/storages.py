"""The log of a trace: every storage's birth and death, as the dispatcher and Python's own counting show them.

A moment is an op that hands out memory, or the end of a phase. A storage is born at the op whose result it is first seen in,
and is there until the moment after which its last handle was let go of: what torch's MemTracker counts, op by op.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch

from .._tape import NEVER, Moment, Stored, Tape
from .modules import Modules
from .stand_in import Device


class Log(Device):
    """Notes storages while it is the active mode."""

    def __init__(self, modules: Modules) -> None:
        super().__init__()
        self.modules = modules
        self.tape = Tape(notes=self.notes)
        self._alive: dict[int, Stored] = {}
        self._weak: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._op_names: dict[Any, str] = {}

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
        out = super().call(func, args, kwargs)
        if isinstance(out, torch.Tensor):
            born = self._see(out, func, None)
        elif isinstance(out, (tuple, list)):
            born = None
            for item in out:
                if isinstance(item, torch.Tensor):
                    born = self._see(item, func, born)
                elif isinstance(item, (tuple, list)):
                    for inner in item:
                        if isinstance(inner, torch.Tensor):
                            born = self._see(inner, func, born)
        return out

    def hold(self, tensor: torch.Tensor, name: str, category: str, detail: str | None = None) -> None:
        """A tensor that is there already: a parameter, a buffer, a gradient, the batch."""
        for storage in storages(tensor):
            stored = self._alive.get(storage._cdata)
            if stored is None:
                stored = self._begin(
                    storage, tensor, Moment("", ""), NEVER if detail == "input" else len(self.tape.moments)
                )
                stored.persistent = category in ("parameter", "optimizer_state", "master_weight") or detail == "input"
            elif stored.category:
                continue  # it has its name, perhaps from another that shares its memory
            stored.name, stored.category, stored.detail = name, category, detail
            if category in ("parameter", "optimizer_state", "master_weight"):
                stored.persistent = True

    def of(self, tensor: torch.Tensor) -> Iterable[Stored]:
        """The storages of a tensor, as far as they are known."""
        known = (self._alive.get(storage._cdata) for storage in storages(tensor))
        return [stored for stored in known if stored is not None]

    def _see(self, tensor: torch.Tensor, func: Any, born: Moment | None) -> Moment | None:
        """Notes the storages of a result that are new; `born` is the moment of this op, if it has one yet."""
        for storage in storages(tensor):
            stored = self._alive.get(storage._cdata)
            if stored is not None and stored.seen != NEVER and stored.requested == storage.nbytes():
                continue
            if born is None:
                born = Moment(self.modules.current(), self._name(func))
                self.tape.moments.append(born)
            now = len(self.tape.moments) - 1
            if stored is None:
                self._begin(storage, tensor, born, now)
            elif stored.seen == NEVER:
                stored.seen = now
            else:  # resized in place: another state from here on
                stored.death = now - 1
                self._begin(storage, tensor, born, now)
        return born

    def _begin(self, storage: torch.UntypedStorage, tensor: torch.Tensor, at: Moment, seen: int) -> Stored:
        device = "gpu" if tensor.device.type == "cuda" else "cpu"
        birth = len(self.tape.moments) if seen == NEVER else seen
        phase = self.tape.marks[-1].phase if self.tape.marks else "load"
        stored = Stored(storage.nbytes(), device, birth, seen, at.module, at.op, phase, self.modules.recomputing())
        self.tape.stored.append(stored)
        key = storage._cdata
        self._alive[key] = stored
        if key not in self._weak:
            self._weak[key] = weakref.ref(storage, partial(self._died, key))
        return stored

    def _died(self, key: int, reference: weakref.ref[torch.UntypedStorage]) -> None:
        del reference
        self._weak.pop(key, None)
        stored = self._alive.pop(key, None)
        if stored is not None:
            stored.death = len(self.tape.moments) - 1

    def _name(self, func: Any) -> str:
        name = self._op_names.get(func)
        if name is None:
            name = self._op_names[func] = str(func).removeprefix("aten.").removesuffix(".default")
        return name


def storages(tensor: torch.Tensor) -> list[torch.UntypedStorage]:
    """The storages under a tensor, those of a wrapper subclass included; none for a single number on the host."""
    if hasattr(tensor, "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()
        return [storage for name in names for storage in storages(getattr(tensor, name))]
    return [] if tensor.dim() == 0 and tensor.device.type == "cpu" else [tensor.untyped_storage()]
