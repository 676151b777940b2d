"""Autocast for fake CUDA tensors: CUDA's lists, and the cache of cast weights.

torch's own autocast kernels for CUDA look at the device of what they cast, and to C++ a fake CUDA tensor is not on CUDA
(see `peakledger.tracing.stand_in`). These do the same by the same lists (aten/src/ATen/autocast_mode.h; the tests hold the
lists against the header of the installed torch).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch._C import DispatchKey, DispatchKeySet
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

aten = torch.ops.aten

LOWER_PRECISION = [
    "_convolution.deprecated",
    "_convolution",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_tbc",
    "conv_transpose1d",
    "conv_transpose2d.input",
    "conv_transpose3d.input",
    "convolution",
    "prelu",
    "addmm",
    "addmv",
    "addr",
    "matmul",
    "einsum",
    "mm",
    "mv",
    "linalg_vecdot",
    "linear",
    "addbmm",
    "baddbmm",
    "bmm",
    "chain_matmul",
    "linalg_multi_dot",
    "_thnn_fused_lstm_cell",
    "_thnn_fused_gru_cell",
    "lstm_cell",
    "gru_cell",
    "rnn_tanh_cell",
    "rnn_relu_cell",
    "_scaled_dot_product_flash_attention",
    "scaled_dot_product_attention",
]
"""Run in autocast's type."""

FP32 = [
    "acos",
    "asin",
    "cosh",
    "erfinv",
    "exp",
    "expm1",
    "log",
    "log10",
    "log2",
    "log1p",
    "reciprocal",
    "rsqrt",
    "sinh",
    "tan",
    "pow.Tensor_Scalar",
    "pow.Tensor_Tensor",
    "pow.Scalar",
    "softplus",
    "layer_norm",
    "native_layer_norm",
    "rms_norm",
    "group_norm",
    "frobenius_norm.dim",
    "nuclear_norm",
    "nuclear_norm.dim",
    "cosine_similarity",
    "poisson_nll_loss",
    "cosine_embedding_loss",
    "nll_loss",
    "nll_loss2d",
    "hinge_embedding_loss",
    "kl_div",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "mse_loss",
    "margin_ranking_loss",
    "multilabel_margin_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
    "multi_margin_loss",
    "binary_cross_entropy_with_logits",
    "dist",
    "pdist",
    "cdist",
    "renorm",
    "logsumexp",
    "upsample_nearest1d",
    "_upsample_nearest_exact1d",
    "upsample_nearest2d",
    "_upsample_nearest_exact2d",
    "upsample_nearest3d",
    "_upsample_nearest_exact3d",
    "upsample_linear1d",
    "upsample_bilinear2d",
    "_upsample_bilinear2d_aa",
    "upsample_trilinear3d",
    "upsample_bicubic2d",
    "_upsample_bicubic2d_aa",
]
"""Run in float32."""

FP32_OUT = [
    "prod",
    "prod.dim_int",
    "softmax.int",
    "log_softmax.int",
    "cumprod",
    "cumsum",
    "linalg_vector_norm",
    "linalg_matrix_norm",
    "linalg_matrix_norm.str_ord",
    "sum",
    "sum.dim_IntList",
]
"""Asked for a result in float32, unless another type is asked for."""

PROMOTE = [
    "addcdiv",
    "addcmul",
    "atan2",
    "bilinear",
    "cross",
    "dot",
    "vdot",
    "grid_sampler",
    "index_put",
    "tensordot",
    "scatter_add",
]
"""Run in the widest type among their inputs."""


NORM = ("norm.Scalar", "norm.ScalarOpt_dim")
"""Summed in float32, and the result is float32."""


