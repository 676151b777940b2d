//! The two ops under `F.cross_entropy`.

use super::pointwise::like;
use super::{one, output};
use crate::torch::autograd::{record, recorded};
use crate::torch::{Layout, Tensor};
use std::borrow::Borrow;

/// `F.log_softmax(a, -1)`. Saves its result.
pub(crate) fn log_softmax(a: impl Borrow<Tensor>) -> Tensor {
    let a = a.borrow();
    let result = like("_log_softmax", a, a.layout().packed());
    if !recorded(a.torch(), &[a]) {
        return result;
    }
    let saved = result.save();
    let dtype = a.dtype();
    record(result, &[a], move |grad| {
        let result = saved.unpack();
        let for_a = output(grad.torch(), "_log_softmax_backward_data", result.layout().packed(), dtype);
        grad.torch().reads(&[grad, &result]);
        one(for_a)
    })
}

/// `F.nll_loss(a, target)`: a scalar and the total weight. Saves all three; backward makes a gradient of the input's size.
pub(crate) fn nll_loss(a: impl Borrow<Tensor>, target: &Tensor) -> Tensor {
    let a = a.borrow();
    let scalar = Layout::contiguous(&[]);
    let save = recorded(a.torch(), &[a]);
    let saved = save.then(|| (a.save(), target.save()));
    let loss = output(a.torch(), "nll_loss_forward", scalar.clone(), a.dtype());
    // of each row it reads the element that the target names
    a.torch().reads(&[target]);
    a.torch().moves(target.layout().numel().saturating_mul(a.dtype().width()));
    let weight = a.torch().empty(scalar, a.dtype());
    let Some((input, target)) = saved else { return loss };
    let weight = weight.save();
    record(loss, &[a], move |grad| {
        let (input, target, _weight) = (input.unpack(), target.unpack(), weight.unpack());
        let for_a = output(grad.torch(), "nll_loss_backward", input.layout().packed(), input.dtype());
        grad.torch().reads(&[&target]);
        one(for_a)
    })
}
