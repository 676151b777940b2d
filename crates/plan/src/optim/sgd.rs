//! `torch.optim.SGD` (`torch/optim/sgd.py`): nothing to keep, or one momentum buffer, which the first step clones from the
//! gradient.

use super::state_of;
use crate::nn::Parameter;
use crate::options::OptimizerImpl;
use crate::torch::Tensor;

pub(super) fn step(
    state: &mut Vec<Vec<Tensor>>,
    parameters: &[Parameter],
    implementation: OptimizerImpl,
    momentum: bool,
) {
    if momentum && state.is_empty() {
        let buffer = |p: &Parameter| {
            vec![state_of(p, "clone", "momentum_buffer", *p.tensor.layout(), p.tensor.dtype())]
        };
        *state = parameters.iter().map(buffer).collect();
    }
    if let Some(first) = parameters.first() {
        first.tensor.torch().launch(match implementation {
            OptimizerImpl::Fused => "_fused_sgd_",
            OptimizerImpl::Foreach => "_foreach_add_.List",
            OptimizerImpl::ForLoop => "add_.Tensor",
        });
    }
}
