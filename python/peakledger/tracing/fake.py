"""Moves a model, its batch and its optimizer to the fake CUDA device, and the model back when the trace is over."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from .stand_in import DEVICE


class Fakes:
    """Fake CUDA tensors in the place of real ones: the same sizes, strides and types; what shares memory still does."""

    def __init__(self) -> None:
        # the real ones are kept beside their fakes, so that an id stays the id of its tensor
        self._of: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._memory: dict[int, tuple[torch.UntypedStorage, torch.Tensor]] = {}

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The fake of a tensor, always the same one."""
        known = self._of.get(id(tensor))
        if known is not None:
            return known[1]
        with torch.no_grad():
            fake = self._memory_of(tensor).as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
        if isinstance(tensor, torch.nn.Parameter):
            fake = torch.nn.Parameter(fake, requires_grad=tensor.requires_grad)
        else:
            fake = fake.detach().requires_grad_(tensor.requires_grad)
        self._of[id(tensor)] = (tensor, fake)
        return fake

    def of_all(self, tree: Any) -> Any:
        """Dicts, lists and tuples of tensors, such as a batch, with the fakes in the tensors' places."""
        return tree_map_only(torch.Tensor, self.of, tree)

    def _memory_of(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        known = self._memory.get(storage._cdata)
        if known is None or known[1].dtype is not tensor.dtype:
            elements = storage.nbytes() // tensor.element_size()
            known = (storage, torch.empty(elements, dtype=tensor.dtype, device=DEVICE))
            self._memory[storage._cdata] = known
        return known[1]

    @contextmanager
    def in_model(self, model: torch.nn.Module) -> Iterator[None]:
        """The model's parameters, buffers and other tensors are fakes inside; afterwards they are what they were."""
        undo: list[tuple[dict[str, Any], str, Any]] = []
        try:
            for module in model.modules():
                for place in (module._parameters, module._buffers, module.__dict__):
                    for name, value in list(place.items()):
                        if isinstance(value, torch.Tensor):
                            undo.append((place, name, value))
                            place[name] = self.of(value)
            yield
        finally:
            for place, name, value in undo:
                place[name] = value

    def optimizer(self, optimizer: Any, model: torch.nn.Module) -> torch.optim.Optimizer:
        """An optimizer over the fakes of the parameters that one has, or that a class or a function makes for the model."""
        if isinstance(optimizer, torch.optim.Optimizer):
            return self._copy(optimizer)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        made = optimizer(trained)
        if not isinstance(made, torch.optim.Optimizer):
            raise TypeError(f"optimizer: a torch.optim.Optimizer was to be made, and this is a {type(made).__name__}")
        return made

    def _copy(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        copy = object.__new__(type(optimizer))
        copy.__dict__.update(optimizer.__dict__)
        copy.state = defaultdict(dict)
        copy.param_groups = [
            {**group, "params": [self.of(parameter) for parameter in group["params"]]}
            for group in optimizer.param_groups
        ]
        return copy
