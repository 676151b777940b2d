//! Rotary position embedding as the transformers modules write it.

use super::Builder;
use crate::torch::{Dtype, Layout, ModuleId, Tensor, ops};

/// The tables of cosines and sines, made anew in each forward pass.
pub(crate) struct RotaryEmbedding {
    module: ModuleId,
    inv_freq: Tensor,
}

impl RotaryEmbedding {
    /// Tables for heads of `width`. Two fp32 buffers of half that length: the frequencies and their original.
    pub(crate) fn new(build: &mut Builder, parent: ModuleId, width: u64) -> RotaryEmbedding {
        let module = build.module(parent, "rotary_emb");
        let inv_freq = build.buffer(module, "inv_freq", &[width / 2]);
        build.buffer(module, "original_inv_freq", &[width / 2]);
        RotaryEmbedding { module, inv_freq }
    }

    /// `(cos, sin)` of `[1, s, width]` for positions `[1, s]`, in that type.
    pub(crate) fn forward(&self, positions: &Tensor, dtype: Dtype) -> (Tensor, Tensor) {
        self.inv_freq.torch().inside(self.module, || {
            let length = positions.size(1);
            let column = positions.alias(Layout::contiguous(&[1, length, 1]));
            let freqs = ops::mul(ops::to(column, Dtype::F32), &self.inv_freq);
            let emb = ops::cat_last(&freqs, &freqs);
            let cos = ops::mul_scalar(ops::cos(&emb));
            let sin = ops::mul_scalar(ops::sin(&emb));
            (ops::to(&cos, dtype), ops::to(&sin, dtype))
        })
    }
}

/// `apply_rotary_pos_emb`: queries and keys of `[b, h, s, d]` turned.
pub(crate) fn apply_rotary(q: &Tensor, k: &Tensor, (cos, sin): &(Tensor, Tensor)) -> (Tensor, Tensor) {
    let (cos, sin) = (ops::unsqueeze(cos, 1), ops::unsqueeze(sin, 1));
    let turn = |x: &Tensor| ops::add(ops::mul(x, &cos), ops::mul(rotate_half(x), &sin));
    (turn(q), turn(k))
}

fn rotate_half(x: &Tensor) -> Tensor {
    let half = x.size(-1) / 2;
    let first = ops::slice_last(x, half);
    let second = ops::slice_last(x, x.size(-1).saturating_sub(half));
    ops::cat_last(ops::neg(&second), &first)
}
