//! What a rank has of a micro-batch: `Trainer` shifts labels and gives every row its positions
//! (`_prepare_context_parallel_inputs`, `transformers/trainer.py`), and torch cuts all of it in place (`context_parallel`,
//! `torch/distributed/tensor/experimental/_context_parallel/_attention.py`). A storage does not shrink by that, and what the
//! parts were copied from stays until backward has run.

use crate::model::Batch;
use crate::torch::ops::{self, Ring};
use crate::torch::{Dtype, Layout, Tensor};

/// The rank's part of a micro-batch, and what is held beside it until the step has run.
pub(crate) fn shared_out(batch: &Batch, ring: Ring) -> (Batch, Vec<Tensor>) {
    let Some(labels) = &batch.labels else { unreachable!("the part that has the embedding has the head") };
    let ids = &batch.input;
    let [rows, length] = [ids.size(0), ids.size(1)];
    let shift_labels = {
        let padded = ops::constant_pad_last(labels, 1);
        ops::contiguous(ops::slice_last(&padded, length))
    };
    let positions = ops::arange(ids.torch(), length);
    let positions = positions.alias(Layout::contiguous(&[1, length]).expand(&[rows, length]));
    let whole = [ids, labels, &shift_labels, &positions];
    let mut held: Vec<Tensor> = parts(whole, ring).into();
    let part = Layout::contiguous(&[rows, length / u64::from(ring.group.ranks)]);
    let mut copy = None;
    let cut = whole.map(|buffer| {
        let copy = copy.insert(copied("clone", buffer, part.clone()));
        resized(buffer, copy)
    });
    held.extend(copy);
    held.extend(cut.iter().cloned());
    let [input, labels, shift_labels, positions] = cut;
    let batch = Batch {
        input,
        labels: Some(labels),
        shift_labels: Some(shift_labels),
        position_ids: Some(positions),
        ..batch.clone()
    };
    (batch, held)
}

/// A copy of this rank's part of each (`_context_parallel_buffers`).
fn parts(whole: [&Tensor; 4], ring: Ring) -> [Tensor; 4] {
    let [ids, ..] = whole;
    let [rows, length] = [ids.size(0), ids.size(1)];
    let part = Layout::contiguous(&[rows, length / u64::from(ring.group.ranks)]);
    let _order = ring.is_balanced.then(|| head_tail_order(ids, ring));
    let mut _rearranged = None;
    whole.map(|buffer| {
        if ring.is_balanced {
            _rearranged = Some(copied("gather", buffer, Layout::contiguous(&[rows, length])));
        } else {
            buffer.seen();
        }
        copied("clone", buffer, part.clone())
    })
}

/// In which order tokens are dealt out, so that each rank gets a part from the front and one from the back
/// (`_HeadTailLoadBalancer`).
fn head_tail_order(ids: &Tensor, ring: Ring) -> Tensor {
    let torch = ids.torch();
    let (ranks, length) = (u64::from(ring.group.ranks), ids.size(1));
    let made = |op, sizes: &[u64], dtype| {
        torch.launch(op);
        torch.empty(Layout::contiguous(sizes), dtype)
    };
    let chunk = length / (2 * ranks);
    let _places = made("arange", &[length], Dtype::Int32);
    let _heads = ops::arange(torch, ranks);
    let _tails = made("rsub.Scalar", &[ranks], Dtype::Int64);
    let _pairs = [0, 1].map(|_| made("index.Tensor", &[ranks, chunk], Dtype::Int32));
    made("stack", &[ranks, 2, chunk], Dtype::Int32)
}

/// A tensor of integers copied out of another.
fn copied(op: &'static str, from: &Tensor, layout: Layout) -> Tensor {
    let torch = from.torch();
    torch.launch(op);
    let copy = torch.empty(layout, from.dtype());
    torch.reads(&[&copy]);
    copy
}

/// `buffer.resize_(part.shape)`, and the part copied into it: the storage is the same, unless it was one row for all and the
/// part is larger.
fn resized(buffer: &Tensor, part: &Tensor) -> Tensor {
    let torch = buffer.torch();
    torch.launch("resize_");
    let is_larger = part.bytes() > buffer.bytes_seen();
    let resized = match is_larger {
        true => torch.empty(part.layout().clone(), part.dtype()),
        false => buffer.alias(part.layout().clone()),
    };
    resized.seen();
    torch.launch("copy_");
    torch.reads(&[part, part]);
    resized
}
