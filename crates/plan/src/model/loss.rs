//! `ForCausalLMLoss` (`transformers/loss/loss_utils.py`): logits in fp32, labels shifted by one, cross entropy.

use crate::torch::{Dtype, Tensor, ops};

/// The loss of a micro-batch; its share of the step's where there are several.
pub(crate) fn causal_lm_loss(logits: &Tensor, labels: &Tensor, micro_batches: usize) -> Tensor {
    let loss = cross_entropy(logits, labels);
    if micro_batches > 1 { ops::div_scalar(&loss) } else { loss }
}

fn cross_entropy(logits: &Tensor, labels: &Tensor) -> Tensor {
    let logits = ops::to(logits, Dtype::F32);
    let rows = labels.layout().numel();
    let padded = ops::constant_pad_last(labels, 1);
    let shift_labels = ops::contiguous(ops::slice_last(&padded, labels.size(-1)));
    let flat = ops::reshape(&logits, &[rows, logits.size(-1)]);
    ops::nll_loss(ops::log_softmax(&flat), &shift_labels)
}
