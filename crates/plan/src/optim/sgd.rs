//! `torch.optim.SGD` (`torch/optim/sgd.py`): nothing to keep, or one momentum buffer, which the first step clones from the
//! gradient.

use super::state_of;
use crate::nn::Parameter;
use crate::options::OptimizerImpl;
use crate::torch::{Tensor, Torch};

pub(super) fn state(parameter: &Parameter, implementation: OptimizerImpl, momentum: bool) -> Vec<Tensor> {
    let (layout, dtype) = (parameter.tensor.layout(), parameter.tensor.dtype());
    let op = if implementation == OptimizerImpl::Fused { "empty_like" } else { "clone" };
    let buffer = || state_of(parameter, op, "momentum_buffer", layout.clone(), dtype);
    momentum.then(buffer).into_iter().collect()
}

pub(super) fn step(torch: &Torch, implementation: OptimizerImpl) {
    torch.launch(match implementation {
        OptimizerImpl::Fused => "_fused_sgd_",
        OptimizerImpl::Foreach => "_foreach_add_.List",
        OptimizerImpl::ForLoop => "add_.Tensor",
    });
}
