"""What stands for the card, and what torch's trackers see of it.

Tensors are fake (`FakeTensorMode`). They lie on "cpu", which needs nothing, and what differs on a card is answered here:
storages are rounded up to 512 B, attention is the kernel that a card would run, layer norms and dropout keep what they keep on
one, and the step counts that an optimizer keeps on the host are none of the card's. Autocast alone asks for the device itself,
as each kind has ops of its own that it casts: `CARD=cuda` lays the tensors there, on a machine whose driver autograd finds.
"""

import contextlib
import math
import os

import kernels
import torch
import torch.distributed as dist
import torch.nn.functional as F
import transformers
from torch._subclasses import fake_impls
from torch.distributed._tools import fake_collectives  # noqa: F401  (gives collectives their meta kernels)
from torch.distributed._tools import mem_tracker
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

CARD = os.environ.get("CARD", "cpu")
transformers.logging.set_verbosity_error()
# this reads the data, finds one sequence a row and returns None; fake tensors have no data to read
transformers.masking_utils.find_packed_sequence_indices = lambda position_ids: None
torch.cuda.get_device_capability = lambda *_: (9, 0)  # grouped matmul asks; an H100's
torch.cuda.amp.common.amp_definitely_not_available = lambda: False
torch.cuda.is_bf16_supported = lambda *_, **__: True


def rounded(info):
    return math.ceil(info.size * info.element_size / 512) * 512


mem_tracker._WeakRefInfo._calculate_mem_consumed = rounded

KERNEL = [None]  # "efficient": a card that has no flash attention


def attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    if torch.is_autocast_enabled(CARD):  # its casts lie before the kernels, which are called themselves here
        q, k, v = (x.to(torch.get_autocast_dtype(CARD)) for x in (q, k, v))
    has_flash = KERNEL[0] != "efficient"
    return kernels.attention(q, k, v, attn_mask, dropout_p, is_causal, scale, has_flash=has_flash)


attention.__name__ = "scaled_dot_product_attention"  # by which context parallel puts its own in its place
F.scaled_dot_product_attention = torch.nn.functional.scaled_dot_product_attention = attention


def layer_norm(_mode, _op, input, normalized, *_):
    """Statistics are in fp32 on a card (`acc_type`, `native/cuda/layer_norm_kernel.cu`), in the input's type on a processor."""
    rows = [*input.shape[: input.dim() - len(normalized)], *(1 for _ in normalized)]
    return torch.empty_like(input), *(input.new_empty(rows, dtype=torch.float32) for _ in range(2))


fake_impls.op_implementations_dict[torch.ops.aten.native_layer_norm.default] = layer_norm

dropped = F.dropout


def dropout(input, p=0.5, training=True, inplace=False):
    """A card runs one kernel, whose mask is of bytes (`is_fused_kernel_acceptable`, `native/Dropout.cpp`)."""
    fused = training and 0 < p < 1 and not inplace
    return torch.native_dropout(input, p, True)[0] if fused else dropped(input, p, training, inplace)


F.dropout = torch.nn.functional.dropout = dropout


class Nothing:
    def remove(self):
        pass


# the trackers hook every parameter; a frozen one has no gradient to hook
for hook in ("register_hook", "register_post_accumulate_grad_hook"):
    original = getattr(torch.Tensor, hook)

    def on_trained(self, act, original=original):
        return original(self, act) if self.requires_grad else Nothing()

    setattr(torch.Tensor, hook, on_trained)

STEPPING = []  # the optimizer, once there is one


def on_card(tracker):
    """What is on the card: not what DTensors ask of the meta device, nor the step counts that an optimizer keeps on the host."""
    totals = (held["Total"] for device, held in tracker._curr_mem_snap.items() if device.type == CARD)
    on_host = (stepper for stepper in STEPPING if CARD == "cpu" and not stepper.defaults.get("fused"))
    return sum(totals) - 512 * sum("step" in state for stepper in on_host for state in stepper.state.values())


def total_only(tracker, _state):
    tracker.largest = max(getattr(tracker, "largest", 0), on_card(tracker))


mem_tracker.MemTracker._update_peak_stats = total_only


class Phases:
    """Each phase's largest total and the total when it ends; and what ran in it, where a log is kept."""

    def __init__(self, tracker, log=None):
        self.tracker, self.log, self.rows = tracker, log, []

    @contextlib.contextmanager
    def __call__(self, name):
        self.tracker.largest = on_card(self.tracker)
        if self.log:
            self.log.phase = name
        yield
        self.rows.append([name, self.tracker.largest, on_card(self.tracker)])


class Log(TorchDispatchMode):
    """Every op: its phase, the module that it ran in, its name, what it put out, and the total after it."""

    MARKERS = ("prim.device", "profiler._record_function")

    def __init__(self, tracker):
        super().__init__()
        self.tracker, self.phase, self.rows = tracker, "", []

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        if any(kind.__name__ == "DTensor" for kind in types):
            return NotImplemented
        result = op(*args, **(kwargs or {}))
        name = str(op).removeprefix("aten.")
        if not name.startswith(self.MARKERS):
            modules = [module for module in self.tracker._mod_tracker.parents if module != "Global"]
            outputs = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
            outputs = [[str(x.dtype).removeprefix("torch."), list(x.shape)] for x in outputs]
            row = [self.phase, max(modules, key=len, default=""), name, outputs, on_card(self.tracker)]
            self.rows.append(row)
        return result


def summed(_state, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The hook of DDP that takes a bucket as it is: torch's fake group leaves no result."""
    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done
