"""A CUDA device where there is none: everything that makes PyTorch answer as it would on a card, in one place.

Under ``FakeTensorMode`` a tensor has a shape, a type and a storage, but no data, and it may say that it is on ``cuda``.
Python then sees CUDA: the foreach default of optimizers, the device of a checkpoint and of autocast, and the caller's own
``if x.is_cuda`` need no help. Autograd's engine does: where there is no driver it asks the device for its streams, and
stops. So to C++ a fake CUDA tensor says that it is on ``meta``, for which the engine has nothing to ask, and the few places
where C++ itself picks what to run by the device are answered here instead:

======================================  =================================================================================
`DEVICE`, `Device`                      C++ hears ``meta`` for ``cuda``; what it makes on ``meta`` is made on ``cuda``
`COMPOSITES`                            ops that C++ takes apart differently on CUDA: dropout, attention, softmax in
                                        another type, ``to(device)``, one_hot
`autocast` (its own file)               which ops autocast casts, and to what
`PYTHON`                                functions that ask the card, or C++ for the device: is one there, what can it do
`FOREACH`                               the types for which foreach is the default, fake tensors among them
`READS`                                 values that are read back: there are none, and 1 is as good as any
`LIBRARIES`                             functions of libraries that look at values, and give up on fake ones
======================================  =================================================================================

Nothing in it is bound to a build of torch. While a trace runs, the dispatcher's table is changed for the whole process, so
a trace must not run beside a training step in another thread; afterwards everything is as it was.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any
from unittest import mock

import torch
import torch.cuda.amp.common
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from . import autocast

aten = torch.ops.aten

DEVICE = torch.device("cuda", 0)
_META = torch.device("meta")
_device_of = torch.ops.prim.device.default

READS = aten._local_scalar_dense.default


class Device(TorchDispatchMode):  # type: ignore[misc]
    """Between PyTorch and its fake tensors: answers what C++ asks, and notes what had to be assumed."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: dict[str, None] = {}
        self._adopted: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is _device_of:
            return _as_seen_from_below(args[0])
        return self.call(func, args, kwargs)

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
        """Runs an op on fake tensors."""
        if func is READS:
            return self._read(func, args[0])
        if kwargs:
            device = kwargs.get("device")
            if device is not None and device.type == "meta":
                kwargs = {**kwargs, "device": DEVICE}
            if kwargs.get("pin_memory"):
                kwargs = {**kwargs, "pin_memory": False}  # pinned memory is host memory; only a driver can pin it
        try:
            return func(*args, **kwargs) if kwargs else func(*args)
        except AssertionError as error:
            if "convert all Tensors to FakeTensors" not in str(error):
                raise
        args, kwargs = tree_map_only(torch.Tensor, self._adopt, (args, kwargs or {}))
        return func(*args, **kwargs)

    def _adopt(self, tensor: torch.Tensor) -> torch.Tensor:
        """The fake of a real tensor that neither the model nor the batch has, such as a constant of the loss."""
        if isinstance(tensor, FakeTensor):
            return tensor
        known = self._adopted.get(id(tensor))
        if known is None:
            device = DEVICE if tensor.dim() else torch.device("cpu")  # a single number may stay on the host
            fake = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=device)
            known = self._adopted[id(tensor)] = (tensor, fake)
            if tensor.dim():
                shape = list(tensor.shape)
                self.notes[
                    f"a tensor of shape {shape} from outside was taken to be on the card; its bytes are not counted"
                ] = None
        return known[1]

    def _read(self, func: Any, tensor: torch.Tensor) -> Any:
        if not isinstance(tensor, FakeTensor) or tensor.constant is not None:
            return func(tensor)
        self.notes["a value was read back from a tensor; it was taken to be 1"] = None
        return 1.0 if tensor.dtype.is_floating_point else 1


def _as_seen_from_below(tensor: torch.Tensor) -> torch.device:
    """Where a tensor is, for C++."""
    device = tensor.device
    return _META if device.type == "cuda" else device


