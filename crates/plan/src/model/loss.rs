//! The loss of a causal language model (`transformers/loss/loss_utils.py`): logits in fp32, labels shifted by one, cross
//! entropy; or head and loss as one op (`LigerForCausalLMLoss`); or cross entropy over logits that tensor parallel ranks share.

use crate::torch::ops::Group;
use crate::torch::{Dtype, Tensor, ops};

/// The ids that a loss compares with, `[b, s]`.
#[derive(Clone, Copy)]
pub(crate) enum Targets<'a> {
    /// Each token's own.
    Labels(&'a Tensor),
    /// Each token's next, as they are where ranks share the sequence.
    Shifted(&'a Tensor),
}

/// The loss of a micro-batch; its share of the step's where there are several. Logits whose vocabulary is shared out stay so.
pub(crate) fn causal_lm_loss(
    logits: &Tensor,
    targets: Targets<'_>,
    shared_by: Option<Group>,
    micro_batches: u32,
) -> Tensor {
    share(cross_entropy(logits, targets, shared_by), micro_batches)
}

/// The same from what the head is given.
pub(crate) fn fused_causal_lm_loss(
    last_hidden_state: &Tensor,
    head: &Tensor,
    targets: Targets<'_>,
    micro_batches: u32,
    adds_half_into_fp32: bool,
) -> Tensor {
    let [shift_labels, _labels] = shifted(targets);
    let rows = [shift_labels.layout().numel(), last_hidden_state.size(-1)];
    let flat = ops::reshape(last_hidden_state, &rows);
    share(ops::fused_linear_cross_entropy(&flat, head, &shift_labels, adds_half_into_fp32), micro_batches)
}

fn share(loss: Tensor, micro_batches: u32) -> Tensor {
    if micro_batches > 1 { ops::div_scalar(&loss) } else { loss }
}

/// The labels shifted by one, and the padded ones, which the caller's name still holds.
fn shifted(targets: Targets<'_>) -> [Tensor; 2] {
    let labels = match targets {
        Targets::Labels(labels) => labels,
        Targets::Shifted(shifted) => return [shifted, shifted].map(Tensor::clone),
    };
    let padded = ops::constant_pad_last(labels, 1);
    [ops::contiguous(ops::slice_last(&padded, labels.size(-1))), padded]
}

fn cross_entropy(logits: &Tensor, targets: Targets<'_>, shared_by: Option<Group>) -> Tensor {
    let logits = ops::to(logits, Dtype::F32);
    let [shift_labels, _labels] = shifted(targets);
    let flat = ops::reshape(&logits, &[shift_labels.layout().numel(), logits.size(-1)]);
    match shared_by {
        None => ops::nll_loss(ops::log_softmax(&flat), &shift_labels),
        Some(group) => ops::nll_loss_parallel(&ops::log_softmax_parallel(&flat, group), &shift_labels, group),
    }
}
