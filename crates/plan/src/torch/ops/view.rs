//! Ops that look at the same storage in another way, and the copies where that is not possible.

use super::pointwise::{like, to};
use super::{one, output, sum_to};
use crate::torch::autograd::{record, record_all};
use crate::torch::kv_cache::KV_CACHE;
use crate::torch::tape::Role;
use crate::torch::{Layout, Tensor};
use smallvec::{SmallVec, smallvec};
use std::borrow::Borrow;

/// Makes a view part of the graph; `back` leads a gradient to the input's shape.
fn view(a: &Tensor, layout: Layout, back: impl Fn(&Tensor) -> Tensor + 'static) -> Tensor {
    record(a.alias(layout), &[a], move |grad| one(back(grad)))
}

/// `a.reshape(sizes)`: a view where the layout allows it, else a copy; and so is the gradient on its way back.
pub(crate) fn reshape(a: impl Borrow<Tensor>, sizes: &[u64]) -> Tensor {
    let a = a.borrow();
    let from: SmallVec<[u64; 5]> = SmallVec::from_slice(a.sizes());
    let back = move |grad: &Tensor| reshape(grad, &from);
    match a.layout().view(sizes) {
        Some(layout) => view(a, layout, back),
        None => {
            let packed = like("clone", a, a.layout().packed());
            let packed = packed.alias(Layout::contiguous(sizes));
            record(packed, &[a], move |grad| one(back(grad)))
        }
    }
}

/// `a.transpose(i, j)`.
pub(crate) fn transpose(a: impl Borrow<Tensor>, i: isize, j: isize) -> Tensor {
    let a = a.borrow();
    view(a, a.layout().transpose(i, j), move |grad| transpose(grad, i, j))
}

/// `a.unsqueeze(dim)`.
pub(crate) fn unsqueeze(a: impl Borrow<Tensor>, dim: usize) -> Tensor {
    let a = a.borrow();
    let from: SmallVec<[u64; 5]> = SmallVec::from_slice(a.sizes());
    view(a, a.layout().unsqueeze(dim), move |grad| reshape(grad, &from))
}

/// `a[:, :, None].expand(…)`: each head of `[b, h, s, d]` seen `times` times, as `[b, h, times, s, d]`.
pub(crate) fn expand_heads(a: impl Borrow<Tensor>, times: u64) -> Tensor {
    let a = a.borrow();
    let [b, h, s, d] = [0, 1, 2, 3].map(|dim| a.size(dim));
    let layout = a.layout().unsqueeze(2).expand(&[b, h, times, s, d]);
    view(a, layout, move |grad| {
        let sum = like("sum.dim_IntList", grad, Layout::contiguous(&[b, h, 1, s, d]));
        sum.alias(Layout::contiguous(&[b, h, s, d]))
    })
}

/// `a.contiguous()`.
pub(crate) fn contiguous(a: impl Borrow<Tensor>) -> Tensor {
    let a = a.borrow();
    if a.layout().is_contiguous() {
        return a.clone();
    }
    let packed = like("clone", a, a.layout().packed());
    record(packed, &[a], |grad| one(grad.clone()))
}

/// `a.clone()`.
pub(crate) fn clone(a: Tensor) -> Tensor {
    let copy = like("clone", &a, a.layout().preserved());
    record(copy, &[&a], |grad| one(grad.clone()))
}

/// `a[..., :size]` (or any other slice of that length of the last dimension). Backward fills zeros around the gradient.
pub(crate) fn slice_last(a: impl Borrow<Tensor>, size: u64) -> Tensor {
    let a = a.borrow();
    let full = a.layout().packed();
    view(a, a.layout().narrow_last(size), move |grad| like("slice_backward", grad, full.clone()))
}

/// `a[..., 0::2]` (or `1::2`): half of the last dimension. Backward fills zeros between the gradient.
pub(crate) fn every_other_last(a: &Tensor) -> Tensor {
    let full = a.layout().packed();
    view(a, a.layout().every_other_last(), move |grad| {
        output(grad.torch(), "slice_backward", full.clone(), grad.dtype())
    })
}

/// `a.expand(sizes)`. Backward sums the gradient.
pub(crate) fn expand(a: &Tensor, sizes: &[u64]) -> Tensor {
    let from: SmallVec<[u64; 5]> = SmallVec::from_slice(a.sizes());
    view(a, a.layout().expand(sizes), move |grad| sum_to(grad.clone(), &from))
}

