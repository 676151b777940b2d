"""Each thing that stands in for CUDA, by itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from peakledger.tracing import autocast
from peakledger.tracing.stand_in import COMPOSITES, Device, stand_in

pytestmark = pytest.mark.torch


class Ops(Device):
    """Keeps the names of the ops that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def call(self, func, args, kwargs):  # type: ignore[no-untyped-def]
        self.names.append(str(func).removeprefix("aten.").removesuffix(".default"))
        return super().call(func, args, kwargs)


@pytest.fixture
def ops() -> Iterator[Ops]:
    with stand_in(), FakeTensorMode(), torch.device("cuda"), Ops() as ops:
        yield ops


def test_backward_runs_on_the_fake_card(ops: Ops) -> None:
    weight = torch.ones(4, 4, requires_grad=True)
    (weight @ weight).sum().backward()
    assert weight.grad is not None and weight.grad.device.type == "cuda"


def test_dropout_keeps_a_mask_of_bytes(ops: Ops) -> None:
    x = torch.ones(4, 4, requires_grad=True)
    out = functional.dropout(x, 0.5)
    assert "native_dropout" in ops.names
    assert out.grad_fn._saved_result1.dtype is torch.bool


@pytest.mark.parametrize(
    ("dtype", "mask", "width", "capability", "kernel"),
    [
        (torch.bfloat16, False, 64, (9, 0), "_scaled_dot_product_flash_attention"),
        (torch.bfloat16, False, 20, (9, 0), "_scaled_dot_product_flash_attention"),
        (torch.bfloat16, True, 64, (9, 0), "_scaled_dot_product_efficient_attention"),
        (torch.float32, False, 64, (9, 0), "_scaled_dot_product_efficient_attention"),
        (torch.float16, False, 64, (7, 5), "_scaled_dot_product_efficient_attention"),
        (torch.float64, False, 64, (9, 0), "_safe_softmax"),
    ],
)
def test_the_attention_kernel_is_the_cards(
    dtype: torch.dtype, mask: bool, width: int, capability: tuple[int, int], kernel: str
) -> None:
    with stand_in(capability), FakeTensorMode(), torch.device("cuda"), Ops() as ops:
        query = torch.ones(2, 4, 8, width, dtype=dtype, requires_grad=True)
        ones = torch.ones(2, 1, 8, 8, dtype=torch.bool) if mask else None
        out = functional.scaled_dot_product_attention(query, query, query, ones)
        assert out.shape == query.shape and kernel in ops.names
        out.sum().backward()


def test_grouped_heads_in_float32_take_the_math_path(ops: Ops) -> None:
    query, key = torch.ones(1, 4, 8, 64, requires_grad=True), torch.ones(1, 2, 8, 64)
    functional.scaled_dot_product_attention(query, key, key, enable_gqa=True)
    assert "_scaled_dot_product_efficient_attention" not in ops.names


def test_softmax_of_half_into_float_is_one_kernel(ops: Ops) -> None:
    x = torch.ones(4, dtype=torch.float16, requires_grad=True)
    ops.names.clear()
    assert functional.softmax(x, -1, dtype=torch.float32).dtype is torch.float32
    assert functional.log_softmax(x, -1, dtype=torch.float32).dtype is torch.float32
    assert "_to_copy" not in ops.names


def test_to_the_same_device_copies_nothing(ops: Ops) -> None:
    x, y = torch.ones(4), torch.ones(4)
    assert x.to("cuda") is not None and x.to("cuda").untyped_storage()._cdata == x.untyped_storage()._cdata
    assert x.to(y).untyped_storage()._cdata == x.untyped_storage()._cdata
    assert "_to_copy" not in ops.names
    host = x.cpu()
    assert host.device.type == "cpu" and host.cuda().device.type == "cuda" and host.to(y).device.type == "cuda"
    assert ops.names.count("_to_copy") == 3


def test_what_autograd_fills_in_is_on_the_card(ops: Ops) -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):  # type: ignore[no-untyped-def]
            return x * 2, x * 3

        @staticmethod
        def backward(ctx, first, second):  # type: ignore[no-untyped-def]
            return first + second

    x = torch.ones(4, requires_grad=True)
    Twice.apply(x)[0].sum().backward()
    assert x.grad is not None and x.grad.device.type == "cuda"


