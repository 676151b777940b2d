//! Collectives: what ranks do together, as torch's functional collectives allocate it
//! (`torch/distributed/_functional_collectives.py`; `torch/distributed/tensor/placement_types.py` for what a change of placement
//! costs around them).
//!
//! A functional collective puts out a new tensor and waits in place. What lies in the order of the ranks and is put in the
//! order of the tensor right after is a communication buffer; a sum is the tensor itself, made whole.

use super::one;
use super::pointwise::like;
use crate::torch::autograd::record;
use crate::torch::network::{Collective, Peers};
use crate::torch::{Layout, Tensor};
use peakledger_core::Category;
use smallvec::SmallVec;
use std::borrow::Borrow;

/// A group of ranks, and which of them this one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) ranks: u32,
    pub(crate) rank: u32,
    /// How many of them are on a node ([`Peers`]).
    on_a_node: u32,
}

impl Group {
    pub(crate) fn new(Peers { ranks, on_a_node }: Peers, rank: u32) -> Group {
        Group { ranks, rank, on_a_node }
    }

    /// Its ranks, as they are reached.
    pub(crate) fn peers(self) -> Peers {
        Peers { ranks: self.ranks, on_a_node: self.on_a_node }
    }

    /// The longest part of what is shared out in a dimension that is `whole` wide: `torch.chunk`'s.
    pub(crate) fn longest(self, whole: u64) -> u64 {
        whole.div_ceil(u64::from(self.ranks.max(1)))
    }

    /// This rank's part: the last may be shorter, or none (`Shard.local_shard_size_and_offset`).
    pub(crate) fn part(self, whole: u64) -> u64 {
        let longest = self.longest(whole);
        whole.saturating_sub(longest.saturating_mul(u64::from(self.rank))).min(longest)
    }
}

/// The tensor as a DTensor (`DTensor.from_local`): the gradients of its uses meet here.
pub(crate) fn from_local(a: &Tensor) -> Tensor {
    record(a.detach(), &[a], |grad| one(grad.clone()))
}

/// The sum over ranks that each have a part of (`Partial` to `Replicate`). The gradient is every rank's already.
pub(crate) fn all_reduce(a: impl Borrow<Tensor>, group: Group) -> Tensor {
    let a = a.borrow();
    record(summed(a, group), &[a], |grad| one(grad.clone()))
}

/// The tensor itself, of whose gradient each rank has a part: the backward of [`all_reduce`], and the other way round.
pub(crate) fn all_reduced_gradient(a: &Tensor, group: Group) -> Tensor {
    record(a.detach(), &[a], move |grad| one(summed(grad, group)))
}

/// `funcol.all_reduce(a)`, outside autograd.
pub(super) fn summed(a: &Tensor, group: Group) -> Tensor {
    let sum = like("_c10d_functional.all_reduce", a, a.layout().packed());
    a.torch().communicates(Collective::AllReduce, a.bytes(), group.peers());
    sum
}

/// The same in place, which makes nothing (`_AllReduceForward`, `transformers/distributed/parallel_utils.py`).
pub(crate) fn all_reduce_in_place(a: Tensor, group: Group) -> Tensor {
    reduce_in_place(&a, group);
    record(a.detach(), &[&a], |grad| one(grad.clone()))
}

/// The tensor itself, whose gradient is summed over the ranks in place (`_AllReduceBackward`).
pub(crate) fn gradient_reduced_in_place(a: &Tensor, group: Group) -> Tensor {
    record(a.detach(), &[a], move |grad| {
        let grad = super::contiguous(grad);
        reduce_in_place(&grad, group);
        one(grad)
    })
}

/// `dist.all_reduce(a)`.
pub(crate) fn reduce_in_place(a: &Tensor, group: Group) {
    a.torch().launch("c10d.allreduce_");
    a.torch().reads(&[a, a]); // and writes it
    a.torch().communicates(Collective::AllReduce, a.bytes(), group.peers());
}

/// The whole of what ranks have parts of, side by side in a dimension that is `whole` wide (`Shard` to `Replicate`): gathered
/// part after part, put side by side unless that is where they are, and cut to size where the last part is shorter.
pub(crate) fn all_gather(a: Tensor, dim: usize, whole: u64, group: Group) -> Tensor {
    let gathered = gathered(&a, dim, whole, group);
    record(gathered, &[&a], move |grad| one(own_part(grad, dim, whole, group)))
}

/// This rank's part of what all have (`Replicate` to `Shard`), a copy; the gradient is gathered.
pub(crate) fn chunk(a: &Tensor, dim: usize, group: Group) -> Tensor {
    let whole = size_of(a, dim);
    record(own_part(a, dim, whole, group), &[a], move |grad| one(gathered(grad, dim, whole, group)))
}

