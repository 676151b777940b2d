//! `bitsandbytes.optim.Lion` (`bitsandbytes/optim/lion.py`, `optimizer.py`), torch having none: one moment in fp32, of
//! whatever type the parameter is, and a kernel that does a parameter's step in place, so that it allocates nothing.

use super::{State, passes, state_of};
use crate::nn::Parameter;
use crate::torch::{Dtype, Torch};
use smallvec::smallvec;

pub(super) fn state(parameter: &Parameter) -> State {
    let layout = parameter.tensor.layout().clone();
    smallvec![state_of(parameter, "zeros_like", "state1", layout, Dtype::F32)]
}

pub(super) fn step(torch: &Torch, parameters: &[Parameter]) {
    for parameter in parameters {
        torch.launch("optimizer_update_32bit");
        // parameter, gradient and moment in, parameter and moment out
        passes(torch, std::slice::from_ref(parameter), 3);
        torch.moves(parameter.tensor.layout().numel().saturating_mul(2 * Dtype::F32.width()));
    }
}
