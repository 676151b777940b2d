"""Where a real training loop is: phases told by hooks, or said by hand, and marked in whatever records the memory.

A phase is a ``record_function`` range of its name, so it stands in profiler traces and in memory snapshots alike.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

PHASES = ("forward", "loss", "backward", "update", "zero_grad")
"""Phases that a loop can be in; before the first it is loading."""


def range_of(phase: str) -> str:
    """The name of a phase's range. ``peakledger read`` knows it, and nobody else's range has it."""
    return f"## {phase} ##"


class Watcher:
    """Told as the loop goes: what is there, and that a phase has ended."""

    def model(self, model: torch.nn.Module, batch: tuple[Any, ...]) -> None:
        """A forward begins."""

    def optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """A step of an optimizer begins or ends."""

    def phase_began(self, phase: str) -> None:
        """A phase has begun."""

    def phase_ended(self, phase: str) -> None:
        """A phase has ended."""


class Phases:
    """The phase that the loop is in, told by what it calls.

    The outermost module's forward is ``forward``; from its end to backward it is ``loss``; ``backward()`` is ``backward``;
    an optimizer's step is ``update``, ``zero_grad()`` is ``zero_grad``. What lies between belongs to the phase before,
    but what lies between backward and the optimizer's step, such as clipping, belongs to the update.
    """

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._range: Any = None
        self.current: str | None = None
        self._depth = 0
        self._by_hand = 0

    @contextmanager
    def told(self) -> Iterator[None]:
        """Phases are told inside."""
        with ExitStack() as stack:
            for handle in (
                register_module_forward_pre_hook(self._forward_begins),
                register_module_forward_hook(self._forward_ends, always_call=True),
                register_optimizer_step_pre_hook(self._step_begins),
                register_optimizer_step_post_hook(self._step_ends),
            ):
                stack.callback(handle.remove)
            for where, name, phase in (
                (torch.autograd, "backward", "backward"),
                (torch.optim.Optimizer, "zero_grad", "zero_grad"),
                (torch.nn.Module, "zero_grad", "zero_grad"),
            ):
                stack.enter_context(mock.patch.object(where, name, self._wrapped(getattr(where, name), phase)))
            stack.callback(self._leave)
            yield

    @contextmanager
    def by_hand(self, phase: str) -> Iterator[None]:
        """The phase is this one inside, whatever is called."""
        if phase not in PHASES:
            raise ValueError(f"phase: {phase!r} is none of {', '.join(PHASES)}")
        self._enter(phase)
        self._by_hand += 1
        try:
            yield
        finally:
            self._by_hand -= 1
            self._leave()

    def _enter(self, phase: str) -> None:
        self._leave()
        self.current = phase
        self._range = torch.profiler.record_function(range_of(phase))
        self._range.__enter__()
        self._watcher.phase_began(phase)

    def _leave(self) -> None:
        if self._range is not None and self.current is not None:
            self._range.__exit__(None, None, None)
            self._watcher.phase_ended(self.current)
        self._range = self.current = None

    def _forward_begins(self, module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        self._depth += 1
        if self._depth > 1 or not torch.is_grad_enabled() or self.current == "backward":
            return
        self._watcher.model(module, args)
        if not self._by_hand and self.current != "loss":  # a second model in the loss is part of it
            self._enter("forward")

    def _forward_ends(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        self._depth -= 1
        if self._depth == 0 and not self._by_hand and self.current == "forward":
            self._enter("loss")

    def _step_begins(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._watcher.optimizer(optimizer)
        if not self._by_hand:
            self._enter("update")

    def _step_ends(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._watcher.optimizer(optimizer)
        if not self._by_hand:
            self._leave()

    def _wrapped(self, function: Callable[..., Any], phase: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            if self._by_hand or self.current == phase:
                return function(*args, **kwargs)
            self._enter(phase)
            try:
                return function(*args, **kwargs)
            finally:
                self._leave()

        return run