/// An empty tensor with `a` and then `b` copied side by side into its last dimension, in place of `torch.cat`. Each copy
/// into a slice leads the gradient back through one as large as the whole (`torch/csrc/autograd/functions/tensor.cpp`,
/// `CopySlices`).
pub(crate) fn copied_side_by_side(a: &Tensor, b: &Tensor) -> Tensor {
    let mut sizes: SmallVec<[u64; 5]> = SmallVec::from_slice(a.sizes());
    if let Some(last) = sizes.last_mut() {
        *last = last.saturating_add(b.size(-1));
    }
    let whole = Layout::contiguous(&sizes);
    let joined = like("new_empty", a, whole.clone());
    [a, b].into_iter().fold(joined, |joined, part| {
        joined.torch().launch("copy_");
        let (whole, slice, dtype) = (whole.clone(), part.layout().packed(), part.dtype());
        let (for_earlier, for_this) = (joined.requires_grad(), part.requires_grad());
        record(joined.detach(), &[&joined, part], move |grad| {
            let torch = grad.torch();
            let earlier = like("new_empty_strided", grad, whole.clone());
            torch.launch("copy_");
            let this = like("clone", grad, slice.clone());
            let zeros = for_earlier.then(|| like("zeros_like", grad, slice.clone()));
            let this = for_this.then(|| to(this, dtype));
            if zeros.is_some() {
                torch.launch("copy_");
            }
            smallvec![for_earlier.then_some(earlier), this]
        })
    })
}

/// `torch.cat((before, a), dim=-2)` of `[b, h, s, d]`, with so many tokens in all: a new tensor of a cache, under its name.
pub(crate) fn grown(a: &Tensor, tokens: u64) -> Tensor {
    let [b, h, _, d] = [0, 1, 2, 3].map(|dim| a.size(dim));
    let joined = output(a.torch(), "cat", Layout::contiguous(&[b, h, tokens, d]), a.dtype());
    joined.relabel(|stored| stored.role = Role::Named { name: KV_CACHE });
    joined
}

/// `torch.cat((a, b), dim=-1)`. Backward hands out slices of the gradient.
pub(crate) fn cat_last(a: impl Borrow<Tensor>, b: impl Borrow<Tensor>) -> Tensor {
    let (a, b) = (a.borrow(), b.borrow());
    let (left, right) = (a.size(-1), b.size(-1));
    let mut sizes: SmallVec<[u64; 5]> = SmallVec::from_slice(a.sizes());
    if let Some(last) = sizes.last_mut() {
        *last = left.saturating_add(right);
    }
    let joined = output(a.torch(), "cat", Layout::contiguous(&sizes), a.dtype().promote(b.dtype()));
    a.torch().reads(&[a, b]);
    record(joined, &[a, b], move |grad| {
        let part = |size| Some(grad.alias(grad.layout().narrow_last(size)));
        smallvec![part(left), part(right)]
    })
}

/// `a.split(…, dim=-1)` into parts of those widths. Backward joins their gradients.
pub(crate) fn split_last<const N: usize>(a: &Tensor, widths: [u64; N]) -> [Tensor; N] {
    let parts = widths.map(|width| a.alias(a.layout().narrow_last(width)));
    let full = a.layout().packed();
    let joined = record_all(parts.to_vec(), &[a], move |grads| {
        let Some(grad) = grads.iter().flatten().next() else { return smallvec![None] };
        let joined = output(grad.torch(), "cat", full.clone(), grad.dtype());
        joined.torch().reads(&grads.iter().flatten().collect::<SmallVec<[&Tensor; 4]>>());
        one(joined)
    });
    match joined.try_into() {
        Ok(parts) => parts,
        Err(_) => parts,
    }
}

/// `F.pad(a, (0, width - a.size(-1)))`: the tensor itself where it is as wide. Backward cuts a copy out of the gradient.
pub(super) fn constant_pad(a: &Tensor, width: u64) -> Tensor {
    if a.size(-1) == width {
        return a.clone();
    }
    let mut sizes: SmallVec<[u64; 5]> = SmallVec::from_slice(a.sizes());
    if let Some(last) = sizes.last_mut() {
        *last = width;
    }
    let from = a.layout().packed();
    let padded = like("constant_pad_nd", a, Layout::contiguous(&sizes));
    record(padded, &[a], move |grad| one(like("constant_pad_nd", grad, from.clone())))
}
