"""The attention kernels of a card."""

import torch


def attention(q, k, v, attn_mask, dropout_p, is_causal, scale, *, has_flash=True):
    """Flash for half types without a mask, else the memory-efficient kernel over repeated heads."""
    if q.dtype is not torch.float32 and attn_mask is None and has_flash:
        return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, dropout_p, is_causal, False, scale=scale)[0]
    if k.size(1) != q.size(1):
        k, v = (x.repeat_interleave(q.size(1) // k.size(1), 1) for x in (k, v))
    return torch.ops.aten._scaled_dot_product_efficient_attention(
        q, k, v, attn_mask, True, dropout_p, is_causal, scale=scale
    )[0]
