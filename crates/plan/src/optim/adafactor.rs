//! `torch.optim.Adafactor` (`torch/optim/_adafactor.py`), a parameter at a time: a row and a column of variances for a matrix,
//! the whole for a vector; each step builds the estimate again, as large as the parameter.

use super::{State, passes, state_of};
use crate::nn::Parameter;
use crate::torch::cost::product_flops;
use crate::torch::{Layout, Torch};
use smallvec::smallvec;
use std::rc::Rc;

/// The sizes with a dimension, counted from the end, of 1.
fn without(sizes: &[u64], from_end: usize) -> Layout {
    let mut kept = sizes.to_vec();
    let at = sizes.len().checked_sub(from_end);
    if let Some(size) = at.and_then(|at| kept.get_mut(at)) {
        *size = 1;
    }
    Layout::contiguous(&kept)
}

fn is_matrix(parameter: &Parameter) -> bool {
    parameter.tensor.sizes().len() > 1
}

pub(super) fn state(parameter: &Parameter) -> State {
    let (sizes, dtype) = (parameter.tensor.sizes(), parameter.tensor.dtype());
    if !is_matrix(parameter) {
        let layout = parameter.tensor.layout().clone();
        return smallvec![state_of(parameter, "zeros_like", "variance", layout, dtype)];
    }
    let variances = |name, from_end| state_of(parameter, "new_zeros", name, without(sizes, from_end), dtype);
    smallvec![variances("row_var", 1), variances("col_var", 2)]
}

pub(super) fn step(torch: &Rc<Torch>, parameters: &[Parameter]) {
    // names that the loop binds again for each parameter hold what they held until then
    let (mut _row_mean, mut _col_mean, mut _grad_squared, mut _var_estimate, mut _update) =
        (None, None, None, None, None);
    for parameter in parameters {
        let (layout, dtype) = (parameter.tensor.layout(), parameter.tensor.dtype());
        let make = |op, layout: &Layout| {
            torch.launch(op);
            torch.empty(layout.clone(), dtype)
        };
        let number = |op| drop(make(op, &Layout::contiguous(&[])));
        number("linalg_vector_norm");
        if is_matrix(parameter) {
            let sizes = parameter.tensor.sizes();
            _row_mean = Some(make("linalg_vector_norm", &without(sizes, 1)));
            torch.launch("lerp_.Scalar");
            _col_mean = Some(make("linalg_vector_norm", &without(sizes, 2)));
            torch.launch("lerp_.Scalar");
            let product = if sizes.len() == 2 { "mm" } else { "bmm" };
            _var_estimate = Some(make(product, layout));
            torch.multiplies(product_flops(layout.numel(), 1), dtype);
            drop(make("mean.dim", &without(without(sizes, 1).sizes(), 2)));
        } else {
            _grad_squared = Some(make("mul.Tensor", layout));
            torch.launch("lerp_.Scalar");
            _var_estimate = Some(make("clone", layout));
        }
        _update = _var_estimate.clone();
        number("linalg_vector_norm");
        torch.launch("add_.Tensor");
        // the norm of the parameter, the gradient twice (its rows and columns; its square, with `lerp_` and `clone`), then
        // `clamp_`, `rsqrt_`, `mul_`, the norm of the update, `add_`; the factors of a matrix are next to nothing
        let of_kind = if is_matrix(parameter) { 2 } else { 1 + 2 + 1 };
        passes(torch, std::slice::from_ref(parameter), 1 + of_kind + 2 + 2 + 3 + 1 + 3);
    }
}
