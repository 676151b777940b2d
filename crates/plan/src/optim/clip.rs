//! `torch.nn.utils.clip_grad_norm_` (`torch/nn/utils/clip_grad.py`): a norm for each gradient, the norm of those, and the
//! factor; gradients are scaled in place. As torch's tracker runs it, a gradient at a time; a card takes `_foreach_norm`,
//! which allocates the same.

use super::{by_dtype, passes};
use crate::nn::Parameter;
use crate::torch::{Dtype, Layout, Tensor};

pub(crate) fn clip_grad_norm(parameters: &[Parameter]) {
    let Some(first) = parameters.first() else { return };
    let torch = first.tensor.torch();
    let make = |op, sizes: &[u64], dtype: Dtype| {
        torch.launch(op);
        torch.empty(Layout::contiguous(sizes), dtype)
    };
    let norm = |p: &Parameter| make("linalg_vector_norm", &[], p.tensor.dtype());
    let norms: Vec<Tensor> = by_dtype(parameters).into_iter().flatten().map(norm).collect();
    passes(torch, parameters, 1);
    let dtypes = parameters.iter().map(|p| p.tensor.dtype());
    let dtype = dtypes.fold(first.tensor.dtype(), Dtype::promote);
    let stacked = make("stack", &[u64::try_from(norms.len()).unwrap_or(u64::MAX)], dtype);
    let _total = make("linalg_vector_norm", &[], dtype);
    drop((norms, stacked));
    let shifted = make("add.Tensor", &[], dtype);
    let inverse = make("reciprocal", &[], dtype);
    let _coefficient = make("mul.Tensor", &[], dtype);
    drop((shifted, inverse));
    let _clamped = make("clamp", &[], dtype);
    torch.launch("mul_.Tensor");
    passes(torch, parameters, 2);
}
