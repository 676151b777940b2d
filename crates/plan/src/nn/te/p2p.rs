//! Attention over a sequence that is split over ranks, around which keys and values go (`AttnFuncWithCPAndKVP2P` in
//! `attention/dot_product_attention/context_parallel.py`; `cp_comm_type="p2p"`). A rank has two chunks of a causal sequence, one
//! from its front and one from its back, so that all have as much to attend to: in the steps after its own, a rank that
//! stands behind attends with all its queries to the first half of what came, one that stands before with the second half of its
//! queries to all of it.
//!
//! Every second step is on a stream of its own (`flash_attn_streams`), and so is what it receives and puts out; backward is
//! on one. What came last is saved, and output and log-sums of all steps together. In forward all that came and the outputs of all
//! steps stay until the function returns.

use super::attention::{kernel, kernel_backward};
use super::{AROUND, Shared};
use crate::torch::autograd::{record, recorded};
use crate::torch::network::Collective;
use crate::torch::{Dtype, Layout, Stream, Tensor, ops};
use peakledger_core::Category;
use smallvec::smallvec;
use std::rc::Rc;

/// Causal attention of `[s / cp, b, heads, width]`.
pub(super) fn attention(qkv: [&Tensor; 3], shared: &Rc<Shared>) -> Tensor {
    let [q, k, v] = qkv;
    let (torch, steps) = (q.torch(), shared.cp);
    let mut arrived = vec![joined(k, v)];
    let mut of_steps = Vec::new();
    let mut log_sums = None;
    for step in 0..steps {
        let Some(kv) = arrived.last().cloned() else { unreachable!("its own are the first") };
        let stream = if step % 2 == 0 { Stream::Compute } else { Stream::ContextParallel };
        torch.on_stream(stream, || {
            if step + 1 < steps {
                arrived.push(passed_on(&kv, shared));
            }
            let [queries, keys, values] = section([q, k, v], &kv, (step, shared));
            of_steps.push(kernel([&queries, &keys, &values]));
        });
        if log_sums.is_none() {
            torch.launch("clone");
            log_sums = of_steps.first().map(|[_, first, _]| torch.empty(first.layout().packed(), Dtype::F32));
        }
    }
    torch.launch("flash_attn_fwd_out_correction_init");
    let attended = torch.empty(Layout::contiguous(&[q.size(0), q.size(1), q.size(2), v.size(3)]), q.dtype());
    (1..steps).for_each(|_| torch.launch("flash_attn_fwd_out_correction"));
    if !recorded(torch, &qkv) {
        return attended;
    }
    let kv = arrived.pop();
    let saved: Vec<_> = kv.iter().chain([q, &attended]).chain(&log_sums).map(Tensor::save).collect();
    let randoms: Vec<_> = of_steps.iter().map(|[_, _, random]| random.save()).collect();
    drop((kv, arrived, of_steps, log_sums));
    let shared = shared.clone();
    let sizes = [k, v].map(|t| t.layout().packed());
    record(attended, &qkv, move |grad| {
        let saved: Vec<Tensor> = saved.iter().map(|saved| saved.unpack()).collect();
        let [kv, q, attended, log_sums] = saved.as_slice() else { unreachable!("as many as were saved") };
        let _randoms = &randoms;
        backward(&ops::contiguous(grad), kv, [q, attended, log_sums], &sizes, &shared)
    })
}

/// Queries' gradients are summed in one buffer, those of keys and values go around with them in two.
fn backward(
    grad: &Tensor,
    kv: &Tensor,
    [q, attended, log_sums]: [&Tensor; 3],
    sizes: &[Layout; 2],
    shared: &Shared,
) -> crate::torch::autograd::Grads {
    let torch = grad.torch();
    let make = |op, layout: Layout, dtype| {
        torch.launch(op);
        torch.empty(layout, dtype)
    };
    let half = Layout::contiguous(&[log_sums.layout().numel() / 2]);
    let _second_half = make("clone", half, Dtype::F32);
    let for_q = make("empty_like", q.layout().packed(), q.dtype());
    let twice = Layout::contiguous(&[2, kv.layout().numel()]);
    let buffers = [0, 1].map(|_| around(make("empty", twice.clone(), kv.dtype())));
    torch.launch("copy_");
    let [k_layout, v_layout] = sizes;
    let (k, v) = (kv.alias(k_layout.clone()), kv.alias(v_layout.clone()));
    for step in 0..shared.cp {
        torch.launch("batch_isend_irecv");
        torch.communicates(Collective::Send, kv.bytes(), shared.cp_peers);
        let back = shared.cp - 1 - step; // what came last is first
        let [queries, keys, values] = section([q, &k, &v], kv, (back, shared));
        let [attended, grad] = [attended, grad].map(|t| like_queries(t, &queries));
        drop(kernel_backward([&queries, &keys, &values], &attended, &grad));
        torch.launch("add_.Tensor");
    }
    let [_, last] = buffers;
    smallvec![Some(for_q), Some(last.alias(k_layout.clone())), Some(last.alias(v_layout.clone()))]
}

/// The queries, keys and values of a step.
fn section([q, k, v]: [&Tensor; 3], kv: &Tensor, (step, shared): (u32, &Shared)) -> [Tensor; 3] {
    let all = |t: &Tensor, of: &Tensor| of.alias(t.layout().packed());
    let half = |t: &Tensor, of: &Tensor| {
        of.alias(Layout::contiguous(&[t.size(0) / 2, t.size(1), t.size(2), t.size(3)]))
    };
    match step {
        0 => [all(q, q), all(k, kv), all(v, kv)],
        step if step <= shared.cp_rank => [all(q, q), half(k, kv), half(v, kv)],
        _ => [half(q, q), all(k, kv), all(v, kv)],
    }
}

fn like_queries(t: &Tensor, queries: &Tensor) -> Tensor {
    t.alias(Layout::contiguous(&[queries.size(0), t.size(1), t.size(2), t.size(3)]))
}

/// `torch.cat` of keys and values.
fn joined(k: &Tensor, v: &Tensor) -> Tensor {
    let torch = k.torch();
    torch.launch("cat");
    torch.reads(&[k, v]);
    let numbers = k.layout().numel().saturating_add(v.layout().numel());
    torch.empty(Layout::contiguous(&[numbers]), k.dtype())
}

/// What is sent to the next rank, and what comes from the one before.
fn passed_on(kv: &Tensor, shared: &Shared) -> Tensor {
    let torch = kv.torch();
    torch.launch("batch_isend_irecv");
    torch.communicates(Collective::Send, kv.bytes(), shared.cp_peers);
    around(torch.empty(kv.layout().clone(), kv.dtype()))
}

fn around(tensor: Tensor) -> Tensor {
    tensor.rename(Category::CommunicationBuffer, AROUND);
    tensor
}
