//! Embedding, masks and what is counted out rather than computed.

use super::pointwise::copy;
use super::{one, only, output};
use crate::torch::autograd::{record, recorded};
use crate::torch::{Dtype, Layout, Tensor, Torch};
use smallvec::SmallVec;
use std::borrow::Borrow;
use std::rc::Rc;

/// `F.embedding(ids, weight)`. Saves the ids; backward makes a gradient as large as the table.
pub(crate) fn embedding(ids: &Tensor, weight: &Tensor) -> Tensor {
    let mut sizes: SmallVec<[u64; 5]> = SmallVec::from_slice(ids.sizes());
    sizes.push(weight.size(1));
    let table = weight.layout().packed();
    if !recorded(weight.torch(), &[weight]) {
        return output(weight.torch(), "embedding", Layout::contiguous(&sizes), weight.dtype());
    }
    let saved = ids.save();
    let rows = output(weight.torch(), "embedding", Layout::contiguous(&sizes), weight.dtype());
    record(rows, &[weight], move |grads| {
        let ids = saved.unpack();
        let grad = only(grads).map(|grad| output(grad.torch(), "embedding_dense_backward", table, grad.dtype()));
        drop(ids);
        one(grad)
    })
}

/// `torch.arange(length)`.
pub(crate) fn arange(torch: &Rc<Torch>, length: u64) -> Tensor {
    output(torch, "arange", Layout::contiguous(&[length]), Dtype::Int64)
}

/// A causal mask `[b, 1, s, s]` as `masking_utils.eager_mask` makes it: a boolean one for all rows, then a float one for each,
/// filled by `torch.where`.
pub(crate) fn causal_mask(torch: &Rc<Torch>, batch: u64, length: u64, dtype: Dtype) -> Tensor {
    let square = |rows| Layout::contiguous(&[rows, 1, length, length]);
    let scalar = |op| output(torch, op, Layout::contiguous(&[]), dtype);
    let rows = [arange(torch, batch), arange(torch, 1)];
    let positions = || {
        let counted = arange(torch, length);
        copy("add.Tensor", &counted, *counted.layout())
    };
    let queries = positions();
    let keys = positions();
    let allowed = output(torch, "le.Tensor", square(1), Dtype::Bool);
    drop((rows, queries, keys));
    let zero = scalar("zeros");
    let least = scalar("scalar_tensor");
    let mask = output(torch, "where.self", square(batch), dtype);
    drop((allowed, zero, least));
    mask
}

/// `F.pad(a, (0, 1))`: one more element in the last dimension.
pub(crate) fn constant_pad_one(a: impl Borrow<Tensor>) -> Tensor {
    let a = a.borrow();
    let mut sizes: SmallVec<[u64; 5]> = SmallVec::from_slice(a.sizes());
    if let Some(last) = sizes.last_mut() {
        *last = last.saturating_add(1);
    }
    copy("constant_pad_nd", a, Layout::contiguous(&sizes))
}
