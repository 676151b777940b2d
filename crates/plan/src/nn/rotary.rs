//! Rotary position embedding as the transformers modules write it.

use super::Builder;
use crate::torch::{Dtype, Layout, ModuleId, Tensor, ops};

/// The tables of cosines and sines, made anew in each forward pass.
pub(crate) struct RotaryEmbedding {
    module: ModuleId,
    inv_freq: Tensor,
    _original_inv_freq: Tensor,
}

impl RotaryEmbedding {
    /// Tables for heads of which `width` is turned. Two fp32 buffers of half that length: the frequencies and their
    /// original.
    pub(crate) fn new(
        build: &mut Builder,
        module: ModuleId,
        names: [&'static str; 2],
        width: u64,
    ) -> RotaryEmbedding {
        let [inv_freq, _original_inv_freq] =
            names.map(|name| build.buffer(module, name, &[width / 2], Dtype::F32));
        RotaryEmbedding { module, inv_freq, _original_inv_freq }
    }

    /// `(cos, sin)` of `[1, s, width]` for positions `[1, s]`, in that type; of each row, where each has its own.
    pub(crate) fn forward(&self, positions: &Tensor, dtype: Dtype) -> (Tensor, Tensor) {
        self.inv_freq.torch().inside(self.module, || {
            positions.seen();
            let column = positions.alias(Layout::contiguous(&[positions.size(0), positions.size(1), 1]));
            let freqs = ops::mul(ops::to(column, Dtype::F32), &self.inv_freq);
            let emb = ops::cat_last(&freqs, &freqs);
            let cos = ops::mul_scalar(ops::cos(&emb));
            let sin = ops::mul_scalar(ops::sin(&emb));
            (ops::to(&cos, dtype), ops::to(&sin, dtype))
        })
    }
}

/// How much of a head is turned: `int(head_dim * share)`.
#[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, clippy::cast_sign_loss)] // a share from 0 to 1 of a checked width
pub(crate) fn partial_width(head_dim: u64, share: f64) -> u64 {
    ((head_dim as f64 * share) as u64).min(head_dim)
}

/// `apply_rotary_pos_emb`: queries and keys of `[b, h, s, d]` turned.
pub(crate) fn apply_rotary(q: &Tensor, k: &Tensor, (cos, sin): &(Tensor, Tensor)) -> (Tensor, Tensor) {
    let (cos, sin) = (ops::unsqueeze(cos, 1), ops::unsqueeze(sin, 1));
    (turned(q, &cos, &sin), turned(k, &cos, &sin))
}

/// `apply_rotary_pos_emb_interleave`: the same where the two halves of a pair lie side by side.
pub(crate) fn apply_interleaved_rotary(
    q: &Tensor,
    k: &Tensor,
    (cos, sin): &(Tensor, Tensor),
) -> (Tensor, Tensor) {
    let [cos, sin] = [cos, sin].map(|table| ops::unsqueeze(ops::slice_last(table, table.size(-1) / 2), 1));
    let turned = |[first, second]: &[Tensor; 2]| {
        let left = ops::sub(ops::mul(first, &cos), ops::mul(second, &sin));
        let right = ops::add(ops::mul(second, &cos), ops::mul(first, &sin));
        ops::cat_last(left, right)
    };
    let [q, k] = [q, k].map(|x| [0, 1].map(|_| ops::every_other_last(x)));
    (turned(&q), turned(&k))
}

/// When a head that is turned in part is put together again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rejoin {
    /// Queries before keys are turned (phi3).
    EachAtOnce,
    /// After both are turned (gpt_neox).
    AfterBoth,
}

/// The same where the tables are narrower than a head: what is not turned is joined to it again, and so is nothing where
/// they are as wide.
pub(crate) fn apply_partial_rotary(
    q: &Tensor,
    k: &Tensor,
    (cos, sin): &(Tensor, Tensor),
    rejoin: Rejoin,
) -> (Tensor, Tensor) {
    let (cos, sin) = (ops::unsqueeze(cos, 1), ops::unsqueeze(sin, 1));
    let parts = |x: &Tensor| {
        let width = cos.size(-1);
        let rest = x.size(-1).saturating_sub(width);
        let turning = if rest == 0 { x.clone() } else { ops::slice_last(x, width) };
        (turning, ops::slice_last(x, rest))
    };
    let ((q_rot, q_pass), (k_rot, k_pass)) = (parts(q), parts(k));
    let turn = |x: &Tensor| turned(x, &cos, &sin);
    match rejoin {
        Rejoin::EachAtOnce => {
            let q_embed = ops::cat_last(turn(&q_rot), &q_pass);
            (q_embed, ops::cat_last(turn(&k_rot), &k_pass))
        }
        Rejoin::AfterBoth => {
            let (mut q_embed, mut k_embed) = (turn(&q_rot), turn(&k_rot));
            q_embed = ops::cat_last(&q_embed, &q_pass);
            k_embed = ops::cat_last(&k_embed, &k_pass);
            (q_embed, k_embed)
        }
    }
}

fn turned(x: &Tensor, cos: &Tensor, sin: &Tensor) -> Tensor {
    ops::add(ops::mul(x, cos), ops::mul(rotate_half(x), sin))
}

fn rotate_half(x: &Tensor) -> Tensor {
    let half = x.size(-1) / 2;
    let first = ops::slice_last(x, half);
    let second = ops::slice_last(x, x.size(-1).saturating_sub(half));
    ops::cat_last(ops::neg(&second), &first)
}
