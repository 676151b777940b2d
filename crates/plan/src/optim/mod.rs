//! Optimizers: the state that the first step makes, and what each step allocates for itself.
//!
//! An optimizer is one file with a `step`, and one arm in [`Optimizer::step`].

mod adamw;
mod clip;
mod sgd;

pub(crate) use clip::clip_grad_norm;

use crate::nn::Parameter;
use crate::options::{OptimizerImpl, OptimizerKind};
use crate::torch::tape::Role;
use crate::torch::{Dtype, Layout, Tensor, Torch};
use peakledger_core::Category;
use std::rc::Rc;

/// An optimizer with the state it has made so far.
pub(crate) struct Optimizer {
    kind: OptimizerKind,
    implementation: OptimizerImpl,
    momentum: bool,
    /// One entry a parameter, once there is any.
    state: Vec<Vec<Tensor>>,
}

impl Optimizer {
    pub(crate) fn new(kind: OptimizerKind, implementation: OptimizerImpl, momentum: bool) -> Optimizer {
        Optimizer { kind, implementation, momentum, state: Vec::new() }
    }

    /// `optimizer.step()` over the parameters that have a gradient.
    pub(crate) fn step(&mut self, parameters: &[Parameter]) {
        match self.kind {
            OptimizerKind::AdamW => adamw::step(&mut self.state, parameters, self.implementation),
            OptimizerKind::Sgd => sgd::step(&mut self.state, parameters, self.implementation, self.momentum),
        }
    }
}

/// A piece of optimizer state for a parameter, made by an op of that name.
fn state_of(parameter: &Parameter, op: &'static str, name: &'static str, layout: Layout, dtype: Dtype) -> Tensor {
    let torch: &Rc<Torch> = parameter.tensor.torch();
    torch.launch(op);
    let tensor = torch.empty(layout, dtype);
    tensor.relabel(|stored| {
        stored.category = Category::OptimizerState;
        stored.detail = None;
        stored.module = parameter.module;
        stored.role = Role::Of { parameter: parameter.id, state: name };
    });
    tensor
}

/// Tensors shaped as the parameters, made by one op over all of them: a foreach temporary.
fn foreach_like(parameters: &[Parameter], op: &'static str) -> Vec<Tensor> {
    if let Some(first) = parameters.first() {
        first.tensor.torch().launch(op);
    }
    let like = |p: &Parameter| p.tensor.torch().empty(*p.tensor.layout(), p.tensor.dtype());
    parameters.iter().map(like).collect()
}
