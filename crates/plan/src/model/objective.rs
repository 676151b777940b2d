//! What post-training asks of a model in place of the next token's loss: the log-probabilities of a response, which the
//! actor is trained on and the reference is asked for, and values, which a critic and a reward model give.

use crate::config::Shape;
use crate::nn::Builder;
use crate::options::Objective;
use crate::torch::{Dtype, ModuleId, Tensor, ops};

/// The log-probabilities of the last `response` tokens of each row, `[b · response]`, from the last hidden states
/// `[b, s, h]`: the rows that count are picked, then head and log-softmax are one op (`add_fused_lm_head`,
/// `trl/trainer/utils.py`).
pub(crate) fn response_log_probs(
    last_hidden_state: &Tensor,
    head: &Tensor,
    labels: &Tensor,
    response: u64,
) -> Tensor {
    let rows = labels.size(0).saturating_mul(response);
    let labels = ops::clone(labels.clone()); // masked_fill: what is no response counts for nothing
    let hidden_states = ops::all_but_last(last_hidden_state);
    let found = ops::nonzero(&labels, rows);
    let picked = ops::index(&hidden_states, &[&found, &found]);
    drop((labels, hidden_states));
    ops::chunked_log_probs(&picked, head, &found)
}

/// A loss over log-probabilities. Of the few tensors of 4 bytes a token that it takes one is made.
pub(crate) fn policy_loss(log_probs: &Tensor, micro_batches: u32) -> Tensor {
    share(ops::sum(ops::neg(log_probs), 0, false), micro_batches)
}

/// A loss over values `[b, s, 1]`.
pub(crate) fn value_loss(values: &Tensor, micro_batches: u32) -> Tensor {
    let flat = ops::reshape(values, &[values.layout().numel()]);
    share(ops::sum(ops::pow2(flat), 0, false), micro_batches)
}

fn share(loss: Tensor, micro_batches: u32) -> Tensor {
    if micro_batches > 1 { ops::div_scalar(&loss) } else { loss }
}

/// The head of a model that gives one number a token: `score` of transformers' `…ForTokenClassification`, without its bias.
pub(crate) struct ValueHead {
    module: ModuleId,
    weight: Tensor,
}

impl ValueHead {
    /// That of a model which is asked for values. It is trained in full, beside adapters too (`modules_to_save`, peft).
    pub(crate) fn of(build: &mut Builder, shape: &Shape, objective: Objective) -> Option<ValueHead> {
        if objective != Objective::Values {
            return None;
        }
        let module = build.module(build.root(), "score");
        let (width, dtype): (u64, Dtype) = (shape.hidden_size, build.dtype);
        let weight = build.trained_part((module, "weight"), &[1, width], dtype, width);
        Some(ValueHead { module, weight })
    }

    /// `[b, s, h]` to `[b, s, 1]`.
    pub(crate) fn forward(&self, last_hidden_state: &Tensor) -> Tensor {
        let torch = last_hidden_state.torch();
        torch.inside(self.module, || ops::linear(last_hidden_state, &self.weight, None))
    }
}
