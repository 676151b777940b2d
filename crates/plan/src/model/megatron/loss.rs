//! The loss: cross entropy over logits that are split by vocabulary, each token's weighed by its mask (`loss_func` in
//! `pretrain_gpt.py`). With `--cross-entropy-loss-fusion --cross-entropy-fusion-impl te` it is Transformer Engine's, else
//! `vocab_parallel_cross_entropy` (`megatron/core/tensor_parallel/cross_entropy.py`).

use crate::model::Batch;
use crate::nn::te::{Shared, parallel_cross_entropy};
use crate::torch::autograd::record;
use crate::torch::{Dtype, Layout, Tensor, ops};
use smallvec::smallvec;

pub(super) fn loss(logits: &Tensor, batch: &Batch, is_fused: bool, shared: &Shared) -> Tensor {
    let Some(labels) = &batch.labels else { unreachable!("where the head is, the labels are") };
    let labels = ops::contiguous(ops::transpose(labels, 0, 1));
    let losses = match is_fused {
        true => parallel_cross_entropy(logits, shared),
        false => vocab_parallel_cross_entropy(logits, &labels, shared),
    };
    let losses = ops::contiguous(ops::transpose(&losses, 0, 1));
    let weighed = match &batch.loss_mask {
        Some(mask) => ops::mul(&losses, mask),
        None => losses,
    };
    let tokens = weighed.layout().numel();
    let total = ops::sum(ops::reshape(&weighed, &[tokens]), 0, false);
    ops::div_scalar(&total)
}

/// `_VocabParallelCrossEntropy`: logits in fp32, made probabilities in place, which are saved and become the gradient in place.
fn vocab_parallel_cross_entropy(logits: &Tensor, labels: &Tensor, shared: &Shared) -> Tensor {
    let torch = logits.torch();
    let rows = [labels.size(0), labels.size(1)];
    let make = |op, sizes: &[u64], dtype| {
        torch.launch(op);
        torch.empty(Layout::contiguous(sizes), dtype)
    };
    let in_place = |op, tensor: &Tensor| {
        torch.launch(op);
        torch.reads(&[tensor, tensor]);
    };
    let probabilities = make("_to_copy", logits.sizes(), Dtype::F32);
    torch.reads(&[logits]);
    let (largest, places) = (make("max.dim", &rows, Dtype::F32), make("max.dim", &rows, Dtype::Int64));
    torch.reads(&[&probabilities]);
    drop(places);
    shared.all_reduce(&largest);
    in_place("sub_.Tensor", &probabilities);
    let (below, above) = (make("lt.Scalar", &rows, Dtype::Bool), make("ge.Scalar", &rows, Dtype::Bool));
    let target_mask = make("bitwise_or.Tensor", &rows, Dtype::Bool);
    drop((below, above));
    let copy = make("clone", &rows, Dtype::Int64);
    let masked_target = make("sub.Tensor", &rows, Dtype::Int64);
    drop(copy);
    torch.launch("index_put_");
    let positions = make("arange", &rows, Dtype::Int64);
    let predicted = make("index.Tensor", &rows, Dtype::F32);
    let predicted = (make("clone", &rows, Dtype::F32), predicted).0;
    torch.launch("index_put_");
    in_place("exp.out", &probabilities);
    let sums = make("sum.dim_IntList", &rows, Dtype::F32);
    torch.reads(&[&probabilities]);
    shared.all_reduce(&predicted);
    shared.all_reduce(&sums);
    let logarithms = make("log", &rows, Dtype::F32);
    let losses = make("sub.Tensor", &rows, Dtype::F32);
    in_place("div_.Tensor", &probabilities);
    drop((largest, positions, predicted, sums, logarithms));
    let saved = [probabilities.save(), target_mask.save(), masked_target.save()];
    record(losses, &[logits], move |grad| {
        let [gradient, target_mask, _masked_target] = saved.each_ref().map(|saved| saved.unpack());
        let torch = grad.torch();
        let make = |op, dtype| {
            torch.launch(op);
            torch.empty(Layout::contiguous(target_mask.sizes()), dtype)
        };
        let _positions = make("arange", Dtype::Int64);
        let inverted = make("_to_copy", Dtype::F32);
        let update = make("rsub.Scalar", Dtype::F32);
        drop(inverted);
        torch.launch("index_put_");
        drop(update);
        torch.launch("mul_.Tensor");
        torch.reads(&[&gradient, &gradient]);
        smallvec![Some(gradient)]
    })
}