class _Casts:
    """What is cast, and the casts of weights that are kept until the outermost autocast ends."""

    def __init__(self) -> None:
        self.of_weights = WeakIdKeyDictionary()

    def cast(self, value: Any, dtype: torch.dtype) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(value, dtype)
        if isinstance(value, (list, tuple)):
            return type(value)(self.cast(item, dtype) for item in value)
        return value

    def _tensor(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        if not _eligible(tensor) or tensor.dtype is dtype:
            return tensor
        kept = (
            tensor.dtype is torch.float32
            and tensor.requires_grad
            and tensor.is_leaf
            and dtype is torch.get_autocast_dtype("cuda")
            and not tensor._is_view()
            and torch.is_autocast_cache_enabled()
        )
        if not kept:
            return tensor.to(dtype)
        cast = self.of_weights.get(tensor)
        if cast is None:
            cast = self.of_weights[tensor] = tensor.to(dtype)
        return cast

    def kernel(self, op: Any, policy: Callable[..., Any]) -> Callable[..., Any]:
        """The op under autocast: arguments cast as the policy says, then the op without autocast."""

        def run(*args: Any, **kwargs: Any) -> Any:
            with torch._C._ExcludeDispatchKeyGuard(DispatchKeySet(DispatchKey.AutocastCUDA)):
                return policy(self, op, args, kwargs)

        return run


def _eligible(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.device.type == "cuda"
        and value.is_floating_point()
        and value.dtype is not torch.float64
    )


def _in_type(casts: _Casts, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], dtype: torch.dtype) -> Any:
    args = casts.cast(args, dtype)
    return op(*args, **{name: casts.cast(value, dtype) for name, value in kwargs.items()})


def _lower_precision(casts: _Casts, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _in_type(casts, op, args, kwargs, torch.get_autocast_dtype("cuda"))


def _fp32(casts: _Casts, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _in_type(casts, op, args, kwargs, torch.float32)


def _fp32_out(casts: _Casts, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    names = [argument.name for argument in op._schema.arguments]
    given = dict(zip(names, args, strict=False)) | kwargs
    if _eligible(args[0]) and given.get("dtype") is None:
        at = names.index("dtype")
        args, kwargs = args[:at], {**kwargs, "dtype": torch.float32}
        if not op._schema.arguments[at].kwarg_only:
            filled = [given.get(a.name, a.default_value) for a in op._schema.arguments[:at]]
            return op(*filled, torch.float32)
    return op(*args, **kwargs)


def _promote(casts: _Casts, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if _eligible(leaf)]
    wide = any(tensor.dtype is torch.float32 for tensor in tensors)
    return _in_type(casts, op, args, kwargs, torch.float32 if wide else torch.get_autocast_dtype("cuda"))


def _norm(casts: _Casts, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    del casts
    if not _eligible(args[0]):
        return op(*args, **kwargs)
    if op is aten.norm.Scalar:
        p = args[1] if len(args) > 1 else kwargs.get("p", 2)
        return aten.norm.ScalarOpt_dtype(args[0], p, dtype=torch.float32)
    names = ("self", "p", "dim", "keepdim")
    given = {"keepdim": False} | dict(zip(names, args, strict=False)) | kwargs
    return aten.norm.ScalarOpt_dim_dtype(*(given[name] for name in names), dtype=torch.float32)


POLICIES: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(LOWER_PRECISION, _lower_precision),
    **dict.fromkeys(FP32, _fp32),
    **dict.fromkeys(FP32_OUT, _fp32_out),
    **dict.fromkeys(PROMOTE, _promote),
    **dict.fromkeys(NORM, _norm),
}
"""Ops by name, and how autocast runs them."""


@contextmanager
def stand_in(library: torch.library.Library) -> Iterator[None]:
    """Autocast to CUDA works for fake tensors inside, for the ops that the installed torch casts."""
    casts = _Casts()
    cast_by_torch = set(torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCUDA"))
    for name, policy in POLICIES.items():
        if f"aten::{name}" in cast_by_torch:
            packet, _, overload = name.partition(".")
            op = getattr(getattr(aten, packet), overload or "default")
            library.impl(name, casts.kernel(op, policy), "AutocastCUDA")
    clear = torch.clear_autocast_cache

    def clear_both() -> None:
        casts.of_weights.clear()
        clear()

    with mock.patch.object(torch, "clear_autocast_cache", clear_both):
        yield
