//! `torch.optim.AdamW` (`torch/optim/adam.py`): two moments in the parameter's type, and a square root that costs a copy
//! of the whole model (foreach), of the largest parameter twice (for-loop) or nothing (fused).

use super::{State, by_dtype, foreach_like, passes, redistributed, state_of};
use crate::nn::Parameter;
use crate::options::OptimizerImpl;
use crate::torch::{Dtype, Layout, Tensor, Torch};
use std::rc::Rc;

/// Parameter, gradient and both moments in, all but the gradient out.
const FUSED: u64 = 4 + 3;
/// The ops of `_multi_tensor_adam` as of `_single_tensor_adam`: `mul_`, `lerp_`, `mul_`, `addcmul_`, `sqrt`, the division,
/// `add_`, `addcdiv_`. What `empty` counts, the tensors that they make, is taken off below.
const PLAIN: u64 = 2 + 3 + 2 + 3 + 2 + 2 + 2 + 4;

pub(super) fn step(torch: &Rc<Torch>, parameters: &[Parameter], implementation: OptimizerImpl) {
    match implementation {
        OptimizerImpl::Fused => {
            for list in by_dtype(parameters) {
                let _parts = redistributed(list);
                torch.launch("_fused_adamw_");
            }
            passes(torch, parameters, FUSED);
        }
        OptimizerImpl::MultiTensor => {
            torch.launch("multi_tensor_adam");
            passes(torch, parameters, FUSED);
        }
        OptimizerImpl::Foreach => {
            // the name that the loop binds again for each list holds what it held until then
            let mut _root = Vec::new();
            for list in by_dtype(parameters) {
                let moments = ["_foreach_lerp_.Scalar", "_foreach_addcmul_.Scalar"];
                moments_of(torch, &list, moments);
                _root = foreach_like(torch, &list, "_foreach_sqrt");
                torch.launch("_foreach_addcdiv_.ScalarList");
            }
            passes(torch, parameters, PLAIN - 1);
        }
        OptimizerImpl::ForLoop => {
            let mut _denominator: Option<Tensor> = None;
            for parameter in parameters {
                moments_of(torch, &[parameter], ["lerp_.Scalar", "addcmul_"]);
                let like = |op| {
                    torch.launch(op);
                    torch.empty(parameter.tensor.layout().clone(), parameter.tensor.dtype())
                };
                let root = like("sqrt");
                let quotient = like("div.Tensor");
                drop(root);
                torch.launch("add_.Tensor");
                _denominator = Some(quotient);
                torch.launch("addcdiv_");
            }
            passes(torch, parameters, PLAIN - 2);
        }
    }
}

/// The two ops that take gradients, the second one twice. They make nothing but where gradients are made parts.
fn moments_of(torch: &Torch, parameters: &[&Parameter], [first, second]: [&'static str; 2]) {
    let parts = redistributed(parameters.iter().copied());
    if parts.is_empty() {
        return;
    }
    torch.launch(first);
    drop(parts);
    let _parts = [(); 2].map(|()| redistributed(parameters.iter().copied()));
    torch.launch(second);
}

/// The step count is a number on the cpu but for the fused kernel, which keeps it on the device.
pub(super) fn state(parameter: &Parameter, implementation: OptimizerImpl) -> State {
    let (layout, dtype) = (parameter.tensor.layout(), parameter.tensor.dtype());
    let mut state = State::new();
    if implementation == OptimizerImpl::Fused {
        state.push(state_of(parameter, "zeros", "step", Layout::contiguous(&[]), Dtype::F32));
    }
    state.push(state_of(parameter, "zeros_like", "exp_avg", layout.clone(), dtype));
    state.push(state_of(parameter, "zeros_like", "exp_avg_sq", layout.clone(), dtype));
    state
}
