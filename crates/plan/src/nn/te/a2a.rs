//! Attention over a sequence that is split over ranks, each of which takes some heads of the whole of it
//! (`AttnFuncWithCPAndQKVOA2A` in `attention/dot_product_attention/context_parallel.py`; `cp_comm_type="a2a"`). What is saved
//! are queries, keys, values and output of those heads; the output in the order of the sequence is another tensor.
//!
//! What arrives is put in order on a stream of its own (`torch.cuda.stream(cp_stream)` in `flash_attn_a2a_communicate`), so
//! what is saved of queries, keys and values, what goes on and the gradients that go back are its blocks. Both streams wait
//! for each other and nothing calls `record_stream`: a block is free where its last reference goes.

use super::attention::{kernel, kernel_backward};
use super::{ALL_TO_ALL, Shared};
use crate::torch::autograd::{record, recorded};
use crate::torch::network::Collective;
use crate::torch::{Layout, Stream, Tensor, ops};
use peakledger_core::Category;
use std::rc::Rc;

/// Causal attention of `[s / cp, b, heads, width]`.
pub(super) fn attention(qkv: [&Tensor; 3], shared: &Rc<Shared>) -> Tensor {
    let whole = to_heads(&qkv, shared);
    let [q, k, v] = whole.as_slice() else { unreachable!("as many as were given") };
    let [attended, log_sums, random] = kernel([q, k, v]);
    let output = to_sequence(vec![attended.clone()], shared).remove(0);
    if !recorded(attended.torch(), &qkv) {
        return output;
    }
    let saved: Vec<_> = whole.iter().chain([&attended, &log_sums, &random]).map(Tensor::save).collect();
    let shared = shared.clone();
    record(output, &qkv, move |grad| {
        let saved: Vec<Tensor> = saved.iter().map(|saved| saved.unpack()).collect();
        let [q, k, v, attended, ..] = saved.as_slice() else { unreachable!("as many as were saved") };
        let grad = ops::contiguous(grad);
        let grad = to_heads(&[&grad], &shared).remove(0);
        let grads = kernel_backward([q, k, v], attended, &grad);
        to_sequence(grads.into(), &shared).into_iter().map(Some).collect()
    })
}

/// `flash_attn_a2a_communicate(before_attn=True)`: parts of a sequence with all heads become the whole with some. The copies
/// that are sent stay until the function returns.
fn to_heads(parts: &[&Tensor], shared: &Shared) -> Vec<Tensor> {
    let cp = u64::from(shared.cp);
    let mut sent: Vec<Tensor> = Vec::new();
    let mut received = None;
    let mut whole = Vec::new();
    for step in 0..parts.len() + 2 {
        let next = sent.get(step.wrapping_sub(1)).map(|sent| exchanged(sent, shared));
        if let Some(arrived) = std::mem::replace(&mut received, next) {
            let [length, batch, heads, width] = [0, 1, 2, 3].map(|dim| arrived.size(dim));
            let sizes = [length.saturating_mul(cp), batch, heads / cp, width];
            let select = || reordered("index_select", &arrived, &sizes);
            whole.push(arrived.torch().on_stream(Stream::ContextParallel, select));
        }
        if let Some(part) = parts.get(step) {
            sent.push(buffer(reordered("clone", part, part.sizes())));
        }
    }
    whole
}

/// The way back (`before_attn=False`).
fn to_sequence(mut whole: Vec<Tensor>, shared: &Shared) -> Vec<Tensor> {
    let cp = u64::from(shared.cp);
    let mut received = None;
    let mut parts = Vec::new();
    for step in 0..whole.len() + 2 {
        let sent = step.checked_sub(1).and_then(|at| whole.get(at));
        let next = sent.map(|sent| exchanged(sent, shared));
        if let Some(whole) = whole.get_mut(step) {
            // what it was goes, where no other name holds it
            *whole = buffer(reordered("index_select", whole, whole.sizes()));
        }
        if let Some(arrived) = std::mem::replace(&mut received, next) {
            let [length, batch, heads, width] = [0, 1, 2, 3].map(|dim| arrived.size(dim));
            let sizes = [length / cp, batch, heads.saturating_mul(cp), width];
            let clone = || reordered("clone", &arrived, &sizes);
            parts.push(arrived.torch().on_stream(Stream::ContextParallel, clone));
        }
    }
    parts
}

/// `all_to_all_single` into a tensor of the same size.
fn exchanged(sent: &Tensor, shared: &Shared) -> Tensor {
    let torch = sent.torch();
    torch.launch("all_to_all_single");
    torch.communicates(Collective::AllToAll, sent.bytes(), shared.cp_peers);
    buffer(torch.empty(sent.layout().packed(), sent.dtype()))
}

fn buffer(tensor: Tensor) -> Tensor {
    tensor.rename(Category::CommunicationBuffer, ALL_TO_ALL);
    tensor
}

fn reordered(op: &'static str, x: &Tensor, sizes: &[u64]) -> Tensor {
    x.torch().launch(op);
    x.torch().reads(&[x]);
    x.torch().empty(Layout::contiguous(sizes), x.dtype())
}
