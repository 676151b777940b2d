//! The ops by which tokens find their experts and come back: top-k, sorting, counting, gathering.

use super::pointwise::like;
use super::{Group, one, output};
use crate::torch::autograd::{record, recorded};
use crate::torch::network::Collective;
use crate::torch::{Dtype, Layout, Saved, Tensor, Torch, kernel};
use smallvec::{SmallVec, smallvec};
use std::borrow::Borrow;
use std::rc::Rc;

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

/// `a.gather(1, indices)`. Saves the indices and, for its shape, `a`; backward adds the gradient into zeros.
pub(crate) fn gather(a: &Tensor, indices: &Tensor) -> Tensor {
    let gathered = || like("gather", a, indices.layout().packed());
    if !recorded(a.torch(), &[a]) {
        return gathered();
    }
    let saved = [indices.save(), a.save()];
    record(gathered(), &[a], move |grad| {
        let [_indices, a] = saved.each_ref().map(Saved::unpack);
        let _zeros = like("new_zeros", grad, a.layout().packed());
        one(like("scatter_add", grad, a.layout().packed()))
    })
}

/// `a.scatter_(1, …, value)`, of what needs no gradient.
pub(crate) fn scatter_in_place(a: &Tensor) {
    a.torch().launch("scatter_.value");
}

