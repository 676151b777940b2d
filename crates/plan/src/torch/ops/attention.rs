//! Scaled dot-product attention: the three kernels that torch chooses from on CUDA.

use super::matmul::product;
use super::pointwise::scale;
use super::reduce::safe_softmax;
use super::view::{constant_pad, expand_heads, reshape, slice_last, transpose};
use super::{add, additive_mask, constant_pad_last, dropout, output, to};
use crate::torch::autocast::lowered;
use crate::torch::autograd::{record, recorded};
use crate::torch::cost::product_flops;
use crate::torch::{Dtype, Layout, Tensor, Torch, kernel};
use std::rc::Rc;

/// Which kernel runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SdpaKernel {
    /// `_scaled_dot_product_flash_attention`: half types, no mask, sm80 and later; takes grouped heads as they are, and heads
    /// padded to a multiple of 8.
    Flash,
    /// `_scaled_dot_product_efficient_attention`: any type, takes a mask, but no grouped heads.
    MemoryEfficient,
    /// `_scaled_dot_product_attention_math`: plain ops.
    Math,
}

/// `F.scaled_dot_product_attention(q, k, v, mask)` of `[b, h, s, d]`; without a mask it is causal, and `k` and `v` may have
/// fewer heads. A mask of booleans becomes one of numbers first; only the memory-efficient kernel takes it.
pub(crate) fn scaled_dot_product_attention(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    mask: Option<&Tensor>,
    kernel: SdpaKernel,
    dropout_p: f64,
) -> Tensor {
    let (q, k, v) = (lowered(q), lowered(k), lowered(v));
    if let Some(mask) = mask {
        let bias = additive_mask(mask, q.dtype(), ["scalar_tensor"; 2]);
        return efficient(&q, &k, &v, Some(&aligned(bias)));
    }
    match kernel {
        SdpaKernel::Flash => {
            let width = q.size(-1);
            let [q, k, v] = [&q, &k, &v].map(|t| constant_pad(t, width.div_ceil(8).saturating_mul(8)));
            let layouts = [&q, &k, &v].map(|t| t.layout().preserved());
            let attended = q.layout().preserved();
            let attended = fused([&q, &k, &v], None, &FLASH, q.size(2), attended, layouts);
            if attended.size(-1) == width { attended } else { slice_last(&attended, width) }
        }
        SdpaKernel::MemoryEfficient => efficient(&q, &k, &v, None),
        SdpaKernel::Math => math(&q, &k, &v, dropout_p),
    }
}

fn efficient(q: &Tensor, k: &Tensor, v: &Tensor, bias: Option<&Tensor>) -> Tensor {
    let lse = q.size(2).div_ceil(32).saturating_mul(32); // kAlignLSE
    // everything lies as `[b, s, h, d]`
    let inside =
        |t: &Tensor| Layout::contiguous(&[t.size(0), t.size(2), t.size(1), t.size(3)]).transpose(1, 2);
    let attended = Layout::contiguous(&[q.size(0), q.size(2), q.size(1), v.size(3)]).transpose(1, 2);
    fused([q, k, v], bias, &EFFICIENT, lse, attended, [q, k, v].map(inside))
}

/// The bias in rows of a multiple of 8, as the kernel wants them (`preprocess_mask`).
fn aligned(bias: Tensor) -> Tensor {
    match bias.size(-1) % 8 {
        0 => bias,
        over => constant_pad_last(&bias, 8 - over),
    }
}

struct Fused {
    forward: &'static str,
    backward: &'static str,
    /// Bytes of the random generator's seed and offset.
    seeds: [u64; 2],
    /// What the backward kernel allocates for itself, of queries and keys.
    scratch: fn(&Tensor, &Tensor) -> Vec<Tensor>,
}

const FLASH: Fused = Fused {
    forward: "_scaled_dot_product_flash_attention",
    backward: "_scaled_dot_product_flash_attention_backward",
    seeds: [16, 8],
    scratch: kernel::flash_backward,
};

const EFFICIENT: Fused = Fused {
    forward: "_scaled_dot_product_efficient_attention",
    backward: "_scaled_dot_product_efficient_attention_backward",
    seeds: [8, 8],
    scratch: kernel::memory_efficient_backward,
};

