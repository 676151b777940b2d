//! Cross entropy over logits whose vocabulary is shared out (`loss_parallel`, `torch/distributed/tensor/parallel/loss.py`):
//! ranks sum what each finds in its part. Backward of the loss makes the logits' gradient at once, without another rank, and
//! that of the log-softmax hands it on.

use super::collectives::{Group, summed};
use super::indexing::{arange, found_here};
use super::pointwise::{like, to_copy};
use super::{one, output};
use crate::torch::autograd::{record, recorded};
use crate::torch::{Dtype, Layout, Tensor};

/// `F.log_softmax` of this rank's part of the logits, `[n, v / ranks]` in fp32. Saves its result.
pub(crate) fn log_softmax_parallel(logits: &Tensor, group: Group) -> Tensor {
    let result = log_softmax(logits, group);
    if !recorded(logits.torch(), &[logits]) {
        return result;
    }
    let saved = result.save();
    record(result, &[logits], move |grad| {
        let _result = saved.unpack();
        one(grad.clone())
    })
}

fn log_softmax(logits: &Tensor, group: Group) -> Tensor {
    let column = Layout::contiguous(&[logits.size(0), 1]);
    let part = logits.layout().packed();
    let mut _largest = like("amax", logits, column.clone());
    _largest = summed(&_largest, group);
    let shifted = like("sub.Tensor", logits, part.clone());
    let mut sums = {
        let powers = like("exp", &shifted, part.clone());
        like("sum.dim_IntList", &powers, column.clone())
    };
    sums = summed(&sums, group);
    let _logarithms = like("log", &sums, column);
    like("sub.Tensor", &shifted, part)
}

/// `F.nll_loss` of this rank's part of the log-probabilities: a scalar, the same on all ranks. Saves them, the targets and
/// how many there are.
pub(crate) fn nll_loss_parallel(log_probs: &Tensor, targets: &Tensor, group: Group) -> Tensor {
    targets.seen(); // as a DTensor
    let saved = recorded(log_probs.torch(), &[log_probs]).then(|| (log_probs.save(), targets.save()));
    let [loss, number] = nll_loss(log_probs, targets, group);
    let Some((log_probs_saved, targets)) = saved else { return loss };
    let number = number.save();
    record(loss, &[log_probs], move |grad| {
        let (log_probs, targets, _number) = (log_probs_saved.unpack(), targets.unpack(), number.unpack());
        one(nll_loss_backward(grad, &log_probs, &targets))
    })
}

fn nll_loss(log_probs: &Tensor, targets: &Tensor, group: Group) -> [Tensor; 2] {
    let torch = log_probs.torch();
    let rows = log_probs.size(0);
    let (row, scalar) = (Layout::contiguous(&[rows]), Layout::contiguous(&[]));
    let targets = counted(targets, &row);
    let (_ids, elsewhere) = found_here(&targets);
    let found = like("gather", log_probs, Layout::contiguous(&[rows, 1]));
    torch.launch("masked_fill_.Scalar");
    drop(elsewhere);
    let whole = summed(&found, group);
    let mut each = like("neg", &whole, row.clone());
    each = counted(&each, &row);
    let number = {
        let number = {
            let _counts = output(torch, "ne.Scalar", row, Dtype::Bool);
            output(torch, "sum", scalar.clone(), Dtype::Int64)
        };
        to_copy(&number, log_probs.dtype())
    };
    let sum = like("sum", &each, scalar.clone());
    [like("div.Tensor", &sum, scalar), number]
}

/// Zero where a target does not count (`torch.where(target != ignore_index, a, 0)`).
fn counted(a: &Tensor, layout: &Layout) -> Tensor {
    let _counts = output(a.torch(), "ne.Scalar", layout.clone(), Dtype::Bool);
    like("where.ScalarOther", a, layout.clone())
}

/// The gradient of the logits (`_nll_loss_and_log_softmax_backward`).
fn nll_loss_backward(grad: &Tensor, log_probs: &Tensor, targets: &Tensor) -> Tensor {
    let torch = grad.torch();
    let rows = log_probs.size(0);
    let column = Layout::contiguous(&[rows, 1]);
    let part = log_probs.layout().packed();
    let mut share = like("div.Tensor", grad, Layout::contiguous(&[]));
    let targets = counted(targets, &column);
    let for_logits = like("zeros_like", log_probs, part.clone());
    let (_ids, elsewhere) = found_here(&targets);
    let _update = {
        let elsewhere = to_copy(&elsewhere, log_probs.dtype());
        like("sub.Tensor", &elsewhere, Layout::contiguous(&[rows]))
    };
    let _rows = arange(torch, rows);
    torch.launch("index_put_");
    share = counted(&share, &column);
    let difference = {
        let probs = like("exp", log_probs, part.clone());
        torch.reads(&[&for_logits]);
        like("add.Tensor", &probs, part.clone())
    };
    torch.reads(&[&share]);
    like("mul.Tensor", &difference, part)
}