/// `torch.sort(a)`: values and indices, of what needs no gradient.
pub(crate) fn sort(a: &Tensor) -> (Tensor, Tensor) {
    let values = like("sort", a, a.layout().packed());
    let indices = a.torch().empty(a.layout().packed(), Dtype::Int64);
    drop(kernel::sort(a));
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

/// `a[indices]`, an index for each of the first dimensions: rows of `a`. Saves the indices; backward puts the gradient into
/// zeros.
pub(crate) fn index(a: impl Borrow<Tensor>, indices: &[&Tensor]) -> Tensor {
    let a = a.borrow();
    let rows = indices.first().map_or(1, |first| first.size(0));
    let rest = a.sizes().iter().skip(indices.len()).copied();
    let sizes: SmallVec<[u64; 5]> = std::iter::once(rows).chain(rest).collect();
    let rows = || {
        let rows = output(a.torch(), "index.Tensor", Layout::contiguous(&sizes), a.dtype());
        // of `a` it reads the rows that it copies
        rows.torch().reads(indices);
        rows.torch().reads(&[&rows]);
        rows
    };
    if !recorded(a.torch(), &[a]) {
        return rows();
    }
    let saved: SmallVec<[Saved; 2]> = indices.iter().map(|index| index.save()).collect();
    let from = a.layout().packed();
    record(rows(), &[a], move |grad| {
        let indices: SmallVec<[Tensor; 2]> = saved.iter().map(Saved::unpack).collect();
        let _zeros = output(grad.torch(), "new_zeros", from.clone(), grad.dtype());
        let for_a = like("index_put", grad, from.clone());
        drop(kernel::index_backward(grad, indices.first().map_or(0, |first| first.size(0))));
        one(for_a)
    })
}

/// `a[expert]`: a view of one slice of the first dimension. Backward makes a gradient as large as all of `a`.
pub(crate) fn select(a: &Tensor) -> Tensor {
    let from = a.layout().packed();
    let slice = a.alias(Layout::contiguous(a.sizes().get(1..).unwrap_or_default()));
    record(slice, &[a], move |grad| one(like("select_backward", grad, from.clone())))
}

/// `torch.zeros_like(a)`.
pub(crate) fn zeros_like(a: &Tensor) -> Tensor {
    like("zeros_like", a, a.layout().preserved()).detach()
}

/// `F.one_hot(a, classes)` as CUDA runs it: zeros, and ones scattered into them (`aten/src/ATen/native/Onehot.cpp`).
pub(crate) fn one_hot(a: &Tensor, classes: u64) -> Tensor {
    let mut sizes: SmallVec<[u64; 5]> = SmallVec::from_slice(a.sizes());
    sizes.push(classes);
    let zeros = output(a.torch(), "zeros", Layout::contiguous(&sizes), Dtype::Int64);
    a.torch().launch("scatter_.value");
    zeros
}

/// `a.sum(…)` over all dimensions but the last, of integers.
pub(crate) fn sum_of_rows(a: &Tensor) -> Tensor {
    like("sum.dim_IntList", a, Layout::contiguous(&[a.size(-1)]))
}

/// `a > 0`.
pub(crate) fn greater(a: Tensor) -> Tensor {
    output(a.torch(), "gt.Scalar", a.layout().packed(), Dtype::Bool)
}

/// `a >= 4` as a column, and `a.clamp_(max=3)`, of integers.
pub(crate) fn at_least(a: &Tensor) -> Tensor {
    let mask = output(a.torch(), "ge.Scalar", a.layout().packed(), Dtype::Bool);
    a.torch().reads(&[a]);
    a.torch().launch("clamp_");
    mask.alias(Layout::contiguous(&[a.size(0), 1]))
}

/// Whether a scalar is equal to a number.
pub(crate) fn equal(torch: &Rc<Torch>) -> Tensor {
    output(torch, "eq.Scalar", Layout::contiguous(&[]), Dtype::Bool)
}

/// `a.nonzero()` of one dimension or `torch.where(a)` of two, with what it finds: a row of places for each.
pub(crate) fn nonzero(a: &Tensor, found: u64) -> Tensor {
    let dims = a.sizes().len().saturating_sub(usize::from(a.sizes().len() > 1));
    let dims = u64::try_from(dims).unwrap_or(u64::MAX);
    output(a.torch(), "nonzero", Layout::contiguous(&[found, dims]), Dtype::Int64)
}

/// `a.index_add_(0, index, source)`. Saves the index and, for its shape, the source; backward gathers the gradient of that.
pub(crate) fn index_add_in_place(a: Tensor, index: &Tensor, source: Tensor) -> Tensor {
    let torch = a.torch().clone();
    if !recorded(&torch, &[&a, &source]) {
        torch.launch("index_add_");
        return a;
    }
    let saved = [index.save(), source.save()];
    torch.launch("index_add_");
    record(a.detach(), &[&a, &source], move |grad| {
        let [_index, source] = saved.each_ref().map(Saved::unpack);
        smallvec![Some(grad.clone()), Some(like("index_select", grad, source.layout().packed()))]
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

/// How many rows go to each expert of each rank, and how many come: counted and exchanged, and their sums brought to the
/// host (`AllToAllEP._dispatch_tokens`).
pub(crate) fn exchange_counts(ids: &Tensor, local_experts: u64, group: Group) -> [Tensor; 2] {
    let torch = ids.torch();
    let ranks = u64::from(group.ranks);
    let counts = |op, sizes: &[u64]| output(torch, op, Layout::contiguous(sizes), Dtype::Int64);
    let sent = counts("zeros", &[ranks.saturating_mul(local_experts)]);
    let ones = counts("ones_like", &[ids.size(0)]);
    torch.launch("scatter_add_");
    torch.reads(&[ids, &ones]);
    drop(ones);
    let received = counts("empty_like", &[ranks, local_experts]);
    torch.launch("c10d.alltoall_base_");
    torch.communicates(Collective::AllToAll, sent.bytes(), group.peers());
    let sums = [(); 2].map(|()| counts("sum.dim_IntList", &[ranks]));
    let _stacked = counts("stack", &[2, ranks]);
    drop(sums);
    [sent, received]
}

/// For each row received the expert of this rank that it is for.
pub(crate) fn received_ids(received: &Tensor, local_experts: u64, group: Group) -> Tensor {
    let torch = received.torch();
    let rows = received.size(0);
    let numbers = |op, count: u64| output(torch, op, Layout::contiguous(&[count]), Dtype::Int64);
    let counted = numbers("arange", local_experts);
    let of_ranks = numbers("repeat", local_experts.saturating_mul(u64::from(group.ranks)));
    drop(counted);
    let places = numbers("repeat_interleave.Tensor", rows);
    let ids = numbers("index_select", rows);
    drop((of_ranks, places));
    ids.alias(Layout::contiguous(&[rows, 1]))
}

/// `torch.ones_like(a, dtype=dtype)`.
pub(crate) fn ones_column(a: &Tensor, dtype: Dtype) -> Tensor {
    output(a.torch(), "ones_like", a.layout().packed(), dtype)
}

/// `put = torch.empty_like(a); put[order] = a`. Saves the order; backward takes the rows from there again.
pub(crate) fn put_rows(a: &Tensor, order: &Tensor) -> Tensor {
    let torch = a.torch();
    torch.launch("empty_like");
    let put = torch.unwritten(a.layout().packed(), a.dtype());
    let saved = recorded(torch, &[a]).then(|| order.save());
    torch.launch("index_put_");
    torch.reads(&[order, a, &put]); // and writes the last
    let Some(saved) = saved else { return put };
    let layout = a.layout().packed();
    record(put, &[a], move |grad| {
        let _order = saved.unpack();
        one(like("index.Tensor", grad, layout.clone()))
    })
}