/// This rank's part of `whole`, as large as `part` is, made for an op over both.
pub(crate) fn part_like(whole: &Tensor, part: &Tensor) -> Tensor {
    like("clone", whole, part.layout().packed())
}

/// This rank's part of the sum over ranks (`Partial` to `Shard`); the gradient is gathered.
pub(crate) fn reduce_scatter(a: Tensor, dim: usize, group: Group) -> Tensor {
    let whole = size_of(&a, dim);
    record(scattered(&a, dim, group), &[&a], move |grad| one(gathered(grad, dim, whole, group)))
}

/// The whole of what ranks have parts of, where each then has a part of its gradient: the other way round of
/// [`reduce_scatter`].
pub(crate) fn all_gather_for_parts(a: &Tensor, dim: usize, whole: u64, group: Group) -> Tensor {
    record(gathered(a, dim, whole, group), &[a], move |grad| one(scattered(grad, dim, group)))
}

/// Rows to other ranks, and theirs (`all_to_all_single`). The gradients go the same way back.
pub(crate) fn all_to_all(a: &Tensor, rows: u64, group: Group) -> Tensor {
    let sent = a.size(0);
    record(exchanged(a, rows, group), &[a], move |grad| one(exchanged(grad, sent, group)))
}

fn exchanged(a: &Tensor, rows: u64, group: Group) -> Tensor {
    let rest = a.sizes().iter().skip(1).copied();
    let sizes: SmallVec<[u64; 5]> = std::iter::once(rows).chain(rest).collect();
    let received = like("_c10d_functional.all_to_all_single", a, Layout::contiguous(&sizes));
    received.relabel(|stored| (stored.category, stored.detail) = (Category::CommunicationBuffer, None));
    a.torch().communicates(Collective::AllToAll, a.bytes(), group.peers());
    received
}

fn size_of(a: &Tensor, dim: usize) -> u64 {
    a.sizes().get(dim).copied().unwrap_or(1)
}

fn with_size(a: &Tensor, dim: usize, size: u64) -> Layout {
    with_sizes(a, [(dim, size)])
}

fn with_sizes<const N: usize>(a: &Tensor, changed: [(usize, u64); N]) -> Layout {
    let mut sizes: SmallVec<[u64; 5]> = SmallVec::from_slice(a.sizes());
    for (dim, size) in changed {
        if let Some(slot) = sizes.get_mut(dim) {
            *slot = size;
        }
    }
    Layout::contiguous(&sizes)
}

fn gathered(a: &Tensor, dim: usize, whole: u64, group: Group) -> Tensor {
    let part = group.longest(whole);
    let a = &if size_of(a, dim) == part {
        a.clone()
    } else {
        like("constant_pad_nd", a, with_size(a, dim, part))
    };
    let padded = part.saturating_mul(u64::from(group.ranks));
    let rows = size_of(a, 0).saturating_mul(u64::from(group.ranks));
    let parts = like("_c10d_functional.all_gather_into_tensor", a, with_size(a, 0, rows));
    a.torch().communicates(Collective::AllGather, parts.bytes(), group.peers());
    let cut = with_size(a, dim, whole);
    if dim == 0 {
        return parts.alias(cut); // padding lies at the end
    }
    let padded_whole = side_by_side(parts, with_size(a, dim, padded));
    if padded == whole { padded_whole } else { like("clone", &padded_whole, cut) }
}

/// Parts in the order of the ranks, put in that of the tensor.
fn side_by_side(parts: Tensor, whole: Layout) -> Tensor {
    parts.relabel(|stored| (stored.category, stored.detail) = (Category::CommunicationBuffer, None));
    like("cat", &parts, whole)
}

fn own_part(a: &Tensor, dim: usize, whole: u64, group: Group) -> Tensor {
    like("clone", a, with_size(a, dim, group.part(whole)))
}

fn scattered(a: &Tensor, dim: usize, group: Group) -> Tensor {
    let part = group.longest(size_of(a, dim));
    let parts = if dim == 0 {
        a.clone()
    } else {
        let rows = size_of(a, 0).saturating_mul(u64::from(group.ranks));
        let parts = like("cat", a, with_sizes(a, [(0, rows), (dim, part)]));
        parts.relabel(|stored| (stored.category, stored.detail) = (Category::CommunicationBuffer, None));
        parts
    };
    let sum = like("_c10d_functional.reduce_scatter_tensor", &parts, with_size(a, dim, part));
    a.torch().communicates(Collective::ReduceScatter, parts.bytes(), group.peers());
    sum
}
