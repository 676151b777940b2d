//! `bitsandbytes.optim.AdamW8bit` (`bitsandbytes/optim/optimizer.py`): two moments of one byte a number with a scale for
//! 256, made smaller and larger inside the kernel, so that a step allocates nothing.

use super::{State, state_of};
use crate::nn::Parameter;
use crate::torch::{Dtype, Layout, Torch};
use std::rc::Rc;

/// Smaller parameters keep their moments in fp32 (`min_8bit_size`).
const SMALLEST: u64 = 4096;
/// Numbers that share a scale.
const BLOCK: u64 = 256;

/// The first parameter with 8-bit moments brings the two tables that all of them read.
pub(super) fn state(parameter: &Parameter, with_tables: bool) -> State {
    let layout = parameter.tensor.layout();
    let made = |name, layout: &Layout, dtype| state_of(parameter, "zeros_like", name, layout.clone(), dtype);
    if !is_8bit(parameter) {
        return ["state1", "state2"].map(|name| made(name, layout, Dtype::F32)).into();
    }
    let mut state = State::new();
    if with_tables {
        let table = Layout::contiguous(&[256]);
        state.extend(
            ["qmap1", "qmap2"].map(|name| state_of(parameter, "_to_copy", name, table.clone(), Dtype::F32)),
        );
    }
    state.extend(["state1", "state2"].map(|name| made(name, layout, Dtype::Byte)));
    let scales = Layout::contiguous(&[layout.numel().div_ceil(BLOCK)]);
    state.extend(
        ["absmax1", "absmax2"].map(|name| state_of(parameter, "zeros", name, scales.clone(), Dtype::F32)),
    );
    state
}

pub(super) fn is_8bit(parameter: &Parameter) -> bool {
    parameter.tensor.layout().numel() >= SMALLEST
}

pub(super) fn step(torch: &Rc<Torch>, parameters: &[Parameter]) {
    for parameter in parameters {
        torch.launch(if is_8bit(parameter) {
            "optimizer_update_8bit_blockwise"
        } else {
            "optimizer_update_32bit"
        });
        // parameter and gradient in, parameter out; both moments in and out
        let numbers = parameter.tensor.layout().numel();
        let moment = if is_8bit(parameter) { 1 } else { 4 };
        torch.moves(numbers.saturating_mul(3 * parameter.tensor.dtype().width() + 4 * moment));
    }
}