def test_one_hot_looks_at_no_values(ops: Ops) -> None:
    assert functional.one_hot(torch.ones(3, dtype=torch.long), 5).shape == (3, 5)


def test_foreach_is_the_default_of_optimizers_and_of_clipping(ops: Ops) -> None:
    model = nn.Linear(4, 4)
    model(torch.ones(1, 4)).sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    torch.optim.AdamW(model.parameters()).step()
    assert {"_foreach_norm.Scalar", "_foreach_sqrt"} <= set(ops.names)


def test_a_checkpoint_is_of_the_cards_device(ops: Ops) -> None:
    seen: list[bool] = []

    def run(x: torch.Tensor) -> torch.Tensor:
        seen.append(torch.is_autocast_enabled("cuda"))
        return x.sin()

    x = torch.ones(4, requires_grad=True)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = torch.utils.checkpoint.checkpoint(run, x, use_reentrant=False)
    out.sum().backward()
    assert seen == [True, True]


def test_values_that_are_read_back_are_one_and_noted(ops: Ops) -> None:
    assert torch.ones(()).mul(2).item() == 1.0
    assert list(ops.notes) == ["a value was read back from a tensor; it was taken to be 1"]


def test_autocast_casts_by_cudas_lists(ops: Ops) -> None:
    x = torch.ones(4, 4, requires_grad=True)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert (x @ x).dtype is torch.bfloat16
        half = x.bfloat16()
        assert torch.einsum("ij,jk->ik", x, x).dtype is torch.bfloat16
        assert half.softmax(-1).dtype is half.exp().dtype is half.sum().dtype is torch.float32
        assert functional.layer_norm(half, (4,)).dtype is torch.float32
        assert torch.addcmul(half, half, x).dtype is torch.float32
        assert torch.addcmul(half, half, half).dtype is torch.bfloat16
        assert half.norm().dtype is torch.float32
        assert (half + half).dtype is torch.bfloat16
        with torch.autocast("cuda", enabled=False):
            assert (x @ x).dtype is torch.float32
        (x @ x).float().sum().backward()
    assert x.grad is not None and x.grad.dtype is torch.float32


def test_autocast_casts_a_weight_once_and_lets_go_of_it_at_its_end(ops: Ops) -> None:
    linear, x = nn.Linear(4, 4, bias=False), torch.ones(4, 4, dtype=torch.bfloat16)
    for _ in range(2):
        ops.names.clear()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            linear(x), linear(x)
        assert ops.names.count("_to_copy") == 1


def test_the_lists_of_autocast_are_those_of_the_installed_torch() -> None:
    header = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
    text = header.read_text(encoding="utf-8")

    def listed(name: str) -> set[str]:
        body = re.search(rf"#define AT_FORALL_{name}\(_\)(.*?)\n\n", text, re.DOTALL)
        assert body, name
        entries = {re.sub(r",\s*", ".", entry) for entry in re.findall(r"_\(([\w, ]+)\)", body.group(1))}
        return {entry for entry in entries if "imname" not in entry}  # named tensors, which an older torch has

    cast = set(torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCUDA"))
    for name, ours in (
        ("LOWER_PRECISION_FP", autocast.LOWER_PRECISION),
        ("FP32", autocast.FP32),
        ("FP32_SET_OPT_DTYPE", autocast.FP32_OUT),
        ("PROMOTE", autocast.PROMOTE),
    ):
        assert listed(name) <= set(ours)
        newer = set(ours) - listed(name)  # what a newer torch casts, and this one does not know
        assert not {f"aten::{op}" for op in newer} & cast


def test_afterwards_everything_is_as_it_was() -> None:
    def kernels() -> list[bool]:
        has = torch._C._dispatch_has_kernel_for_dispatch_key
        return [has(f"aten::{name}", "AutogradCUDA") for name in COMPOSITES]

    before = kernels()
    capability = torch.cuda.get_device_capability
    with stand_in():
        assert all(kernels())
    assert kernels() == before and torch.cuda.get_device_capability is capability
    weight = torch.ones(3, 3, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert functional.dropout(weight @ weight, 0.1).dtype is torch.bfloat16
