//! `bitsandbytes.optim.AdamW32bit` (`bitsandbytes/optim/adamw.py`, `optimizer.py`): two moments in fp32, of whatever type the
//! parameter is, and a kernel that does a parameter's step in place, so that it allocates nothing.

use super::{State, passes, state_of};
use crate::nn::Parameter;
use crate::torch::{Dtype, Torch};
use smallvec::smallvec;

pub(super) fn state(parameter: &Parameter) -> State {
    let moment = |name| {
        let layout = parameter.tensor.layout().clone();
        state_of(parameter, "zeros_like", name, layout, Dtype::F32)
    };
    smallvec![moment("state1"), moment("state2")]
}

pub(super) fn step(torch: &Torch, parameters: &[Parameter]) {
    for parameter in parameters {
        torch.launch("optimizer_update_32bit");
        // parameter, gradient and moments in, parameter and moments out
        passes(torch, std::slice::from_ref(parameter), 3);
        torch.moves(parameter.tensor.layout().numel().saturating_mul(4 * Dtype::F32.width()));
    }
}
