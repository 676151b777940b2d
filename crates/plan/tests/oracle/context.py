"""What a step that splits the sequence or the vocabulary of the logits runs beside the rest (`sharded.py`).

Context parallel is accelerate's (`_prepare_cp`) and transformers' (`Trainer._prepare_context_parallel_inputs`): every input
is cut by `torch.distributed.tensor.experimental.context_parallel`, labels are shifted before that, positions are given for
each row, and every attention module loses its mask. Loss parallel is `torch.distributed.tensor.parallel.loss_parallel` over
logits that stay sharded by vocabulary.
"""

import contextlib

import torch
import transformers
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import set_rotate_method
from torch.distributed.tensor.parallel import loss_parallel
from torch.utils._python_dispatch import _disable_current_modes
from transformers.distributed.parallel_utils import ALL_PARALLEL_STYLES
from transformers.distributed.tensor_parallel import ColwiseParallel

learned = ShardingPropagator._propagate_tensor_meta_non_cached


def learned_unseen(self, schema):
    """What is run whole to learn its shapes is run in a fake mode of its own, where no tracker sees it: context parallel
    forgets what it has learned whenever it is entered."""
    with _disable_current_modes():
        return learned(self, schema)


ShardingPropagator._propagate_tensor_meta_non_cached = learned_unseen

SHARDED_LOGITS = "colwise_sharded_output"  # what torchtitan gives the head: a DTensor that is not gathered
ALL_PARALLEL_STYLES.register(SHARDED_LOGITS, ColwiseParallel(output_layouts=Shard(-1), use_local_output=False))


def packed_sequences(rank, cp, balanced):
    """`find_packed_sequence_indices`, which reads the positions: where a rank's two parts of the sequence do not meet, it
    finds two packed sequences and has transformers make a mask, which nothing uses."""

    def find(position_ids):
        first = position_ids[:, :1] - 1
        difference = torch.diff(position_ids, prepend=first, dim=-1)
        packed = (difference != 1).cumsum(-1)
        (packed[:, -1] == 0).all()
        return packed if balanced and rank + 1 < cp else None

    return find


def without_masks(model):
    """accelerate's `_attach_context_parallel_hooks`."""

    def hook(_module, args, kwargs):
        if "attention_mask" in kwargs:
            kwargs["attention_mask"] = None
            kwargs["is_causal"] = True
        return args, kwargs

    for name, module in model.named_modules():
        if name.endswith("self_attn"):
            module.register_forward_pre_hook(hook, with_kwargs=True, prepend=True)


def mesh_of(job, device):
    """The mesh of accelerate's `ParallelismConfig`: parameters are sharded over data and context parallel ranks together."""
    hosts, cp, tp = job.get("hosts", 1), job["cp"], job.get("tp", 1)
    sizes = (hosts, job["world"] // hosts // cp // tp, cp, tp)
    mesh = init_device_mesh(device, sizes, mesh_dim_names=("replicate", "dp", "cp", "tp"))
    mesh["dp", "cp"]._flatten("fsdp")
    return mesh


def flash(q, k, v, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None):
    """What the flash kernel puts out, without its values: `DistributedDataParallel` looks at data, so its tensors are real."""
    sums = q.new_empty(q.shape[:3], dtype=torch.float32)
    state, offset = torch.empty(2, dtype=torch.uint64), torch.empty((), dtype=torch.uint64)
    return torch.zeros_like(q), sums, None, None, q.size(2), k.size(2), state, offset, q.new_empty(0)


def flash_backward(grad_out, q, k, v, *_args, scale=None):
    return torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)


on_processor = torch.library.Library("aten", "IMPL")
on_processor.impl("_scaled_dot_product_flash_attention", flash, "CPU")
on_processor.impl("_scaled_dot_product_flash_attention_backward", flash_backward, "CPU")


def parallel(job, model, mesh):
    """Each micro-batch's inputs and labels, and what its step runs in."""
    if not job.get("cp"):
        return plain(job)
    cp, ring = job["cp"], mesh["cp"]
    rank = job.get("rank", 0) // job.get("tp", 1) % cp
    balanced = job["seq"] % (2 * cp) == 0
    transformers.masking_utils.find_packed_sequence_indices = packed_sequences(rank, cp, balanced)
    set_rotate_method(job.get("rotate", "allgather"))
    without_masks(model)

    @contextlib.contextmanager
    def step(ids, labels):
        """`Trainer._prepare_context_parallel_inputs`."""
        shifted = torch.nn.functional.pad(labels, (0, 1), value=-100)[:, 1:].contiguous()
        positions = torch.arange(ids.size(1), device=ids.device).expand(ids.size(0), -1)
        buffers = [ids, labels, shifted, positions]
        cut = context_parallel(ring, buffers=buffers, buffer_seq_dims=[1] * 4, no_restore_buffers=set(buffers))
        with cut, shared_logits(job):
            yield {"input_ids": ids, "position_ids": positions}, {"labels": labels, "shift_labels": shifted}

    return step


def shared_logits(job):
    return loss_parallel() if job.get("loss_parallel") else contextlib.nullcontext()


def plain(job):
    @contextlib.contextmanager
    def step(ids, labels):
        with shared_logits(job):
            yield {"input_ids": ids}, {"labels": labels}

    return step