def dropout(input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """One kernel with a mask of one byte an element (aten/src/ATen/native/Dropout.cpp, is_fused_kernel_acceptable)."""
    if train and 0 < p < 1 and input.numel():
        return aten.native_dropout(input, p, train)[0]
    return _composite(aten.dropout.default, input, p, train)


def softmax(input: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """float16 in, float32 out is one kernel without a cast before it (aten/src/ATen/native/SoftMax.cpp)."""
    if input.dtype is torch.float16 and dtype is torch.float32:
        return aten._softmax(input, dim, True)
    return _composite(aten.softmax.int, input, dim, dtype)


def log_softmax(input: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """As `softmax`."""
    if input.dtype is torch.float16 and dtype is torch.float32:
        return aten._log_softmax(input, dim, True)
    return _composite(aten.log_softmax.int, input, dim, dtype)


def one_hot(self: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """On CUDA the values are not looked at (aten/src/ATen/native/Onehot.cpp)."""
    if num_classes < 1:
        raise ValueError("one_hot: a trace has no values to count the classes of; pass num_classes")
    out = aten.zeros([*self.shape, num_classes], dtype=self.dtype, device=self.device)
    return aten.scatter_(out, -1, self.unsqueeze(-1), 1)


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Picks the kernel of a card since sm80: flash for half types without a mask, else the memory-efficient one, else math
    (aten/src/ATen/native/transformers/attention.cpp and cuda/sdp_utils.cpp)."""
    backends = torch.backends.cuda
    half = query.dtype in (torch.float16, torch.bfloat16)
    width = query.size(-1)
    same_width = width == value.size(-1)
    flash = half and attn_mask is None and same_width and width <= 256 and query.dim() == 4
    if flash and backends.flash_sdp_enabled() and torch.cuda.get_device_capability() >= (8, 0):
        pad = -width % 8
        q, k, v = (torch.nn.functional.pad(t, (0, pad)) if pad else t for t in (query, key, value))
        scale = scale if scale is not None else width**-0.5
        out = aten._scaled_dot_product_flash_attention(q, k, v, dropout_p, is_causal, False, scale=scale)[0]
        return out[..., :width] if pad else out
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        zero = aten.scalar_tensor(0.0, dtype=query.dtype, device=query.device)
        minus_infinity = aten.scalar_tensor(float("-inf"), dtype=query.dtype, device=query.device)
        attn_mask = aten.where(attn_mask, zero, minus_infinity)
    single = half or query.dtype is torch.float32
    grouped = key.size(-3) != query.size(-3)
    aligned = width % (8 if half else 4) == 0 and value.size(-1) % (8 if half else 4) == 0
    if single and not grouped and aligned and query.dim() == 4 and backends.mem_efficient_sdp_enabled():
        if attn_mask is not None:
            if short := -attn_mask.size(-1) % 8:
                attn_mask = torch.nn.functional.pad(attn_mask, (0, short))[..., : key.size(-2)]
            attn_mask = attn_mask.expand(query.size(0), query.size(1), query.size(2), key.size(2))
        grad = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
        return aten._scaled_dot_product_efficient_attention(
            query, key, value, attn_mask, grad, dropout_p, is_causal, scale=scale
        )[0]
    return aten._scaled_dot_product_attention_math(
        query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
    )[0]


def to_device(
    self: torch.Tensor,
    device: torch.device,
    dtype: torch.dtype,
    non_blocking: bool = False,
    copy: bool = False,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    """No copy where the tensor is there already."""
    return _to(self, device, dtype, non_blocking, copy, memory_format)


def to_dtype_layout(
    self: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    copy: bool = False,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    """As `to_device`."""
    del layout, pin_memory
    return _to(self, device, dtype, non_blocking, copy, memory_format)


def to_other(
    self: torch.Tensor,
    other: torch.Tensor,
    non_blocking: bool = False,
    copy: bool = False,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    """As `to_device`."""
    return _to(self, other.device, other.dtype, non_blocking, copy, memory_format)


def _to(
    self: torch.Tensor,
    device: torch.device | None,
    dtype: torch.dtype | None,
    non_blocking: bool,
    copy: bool,
    memory_format: torch.memory_format | None,
) -> torch.Tensor:
    if device is not None and device.type == "meta":
        device = DEVICE
    elsewhere = device is not None and device.type != self.device.type
    recast = dtype is not None and dtype is not self.dtype
    in_format = memory_format in (None, torch.preserve_format) or self.is_contiguous(memory_format=memory_format)
    if not (elsewhere or recast or copy or not in_format):
        return self
    return aten._to_copy(
        self,
        dtype=dtype if recast else None,
        device=device if elsewhere else None,
        non_blocking=non_blocking,
        memory_format=memory_format or torch.preserve_format,
    )


def _composite(op: Any, *args: Any) -> Any:
    """The op as C++ takes it apart."""
    return op._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args)


COMPOSITES: dict[str, Callable[..., Any]] = {
    "dropout": dropout,
    "softmax.int": softmax,
    "log_softmax.int": log_softmax,
    "one_hot": one_hot,
    "scaled_dot_product_attention": attention,
    "to.device": to_device,
    "to.dtype_layout": to_dtype_layout,
    "to.other": to_other,
}
"""Ops by name, and what CUDA runs for each; in force for fake CUDA tensors while a trace runs."""

_group = torch._C._group_tensors_by_device_and_dtype


def _grouped(lists: Any, with_indices: bool = False) -> dict[tuple[torch.device, torch.dtype], Any]:
    """What foreach runs on together; C++ says ``meta`` for the device of a group."""
    groups = _group(lists, with_indices)
    return {(DEVICE if device == _META else device, dtype): group for (device, dtype), group in groups.items()}


PYTHON: tuple[tuple[Any, str, Callable[[tuple[int, int]], Callable[..., Any]]], ...] = (
    (torch.cuda, "get_device_capability", lambda capability: lambda *args, **kwargs: capability),
    (torch.cuda, "is_bf16_supported", lambda capability: lambda *args, **kwargs: True),  # emulated before sm80
    (torch.cuda, "current_device", lambda capability: lambda: 0),
    (torch._C, "_group_tensors_by_device_and_dtype", lambda capability: _grouped),
    (torch.cuda.amp.common, "amp_definitely_not_available", lambda capability: lambda: False),
)
"""Functions that ask for the card or the device: where, the name, and the answer for a card of some capability."""


FOREACH = tuple(import_module(name) for name in ("torch.optim.optimizer", "torch.utils._foreach_utils"))
"""Who asks for a tensor's Python type before it picks foreach, and would not know a fake one's."""


LIBRARIES = (("transformers.masking_utils", "find_packed_sequence_indices", lambda position_ids: None),)
"""Functions of libraries: the module, the name, and the answer for a batch with one sequence a row. On a card transformers
looks whether sequences are packed into a row, finds none and needs no mask; on fake tensors it would make one to be safe."""


@contextmanager
def stand_in(capability: tuple[int, int] = (9, 0)) -> Iterator[None]:
    """CUDA's answers are in force inside.

    Args:
        capability: The compute capability of the card that is stood in for, ``(9, 0)`` for an H100.
    """
    with ExitStack() as stack, warnings.catch_warnings():
        # the dispatcher says so whenever a kernel is replaced, and replacing them is what this does
        warnings.filterwarnings("ignore", message=".*Overriding a previously registered kernel.*")
        warnings.filterwarnings("ignore", message=".*CUDA is not available.*")
        for where, name, for_card in PYTHON:
            stack.enter_context(mock.patch.object(where, name, for_card(capability)))
        library = torch.library.Library("aten", "IMPL")
        stack.callback(library._destroy)
        for name, function, answer in LIBRARIES:
            if (module := sys.modules.get(name)) is not None and hasattr(module, function):
                stack.enter_context(mock.patch.object(module, function, answer))
        for module in FOREACH:
            types = [*module._foreach_supported_types, FakeTensor]
            stack.enter_context(mock.patch.object(module, "_foreach_supported_types", types))
        for name, kernel in COMPOSITES.items():
            library.impl(name, kernel, "AutogradCUDA")
        stack.enter_context(autocast.stand_in(library))
        yield
