//! `torch.optim.SGD` (`torch/optim/sgd.py`): nothing to keep, or one momentum buffer, which the first step clones from the
//! gradient.

use super::{State, passes, redistributed, state_of};
use crate::nn::Parameter;
use crate::options::OptimizerImpl;
use crate::torch::Torch;

pub(super) fn state(parameter: &Parameter, implementation: OptimizerImpl, momentum: bool) -> State {
    let (layout, dtype) = (parameter.tensor.layout(), parameter.tensor.dtype());
    let op = if implementation == OptimizerImpl::Fused { "empty_like" } else { "clone" };
    let buffer = || state_of(parameter, op, "momentum_buffer", layout.clone(), dtype);
    momentum.then(buffer).into_iter().collect()
}

pub(super) fn step(torch: &Torch, parameters: &[Parameter], implementation: OptimizerImpl, momentum: bool) {
    let _parts = redistributed(parameters);
    torch.launch(match implementation {
        OptimizerImpl::Fused => "_fused_sgd_",
        OptimizerImpl::Foreach => "_foreach_add_.List",
        OptimizerImpl::ForLoop => "add_.Tensor",
        OptimizerImpl::MultiTensor => "multi_tensor_sgd",
    });
    // parameter and gradient in, parameter out; a buffer is scaled and added to before, or in and out of the fused kernel
    let times = match (momentum, implementation) {
        (false, _) => 3,
        (true, OptimizerImpl::Fused) => 5,
        (true, _) => 3 + 2 + 3,
    };
    passes(torch, parameters, times);
}
