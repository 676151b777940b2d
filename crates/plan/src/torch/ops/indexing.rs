//! Embedding, masks and what is counted out rather than computed.

use super::pointwise::like;
use super::{one, output};
use crate::torch::autograd::{record, recorded};
use crate::torch::{Dtype, Layout, Tensor, Torch, kernel};
use smallvec::SmallVec;
use std::rc::Rc;

/// `F.embedding(ids, weight)`. Saves the ids; backward makes a gradient as large as the table.
pub(crate) fn embedding(ids: &Tensor, weight: &Tensor) -> Tensor {
    let mut sizes: SmallVec<[u64; 5]> = SmallVec::from_slice(ids.sizes());
    sizes.push(weight.size(1));
    let table = weight.layout().packed();
    let look_up = || {
        let rows = output(weight.torch(), "embedding", Layout::contiguous(&sizes), weight.dtype());
        // of the table it reads the rows that it copies
        rows.torch().reads(&[ids, &rows]);
        rows
    };
    if !recorded(weight.torch(), &[weight]) {
        return look_up();
    }
    let saved = ids.save();
    let sizes = [table.size(0), table.size(1)];
    record(look_up(), &[weight], move |grad| one(embedding_backward(grad, &saved.unpack(), sizes)))
}

fn embedding_backward(grad: &Tensor, ids: &Tensor, table: [u64; 2]) -> Tensor {
    let for_table = like("embedding_dense_backward", grad, Layout::contiguous(&table));
    grad.torch().reads(&[ids]);
    let _scratch = kernel::embedding_backward(grad, ids.layout().numel(), table);
    for_table
}

/// `F.embedding` of a DTensor whose rows are shared out, `rows` in all: each rank looks up what it has and puts zeros in
/// the place of the rest (`MaskPartial`, `torch/distributed/tensor/_ops/_mask_buffer.py`). The gradient is replicated: every
/// rank makes that of the whole table.
pub(crate) fn vocabulary_parallel_embedding(ids: &Tensor, weight: &Tensor, rows: u64) -> Tensor {
    let torch = weight.torch();
    ids.seen(); // as a DTensor
    let (local, elsewhere) = found_here(ids);
    let whole = [rows, weight.size(1)];
    let found = torch.without_grad(|| embedding(&local, weight));
    drop(local);
    torch.launch("masked_fill_.Scalar");
    torch.reads(&[&elsewhere, &found]);
    drop(elsewhere);
    // the gradient has the shape of the whole table
    let table = weight.alias(Layout::contiguous(&whole)).with_edge(weight.edge().cloned());
    if !recorded(torch, &[&table]) {
        return found;
    }
    let saved = ids.save();
    record(found, &[&table], move |grad| one(embedding_backward(grad, &saved.unpack(), whole)))
}

/// Ids as they count among this rank's rows, and which of them are another rank's (`_partition_value` of `_MaskPartial`).
pub(super) fn found_here(ids: &Tensor) -> (Tensor, Tensor) {
    let torch = ids.torch();
    let compared = |op| {
        let compared = output(torch, op, ids.layout().packed(), Dtype::Bool);
        torch.reads(&[ids]);
        compared
    };
    let (below, above) = (compared("lt.Scalar"), compared("ge.Scalar"));
    let elsewhere = compared("__or__.Tensor");
    drop((below, above));
    let copied = like("clone", ids, ids.layout().packed());
    let local = like("sub.Tensor", &copied, ids.layout().packed());
    drop(copied);
    torch.launch("masked_fill_.Scalar");
    (local, elsewhere)
}

/// `torch.arange(length)`.
pub(crate) fn arange(torch: &Rc<Torch>, length: u64) -> Tensor {
    output(torch, "arange", Layout::contiguous(&[length]), Dtype::Int64)
}

/// Where a query may look, `[b, 1, s, s]` of booleans: at itself and before, and with a window no further back than that
/// (`masking_utils.sdpa_mask`). One table serves all rows, unless there is a mask of what is padding, `[b, s]` of
/// booleans.
pub(crate) fn causal_mask(
    torch: &Rc<Torch>,
    [batch, length]: [u64; 2],
    windowed: bool,
    padding: Option<&Tensor>,
) -> Tensor {
    let square = Layout::contiguous(&[1, 1, length, length]);
    let rows = [arange(torch, batch), arange(torch, 1)];
    let positions = || {
        let counted = arange(torch, length);
        like("add.Tensor", &counted, counted.layout().clone())
    };
    let queries = positions();
    let keys = positions();
    let table = |op| output(torch, op, square.clone(), Dtype::Bool);
    let looks = || match windowed {
        false => table("le.Tensor"),
        true => {
            let everything = output(torch, "new_ones", Layout::contiguous(&[]), Dtype::Bool);
            let first = output(torch, "sub.Tensor", Layout::contiguous(&[1, 1, length, 1]), Dtype::Int64);
            let inside = table("gt.Tensor");
            drop(first);
            let overlay = table("bitwise_and.Tensor");
            drop((everything, inside));
            let causal = table("le.Tensor");
            let both = table("bitwise_and.Tensor");
            drop((overlay, causal));
            both
        }
    };
    let mask = match &padding {
        None => looks(),
        Some(_) => {
            let everything = output(torch, "new_ones", Layout::contiguous(&[]), Dtype::Bool);
            let looks = looks();
            let table = table("bitwise_and.Tensor");
            drop((everything, looks));
            let unpadded =
                output(torch, "index.Tensor", Layout::contiguous(&[batch, 1, 1, length]), Dtype::Bool);
            let all = Layout::contiguous(&[batch, 1, length, length]);
            let both = output(torch, "bitwise_and.Tensor", all, Dtype::Bool);
            drop((table, unpadded));
            both
        }
    };
    drop((rows, queries, keys));
    let layout = mask.layout().expand(&[batch, 1, length, length]);
    mask.alias(layout)
}

/// The mask as numbers to add, zero and minus infinity, a table for each row (`torch.where`). `fills` are the ops by which
/// the two numbers come to the device.
pub(crate) fn additive_mask(mask: &Tensor, dtype: Dtype, fills: [&'static str; 2]) -> Tensor {
    let torch = mask.torch();
    let _fills = fills.map(|op| output(torch, op, Layout::contiguous(&[]), dtype));
    let numbers = output(torch, "where.self", mask.layout().packed(), dtype);
    torch.reads(&[mask]);
    numbers
}

/// `F.pad(a, (0, count))`: more elements in the last dimension.
pub(crate) fn constant_pad_last(a: &Tensor, count: u64) -> Tensor {
    let mut sizes: SmallVec<[u64; 5]> = SmallVec::from_slice(a.sizes());
    if let Some(last) = sizes.last_mut() {
        *last = last.saturating_add(count);
    }
    like("constant_pad_nd", a, Layout::contiguous(&sizes))
}