/// A kernel that keeps inputs, output, log-sum-exp and seeds, and makes the three gradients in one op, each as `layouts` has
/// it.
fn fused(
    inputs: [&Tensor; 3],
    bias: Option<&Tensor>,
    kernel: &'static Fused,
    lse: u64,
    attended: Layout,
    layouts: [Layout; 3],
) -> Tensor {
    let [q, _k, _v] = inputs;
    let torch = q.torch();
    let recorded = recorded(torch, &inputs);
    let saved = recorded.then(|| (inputs.map(Tensor::save), bias.map(Tensor::save)));
    let [attended, lse, seed, offset] = torch.selected(|| {
        torch.launch(kernel.forward);
        torch.multiplies(attention_flops([1, 1], inputs, 2), q.dtype());
        torch.reads(&inputs);
        bias.into_iter().for_each(|bias| torch.reads(&[bias]));
        let attended = torch.empty(attended, q.dtype());
        let lse = torch.empty(Layout::contiguous(&[q.size(0), q.size(1), lse]), Dtype::F32);
        let [seed, offset] = kernel.seeds.map(|bytes| torch.empty(Layout::contiguous(&[bytes]), Dtype::Byte));
        [attended, lse, seed, offset]
    });
    let Some(saved) = saved else { return attended };
    let outputs = [attended.save(), lse.save()];
    let seeds = [seed, offset].map(|seed| seed.save());
    record(attended, &inputs, move |grad| {
        let ([q, k, v], bias) =
            (saved.0.each_ref().map(|s| s.unpack()), saved.1.as_ref().map(|s| s.unpack()));
        let [attended, lse] = outputs.each_ref().map(|s| s.unpack());
        let _seeds = seeds.each_ref().map(|s| s.unpack());
        let torch = grad.torch();
        torch.launch(kernel.backward);
        torch.multiplies(attention_flops([3, 2], [&q, &k, &v], 2), grad.dtype());
        torch.reads(&[grad, &q, &k, &v, &attended, &lse]);
        bias.iter().for_each(|bias| torch.reads(&[bias]));
        let _scratch = (kernel.scratch)(&q, &k);
        layouts.iter().map(|layout| Some(torch.empty(layout.clone(), grad.dtype()))).collect()
    })
}

/// The FLOPs of so many products of all queries with all keys, and of so many over the width of values. Forward makes one of
/// each; backward makes the scores again and two products for the gradients of each. `length` is the dimension of keys.
pub(crate) fn attention_flops(
    [of_keys, of_values]: [u128; 2],
    [q, k, v]: [&Tensor; 3],
    length: isize,
) -> u128 {
    let scores = product_flops(q.layout().numel(), k.size(length));
    let rows = q.layout().numel() / q.size(-1).max(1);
    let with_values = product_flops(rows.saturating_mul(v.size(-1)), k.size(length));
    of_keys.saturating_mul(scores).saturating_add(of_values.saturating_mul(with_values))
}

/// `_scaled_dot_product_attention_math` (`aten/src/ATen/native/transformers/attention.cpp`): half types are computed in
/// fp32, both factors are scaled, and the attention weights are cast back although nobody asks for them.
fn math(q: &Tensor, k: &Tensor, v: &Tensor, dropout_p: f64) -> Tensor {
    let torch = q.torch();
    let dtype = q.dtype();
    let unscaled = to(q, Dtype::F32);
    let key = to(k, Dtype::F32);
    let value = to(v, Dtype::F32);
    let query = scale(&unscaled);
    let mask = square_causal_mask(torch, q.size(2));
    let groups = q.size(1) / k.size(1).max(1);
    let key = (repeated(&key, groups), key); // the grouped ones stay beside the repeated ones
    let value = (repeated(&value, groups), value);
    let mut weights = product(&query, scale(transpose(&key.0, -2, -1)));
    weights = add(&weights, &mask);
    weights = safe_softmax(&weights);
    weights = dropout(&weights, dropout_p);
    let _returned_weights = to(&weights, dtype);
    to(product(&weights, &value.0), dtype)
}

/// A lower triangle of zeros under minus infinity, `[s, s]` in fp32.
fn square_causal_mask(torch: &Rc<Torch>, length: u64) -> Tensor {
    let square = Layout::contiguous(&[length, length]);
    let scalar = || output(torch, "scalar_tensor", Layout::contiguous(&[]), Dtype::F32);
    let ones = output(torch, "ones", square.clone(), Dtype::Bool);
    let lower = output(torch, "tril", square.clone(), Dtype::Bool);
    drop(ones);
    let fills = [scalar(), scalar()];
    let mask = output(torch, "where.self", square, Dtype::F32);
    drop((lower, fills));
    mask
}

/// `[b, h, s, d]` with each head `groups` times (`repeat_interleave`).
fn repeated(t: &Tensor, groups: u64) -> Tensor {
    if groups == 1 {
        return t.clone();
    }
    let sizes = [t.size(0), t.size(1).saturating_mul(groups), t.size(2), t.size(3)];
    reshape(expand_heads(t, groups), &sizes)
}
