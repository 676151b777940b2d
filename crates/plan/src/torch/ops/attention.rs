//! Scaled dot-product attention: the three kernels that torch chooses from on CUDA.

use super::matmul::product;
use super::pointwise::scale;
use super::reduce::safe_softmax;
use super::ring::{Ring, ring_attention};
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
/// fewer heads. A mask of booleans becomes one of numbers first; only the memory-efficient kernel takes it. Where context
/// parallel ranks share a sequence, keys and values go round.
pub(crate) fn scaled_dot_product_attention(
    inputs: [&Tensor; 3],
    mask: Option<&Tensor>,
    (kernel, ring): (SdpaKernel, Option<Ring>),
    dropout_p: f64,
) -> Tensor {
    let [q, k, v] = inputs.map(lowered);
    if let Some(mask) = mask {
        let bias = additive_mask(mask, q.dtype(), ["scalar_tensor"; 2]);
        return fused([&q, &k, &v], Some(&aligned(bias)), &EFFICIENT);
    }
    let kernel = match kernel {
        SdpaKernel::Flash => &FLASH,
        SdpaKernel::MemoryEfficient => &EFFICIENT,
        SdpaKernel::Math => return math(&q, &k, &v, dropout_p),
    };
    match ring {
        None => padded([&q, &k, &v], kernel, |inputs| fused(inputs, None, kernel)),
        Some(ring) => padded([&q, &k, &v], kernel, |inputs| ring_attention(inputs, kernel, ring)),
    }
}

/// Runs attention over heads as wide as the kernel takes them: flash a multiple of 8 (`pad_last_dim`).
fn padded(inputs: [&Tensor; 3], kernel: &Fused, attention: impl FnOnce([&Tensor; 3]) -> Tensor) -> Tensor {
    let [_, _, v] = inputs;
    let width = v.size(-1);
    let [q, k, v] = inputs.map(|t| constant_pad(t, t.size(-1).next_multiple_of(kernel.widths)));
    let attended = attention([&q, &k, &v]);
    if attended.size(-1) == width { attended } else { slice_last(&attended, width) }
}

/// The bias in rows of a multiple of 8, as the kernel wants them (`preprocess_mask`).
fn aligned(bias: Tensor) -> Tensor {
    match bias.size(-1) % 8 {
        0 => bias,
        over => constant_pad_last(&bias, 8 - over),
    }
}

/// A fused kernel: it keeps inputs, output, log-sum-exp and seeds, and makes the three gradients in one op.
pub(super) struct Fused {
    forward: &'static str,
    backward: &'static str,
    /// Bytes of the random generator's seed and offset.
    seeds: [u64; 2],
    /// The number of log-sums of a head for so many queries.
    log_sums: fn(u64) -> u64,
    /// What it takes heads to be a multiple of.
    widths: u64,
    /// How what it makes like a tensor of `[b, h, s, d]` lies in memory.
    like: fn(&Layout) -> Layout,
    /// What the backward kernel allocates for itself, of queries and keys.
    scratch: fn(&Tensor, &Tensor) -> Vec<Tensor>,
}

pub(super) const FLASH: Fused = Fused {
    forward: "_scaled_dot_product_flash_attention",
    backward: "_scaled_dot_product_flash_attention_backward",
    seeds: [16, 8],
    log_sums: |queries| queries,
    widths: 8,
    like: Layout::preserved,
    scratch: kernel::flash_backward,
};

pub(super) const EFFICIENT: Fused = Fused {
    forward: "_scaled_dot_product_efficient_attention",
    backward: "_scaled_dot_product_efficient_attention_backward",
    seeds: [8, 8],
    log_sums: |queries| queries.div_ceil(32).saturating_mul(32), // kAlignLSE
    widths: 1,
    like: as_tokens,
    scratch: kernel::memory_efficient_backward,
};

/// `[b, h, s, d]` that lies as `[b, s, h, d]`.
fn as_tokens(layout: &Layout) -> Layout {
    let [b, h, s, d] = [0, 1, 2, 3].map(|dim| layout.size(dim));
    Layout::contiguous(&[b, s, h, d]).transpose(1, 2)
}

impl Fused {
    /// The attended states, log-sums, seed and offset.
    pub(super) fn run(&self, [q, k, v]: [&Tensor; 3], bias: Option<&Tensor>) -> [Tensor; 4] {
        let torch = q.torch();
        torch.launch(self.forward);
        torch.multiplies(attention_flops([1, 1], [q, k, v], 2), q.dtype());
        torch.reads(&[q, k, v]);
        bias.into_iter().for_each(|bias| torch.reads(&[bias]));
        let values_wide = Layout::contiguous(&[q.size(0), q.size(1), q.size(2), v.size(3)]);
        let like_q = if v.size(3) == q.size(3) { q.layout() } else { &values_wide };
        let attended = torch.empty((self.like)(like_q), q.dtype());
        let log_sums = Layout::contiguous(&[q.size(0), q.size(1), (self.log_sums)(q.size(2))]);
        let log_sums = torch.empty(log_sums, Dtype::F32);
        let [seed, offset] = self.seeds.map(|bytes| torch.empty(Layout::contiguous(&[bytes]), Dtype::Byte));
        [attended, log_sums, seed, offset]
    }

    /// How the gradients of these lie in memory.
    pub(super) fn grads_like(&self, inputs: [&Tensor; 3]) -> [Layout; 3] {
        inputs.map(|t| (self.like)(t.layout()))
    }

    /// The gradients of queries, keys and values.
    pub(super) fn run_backward(
        &self,
        grad: &Tensor,
        [q, k, v]: [&Tensor; 3],
        [attended, log_sums]: [&Tensor; 2],
        bias: Option<&Tensor>,
        layouts: &[Layout; 3],
    ) -> [Tensor; 3] {
        let torch = grad.torch();
        torch.launch(self.backward);
        torch.multiplies(attention_flops([3, 2], [q, k, v], 2), grad.dtype());
        torch.reads(&[grad, q, k, v, attended, log_sums]);
        bias.into_iter().for_each(|bias| torch.reads(&[bias]));
        let _scratch = (self.scratch)(q, k);
        layouts.each_ref().map(|layout| torch.empty(layout.clone(), grad.dtype()))
    }
}

/// Attention by one kernel.
fn fused(inputs: [&Tensor; 3], bias: Option<&Tensor>, kernel: &'static Fused) -> Tensor {
    let torch = inputs[0].torch();
    let recorded = recorded(torch, &inputs);
    let saved = recorded.then(|| (inputs.map(Tensor::save), bias.map(Tensor::save)));
    let [attended, log_sums, seed, offset] = torch.selected(|| kernel.run(inputs, bias));
    let Some((saved, bias)) = saved else { return attended };
    let outputs = [attended.save(), log_sums.save()];
    let seeds = [seed, offset].map(|seed| seed.save());
    let layouts = kernel.grads_like(inputs);
    record(attended, &inputs, move |grad| {
        let ([q, k, v], bias) = (saved.each_ref().map(|s| s.unpack()), bias.as_ref().map(|s| s.unpack()));
        let [attended, log_sums] = outputs.each_ref().map(|s| s.unpack());
        let _seeds = seeds.each_ref().map(|s| s.unpack());
        let grads = kernel.run_backward(grad, [&q, &k, &v], [&attended, &log_sums], bias.as_ref(), &layouts);
        grads.into_iter().map(Some).collect()
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
