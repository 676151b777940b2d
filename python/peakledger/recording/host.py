"""A recording on the CPU: the profiler's memory events become a tape, with the names of what the loop trains."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._pytree import tree_leaves

from .._tape import Moment, Stored, Tape
from .phases import PHASES, Watcher, range_of

_PHASE_OF = {range_of(phase): phase for phase in PHASES}


@dataclass(frozen=True, slots=True)
class _Name:
    """What an address holds at the end of a phase, counted by those that have ended before."""

    phases_ended: int
    address: int
    requested: int
    name: str
    category: str
    detail: str | None = None

    @property
    def persistent(self) -> bool:
        return self.category in ("parameter", "optimizer_state", "master_weight")


class HostRecorder(Watcher):
    """Profiles the CPU's memory, and notes at which addresses parameters, gradients and optimizer states are."""

    def __init__(self) -> None:
        self._profile = profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True)
        self._names: list[_Name] = []
        self._known: set[tuple[int, str]] = set()
        self._ended = 0
        self._model: torch.nn.Module | None = None

    def start(self) -> None:
        """The recording begins."""
        self._profile.__enter__()

    def stop(self) -> None:
        """The recording ends."""
        self._profile.__exit__(None, None, None)

    def tape(self) -> Tape:
        """What was recorded."""
        results = self._profile.profiler.kineto_results
        return _Reader(self._names).read(results.experimental_event_tree())

    def model(self, model: torch.nn.Module, batch: tuple[Any, ...]) -> None:
        self._model = model
        for name, parameter in model.named_parameters():
            self._name(parameter, name, "parameter")
            self._name(parameter.grad, f"{name}.grad", "gradient")
        for name, buffer in model.named_buffers():
            self._name(buffer, name, "parameter", "buffer")
        for index, leaf in enumerate(tree_leaves(batch)):
            self._name(leaf, f"batch.{index}", "activation", "input")

    def optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        names = {id(p): name for name, p in self._model.named_parameters()} if self._model is not None else {}
        for parameter, state in optimizer.state.items():
            for key, value in state.items():
                category = "master_weight" if "master" in str(key) else "optimizer_state"
                self._name(value, f"{names.get(id(parameter), 'optimizer')}.{key}", category)

    def phase_ended(self, phase: str) -> None:
        del phase
        if self._model is not None:
            for name, parameter in self._model.named_parameters():
                self._name(parameter.grad, f"{name}.grad", "gradient")
        self._ended += 1

    def _name(self, value: Any, name: str, category: str, detail: str | None = None) -> None:
        if not isinstance(value, torch.Tensor) or value.device.type != "cpu":
            return
        storage = value.untyped_storage()
        known = (storage.data_ptr(), name)
        if storage.nbytes() and known not in self._known:
            self._names.append(_Name(self._ended, storage.data_ptr(), storage.nbytes(), name, category, detail))
            # a gradient's address is given away again and again, and so is the batch's
            if category in ("parameter", "optimizer_state", "master_weight"):
                self._known.add(known)


class _Reader:
    """Walks the profiler's events in time."""

    def __init__(self, names: list[_Name]) -> None:
        self._tape = Tape()
        self._alive: dict[int, Stored] = {}
        self._names = names
        self._named = 0
        self._ended = 0
        self._forwards = 0
        self._updated = False
        self._phase = "load"

    def read(self, roots: Any) -> Tape:
        events = sorted(_flat(roots, ""), key=lambda event: event[:2])
        phases = [event[3] for event in events if event[2] == "begins"]
        self._tape.phase("load")
        for _, _, kind, what in events:
            if kind == "begins":
                phases.pop(0)
                self._begin(what)
            elif kind == "ends":
                self._apply_names()
                self._ended += 1
                if what == "backward" and phases[:1] == ["update"]:
                    self._begin("update")  # what lies between, such as clipping, belongs to the update
            else:
                self._allocation(*what)
        self._tape.end()
        return self._tape

    def _begin(self, phase: str) -> None:
        if phase == "zero_grad" and self._phase == "load":
            return  # before the first forward there is nothing to free
        if phase == self._phase == "update":
            return
        if phase == "forward":
            if self._updated:
                self._tape.phase("load")
                self._updated, self._forwards = False, 0
            self._forwards += 1
        self._updated |= phase == "update"
        self._phase = phase
        self._tape.phase(phase, self._forwards - 1 if phase in ("forward", "loss", "backward") else None)

    def _allocation(self, address: int, size: int, op: str) -> None:
        if size > 0:
            self._tape.moments.append(Moment("", op))
            now = len(self._tape.moments) - 1
            self._store(address, Stored(size, "cpu", now, now, self._phase, op, self._phase))
            return
        stored = self._alive.pop(address, None)
        if stored is None:
            stored = Stored(-size, "cpu", 0, 0, "", "before the recording", "load")
            self._tape.stored.append(stored)
        stored.death = len(self._tape.moments) - 1

    def _store(self, address: int, stored: Stored) -> None:
        self._tape.stored.append(stored)
        self._alive[address] = stored

    def _apply_names(self) -> None:
        while self._named < len(self._names) and self._names[self._named].phases_ended <= self._ended:
            name = self._names[self._named]
            self._named += 1
            stored = self._alive.get(name.address)
            if stored is None:
                stored = Stored(name.requested, "cpu", 0, 0, "", "before the recording", "load")
                self._store(name.address, stored)
            if not stored.category:
                stored.name, stored.category, stored.detail = name.name, name.category, name.detail
                stored.persistent = name.persistent


def _flat(events: Any, op: str) -> Iterator[tuple[int, int, str, Any]]:
    """Beginnings and ends of phases, and allocations, with their times; of equal times, ends are last."""
    for event in events:
        phase = _PHASE_OF.get(event.name)
        if phase is not None:
            yield event.start_time_ns, 0, "begins", phase
            yield event.end_time_ns, 2, "ends", phase
        if event.name == "[memory]":
            fields = event.extra_fields
            if fields.device.type == "cpu":
                yield event.start_time_ns, 1, "memory", (fields.ptr, fields.alloc_size, op)
        yield from _flat(event.children, event.name.removeprefix("aten::") if phase is None else "")
