"""Which module runs: in forward by its calls, in backward by the autograd nodes that its forward made."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook


class Modules:
    """The path of the module that runs, such as ``model.layers.0.mlp``; empty outside of all."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._paths = {id(module): path for path, module in model.named_modules()}
        self._stack: list[str] = []
        self._left = ""
        self._outside = ""
        # autograd numbers its nodes in the order in which forward makes them: from this number on, this module
        self._numbers: list[int] = []
        self._owners: list[str] = []

    def current(self) -> str:
        """The module whose op runs."""
        if self._stack:
            return self._stack[-1]
        if self.recomputing():
            return self._left.rpartition(".")[0]  # a checkpoint runs the block's forward again, not the block
        node = torch._C._current_autograd_node()
        if node is None:
            return self._outside
        variable = getattr(node, "variable", None)
        number = node._sequence_nr()
        at = bisect_right(self._numbers, number) - 1
        return self._owners[at] if at >= 0 and variable is None else ""

    def recomputing(self) -> bool:
        """Whether a forward runs inside backward: a checkpoint's, which needs a graph again."""
        return bool(torch._C._current_graph_task_id() != -1 and torch.is_grad_enabled())

    def outside(self, name: str) -> None:
        """What runs where no module does: ``optimizer``."""
        self._outside = name
        self._owns()

    def new_step(self) -> None:
        """Forgets the nodes of the step before."""
        self._numbers.clear()
        self._owners.clear()

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Follows the calls of modules inside."""
        before = register_module_forward_pre_hook(self._enter)
        after = register_module_forward_hook(self._leave, always_call=True)
        try:
            yield
        finally:
            before.remove()
            after.remove()
            self._stack.clear()

    def _enter(self, module: torch.nn.Module, args: Any) -> None:
        inside = self._stack[-1] if self._stack else self._outside
        self._stack.append(self._paths.get(id(module), inside))
        self._owns()

    def _leave(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        if self._stack:
            self._left = self._stack.pop()
        self._owns()

    def _owns(self) -> None:
        self._numbers.append(torch._C._autograd._get_sequence_nr())
        self._owners.append(self._stack[-1] if self._stack else self._outside)
