//! The ops by which tokens find their experts and come back: top-k, sorting, counting, gathering.

use super::pointwise::like;
use super::{one, output};
use crate::torch::autograd::{record, recorded};
use crate::torch::{Dtype, Layout, Tensor};
use smallvec::SmallVec;
use std::borrow::Borrow;

/// `torch.topk(a, k, dim=-1)`: values and indices. Saves the indices; backward scatters the gradient into zeros.
pub(crate) fn topk(a: &Tensor, k: u64) -> (Tensor, Tensor) {
    let layout = a.layout().packed().narrow_last(k).packed();
    let values = like("topk", a, layout.clone());
    let indices = a.torch().empty(layout, Dtype::Int64);
    if !recorded(a.torch(), &[a]) {
        return (values, indices);
    }
    let (saved, from) = (indices.save(), a.layout().packed());
    let values = record(values, &[a], move |grad| {
        let _indices = saved.unpack();
        let _zeros = output(grad.torch(), "new_zeros", from.clone(), grad.dtype());
        one(like("scatter.src", grad, from.clone()))
    });
    (values, indices)
}

/// `torch.sort(a)`: values and indices, of what needs no gradient.
pub(crate) fn sort(a: &Tensor) -> (Tensor, Tensor) {
    let values = like("sort", a, a.layout().packed());
    let indices = a.torch().empty(a.layout().packed(), Dtype::Int64);
    (values, indices)
}

/// `a // 2`, of integers.
pub(crate) fn floor_divide(a: &Tensor) -> Tensor {
    like("floor_divide", a, a.layout().packed())
}

/// `torch.histc(a, bins)`.
pub(crate) fn histc(a: &Tensor, bins: u64) -> Tensor {
    like("histc", a, Layout::contiguous(&[bins]))
}

/// `torch.cumsum(a, dim=0, dtype=torch.int32)`.
pub(crate) fn cumsum(a: &Tensor) -> Tensor {
    let sums = output(a.torch(), "cumsum", a.layout().packed(), Dtype::Int32);
    a.torch().reads(&[a]);
    sums
}

/// `a[indices]`: rows of `a`. Saves the indices; backward puts the gradient into zeros.
pub(crate) fn index(a: &Tensor, indices: impl Borrow<Tensor>) -> Tensor {
    let indices = indices.borrow();
    let mut sizes: SmallVec<[u64; 5]> = SmallVec::from_slice(a.sizes());
    if let Some(first) = sizes.first_mut() {
        *first = indices.size(0);
    }
    let rows = || {
        let rows = output(a.torch(), "index.Tensor", Layout::contiguous(&sizes), a.dtype());
        // of `a` it reads the rows that it copies
        rows.torch().reads(&[indices, &rows]);
        rows
    };
    if !recorded(a.torch(), &[a]) {
        return rows();
    }
    let (saved, from) = (indices.save(), a.layout().packed());
    record(rows(), &[a], move |grad| {
        let _indices = saved.unpack();
        let _zeros = output(grad.torch(), "new_zeros", from.clone(), grad.dtype());
        one(like("index_put", grad, from.clone()))
    })
}

/// `inverse = torch.empty_like(permutation); inverse[permutation] = torch.arange(…)`.
pub(crate) fn inverse_permutation(permutation: &Tensor) -> Tensor {
    let torch = permutation.torch();
    torch.launch("empty_like");
    let inverse = torch.unwritten(permutation.layout().packed(), permutation.dtype());
    let places = super::arange(torch, permutation.size(0));
    torch.launch("index_put_");
    torch.reads(&[permutation, &places, &inverse]); // and writes the last
    inverse
}
