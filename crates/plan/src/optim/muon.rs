//! `torch.optim.Muon` (`torch/optim/_muon.py`), a parameter at a time: one momentum buffer, and an update that is made
//! orthogonal by five Newton-Schulz iterations in bf16. It takes matrices of hidden layers and no others.

use super::{State, passes, state_of};
use crate::nn::Parameter;
use crate::torch::cost::product_flops;
use crate::torch::{Dtype, Layout, Tensor, Torch};
use smallvec::smallvec;
use std::rc::Rc;

/// Iterations (`DEFAULT_NS_STEPS`).
const NS_STEPS: usize = 5;

/// Whether torch's Muon takes it, and its documentation means it to: it refuses all but two dimensions, so experts that lie
/// in one tensor too, and leaves embeddings and the head, which are in no layer, to another optimizer.
pub(super) fn takes(parameter: &Parameter) -> bool {
    let in_layer = || parameter.tensor.torch().tape.borrow().layer(parameter.module).is_some();
    parameter.tensor.sizes().len() == 2 && in_layer()
}

pub(super) fn state(parameter: &Parameter) -> State {
    let (layout, dtype) = (parameter.tensor.layout().clone(), parameter.tensor.dtype());
    smallvec![state_of(parameter, "zeros_like", "momentum_buffer", layout, dtype)]
}

pub(super) fn step(torch: &Rc<Torch>, parameters: &[Parameter]) {
    // the name that the loop binds again for each parameter holds what it held until then
    let mut _update: Option<Tensor> = None;
    for parameter in parameters {
        torch.launch("lerp_.Scalar");
        torch.launch("lerp.Scalar");
        let nesterov = torch.empty(parameter.tensor.layout().clone(), parameter.tensor.dtype());
        _update = None;
        _update = Some(orthogonal(torch, &nesterov));
        drop(nesterov);
        torch.launch("mul_.Tensor");
        torch.launch("add_.Tensor");
        // gradient and buffer in both `lerp`s, the first of which writes; the parameter decays and is added to
        passes(torch, std::slice::from_ref(parameter), 3 + 2 + 2 + 2);
    }
}

/// `_zeropower_via_newtonschulz`.
fn orthogonal(torch: &Rc<Torch>, update: &Tensor) -> Tensor {
    let make = |op, sizes: &[u64]| {
        torch.launch(op);
        torch.empty(Layout::contiguous(sizes), Dtype::Bf16)
    };
    let short = update.size(0).min(update.size(1));
    let mut result = make("_to_copy", update.sizes());
    let norm = make("linalg_vector_norm", &[]);
    let clamped = make("clamp", &[]);
    drop(norm);
    torch.launch("div_.Tensor");
    drop(clamped);
    let (mut _gram_matrix, mut _gram_update) = (None, None);
    let square = short.saturating_mul(short);
    for _ in 0..NS_STEPS {
        let product = |op, sizes: &[u64], elements, inner| {
            let product = make(op, sizes);
            torch.multiplies(product_flops(elements, inner), Dtype::Bf16);
            product
        };
        let numbers = update.layout().numel();
        _gram_matrix = Some(product("mm", &[short, short], square, numbers / short.max(1)));
        _gram_update = Some(product("addmm", &[short, short], square, short));
        result = product("addmm", update.sizes(), numbers, short);
    }
    result
}
