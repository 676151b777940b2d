//! Scaled dot-product attention: the three kernels that torch chooses from on CUDA.

use super::matmul::matmul;
use super::reduce::softmax;
use super::view::{expand_heads, reshape, transpose};
use super::{dropout, mul_scalar, only, output};
use crate::torch::autocast::lowered;
use crate::torch::autograd::{record, recorded};
use crate::torch::{Dtype, Layout, Tensor};
use smallvec::smallvec;
use std::borrow::Borrow;

/// Which kernel runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SdpaKernel {
    /// `_scaled_dot_product_flash_attention`: half types, no mask, sm80 and later; takes grouped heads as they are.
    Flash,
    /// `_scaled_dot_product_efficient_attention`: any type, takes a mask, but no grouped heads.
    MemoryEfficient,
    /// `_scaled_dot_product_attention_math`: plain ops.
    Math,
}

/// `F.scaled_dot_product_attention(q, k, v, is_causal=True)` of `[b, h, s, d]`; `k` and `v` may have fewer heads.
pub(crate) fn scaled_dot_product_attention(
    q: impl Borrow<Tensor>,
    k: impl Borrow<Tensor>,
    v: impl Borrow<Tensor>,
    kernel: SdpaKernel,
    dropout_p: f64,
) -> Tensor {
    let (q, k, v) = (lowered(q.borrow()), lowered(k.borrow()), lowered(v.borrow()));
    match kernel {
        SdpaKernel::Flash => {
            let lse = q.size(2);
            fused(&q, &k, &v, &FLASH, lse)
        }
        SdpaKernel::MemoryEfficient => {
            let lse = q.size(2).div_ceil(32).saturating_mul(32); // kAlignLSE
            fused(&q, &k, &v, &EFFICIENT, lse)
        }
        SdpaKernel::Math => math(q, k, v, dropout_p),
    }
}

struct Fused {
    forward: &'static str,
    backward: &'static str,
    /// Bytes of the random generator's seed and offset.
    seeds: [u64; 2],
}

const FLASH: Fused = Fused {
    forward: "_scaled_dot_product_flash_attention",
    backward: "_scaled_dot_product_flash_attention_backward",
    seeds: [16, 8],
};

const EFFICIENT: Fused = Fused {
    forward: "_scaled_dot_product_efficient_attention",
    backward: "_scaled_dot_product_efficient_attention_backward",
    seeds: [8, 8],
};

/// A kernel that keeps inputs, output, log-sum-exp and seeds, and makes the three gradients in one op. Everything lies as
/// `[b, s, h, d]`.
fn fused(q: &Tensor, k: &Tensor, v: &Tensor, kernel: &'static Fused, lse: u64) -> Tensor {
    let torch = q.torch();
    let heads_inside = |t: &Tensor| Layout::contiguous(&[t.size(0), t.size(2), t.size(1), t.size(3)]).transpose(1, 2);
    let recorded = recorded(torch, &[q, k, v]);
    let inputs = recorded.then(|| [q.save(), k.save(), v.save()]);
    let attended = output(torch, kernel.forward, heads_inside(q), q.dtype());
    let lse = torch.empty(Layout::contiguous(&[q.size(0), q.size(1), lse]), Dtype::F32);
    let seeds = kernel.seeds.map(|bytes| torch.empty(Layout::contiguous(&[bytes]), Dtype::Byte));
    let Some(inputs) = inputs else { return attended };
    let outputs = [attended.save(), lse.save()];
    let seeds = seeds.map(|seed| seed.save());
    let layouts = [q, k, v].map(heads_inside);
    record(attended, &[q, k, v], move |grads| {
        let _inputs = inputs.each_ref().map(|s| s.unpack());
        let _outputs = outputs.each_ref().map(|s| s.unpack());
        let _seeds = seeds.each_ref().map(|s| s.unpack());
        let Some(grad) = only(grads) else { return smallvec![None, None, None] };
        grad.torch().launch(kernel.backward);
        layouts.iter().map(|layout| Some(grad.torch().empty(*layout, grad.dtype()))).collect()
    })
}

fn math(q: Tensor, k: Tensor, v: Tensor, dropout_p: f64) -> Tensor {
    let times = q.size(1) / k.size(1).max(1);
    let (k, v) = (repeated(k, times), repeated(v, times));
    let scores = matmul(mul_scalar(q), mul_scalar(transpose(k, -2, -1)));
    let dtype = scores.dtype();
    let weights = softmax(scores, dtype);
    matmul(dropout(weights, dropout_p), v)
}

fn repeated(t: Tensor, times: u64) -> Tensor {
    if times == 1 {
        return t;
    }
    let sizes = [t.size(0), t.size(1).saturating_mul(times), t.size(2), t.size(3)];
    reshape(expand_heads(t, times), &sizes)
}
