//! The loss of a causal language model (`transformers/loss/loss_utils.py`): logits in fp32, labels shifted by one, cross
//! entropy; or head and loss as one op (`LigerForCausalLMLoss`).

use crate::torch::{Dtype, Tensor, ops};

/// The loss of a micro-batch; its share of the step's where there are several.
pub(crate) fn causal_lm_loss(logits: &Tensor, labels: &Tensor, micro_batches: u32) -> Tensor {
    share(cross_entropy(logits, labels), micro_batches)
}

/// The same from what the head is given.
pub(crate) fn fused_causal_lm_loss(
    last_hidden_state: &Tensor,
    head: &Tensor,
    labels: &Tensor,
    micro_batches: u32,
    adds_half_into_fp32: bool,
) -> Tensor {
    let [shift_labels, _labels] = shifted(labels);
    let rows = [labels.layout().numel(), last_hidden_state.size(-1)];
    let flat = ops::reshape(last_hidden_state, &rows);
    share(ops::fused_linear_cross_entropy(&flat, head, &shift_labels, adds_half_into_fp32), micro_batches)
}

fn share(loss: Tensor, micro_batches: u32) -> Tensor {
    if micro_batches > 1 { ops::div_scalar(&loss) } else { loss }
}

/// The labels shifted by one, and the padded ones, which the caller's name still holds.
fn shifted(labels: &Tensor) -> [Tensor; 2] {
    let padded = ops::constant_pad_last(labels, 1);
    [ops::contiguous(ops::slice_last(&padded, labels.size(-1))), padded]
}

fn cross_entropy(logits: &Tensor, labels: &Tensor) -> Tensor {
    let logits = ops::to(logits, Dtype::F32);
    let rows = labels.layout().numel();
    let [shift_labels, _labels] = shifted(labels);
    let flat = ops::reshape(&logits, &[rows, logits.size(-1)]);
    ops::nll_loss(ops::log_softmax(&flat), &shift_labels)
}
