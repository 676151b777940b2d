//! Optimizers: the state that the first step makes, and what each step allocates for itself.
//!
//! An optimizer is one file with a `state` and a `step`, and an arm for each in [`Optimizer`].

mod adafactor;
mod adamw;
mod adamw_32bit;
mod adamw_8bit;
mod clip;
mod grad_scaler;
mod lion;
mod muon;
mod sgd;

pub(crate) use clip::clip_grad_norm;
pub(crate) use grad_scaler::GradScaler;

use crate::nn::{Parameter, Spread};
use crate::options::{OptimizerImpl, OptimizerKind};
use crate::torch::tape::Role;
use crate::torch::{Dtype, Layout, Tensor, Torch, ops};
use peakledger_core::Category;
use smallvec::SmallVec;
use std::rc::Rc;

/// An optimizer with the state it has made so far.
pub(crate) struct Optimizer {
    kind: OptimizerKind,
    implementation: OptimizerImpl,
    momentum: bool,
    state: Vec<Tensor>,
}

/// What an optimizer keeps for a parameter, mostly two moments.
type State = SmallVec<[Tensor; 2]>;

impl Optimizer {
    pub(crate) fn new(kind: OptimizerKind, implementation: OptimizerImpl, momentum: bool) -> Optimizer {
        Optimizer { kind, implementation, momentum, state: Vec::new() }
    }

    /// Makes the state of every parameter, which torch does in the first step.
    pub(crate) fn make_state(&mut self, parameters: &[Parameter]) {
        let first_8bit = parameters.iter().position(adamw_8bit::is_8bit);
        let Optimizer { kind, implementation, momentum, .. } = *self;
        let make = |(index, parameter): (usize, &Parameter)| match kind {
            OptimizerKind::AdamW => adamw::state(parameter, implementation),
            OptimizerKind::AdamW8bit => adamw_8bit::state(parameter, first_8bit == Some(index)),
            OptimizerKind::AdamW32bit => adamw_32bit::state(parameter),
            OptimizerKind::Sgd => sgd::state(parameter, implementation, momentum),
            OptimizerKind::Adafactor => adafactor::state(parameter),
            OptimizerKind::Lion => lion::state(parameter),
            OptimizerKind::Muon => muon::state(parameter),
        };
        self.state = Vec::with_capacity(2 * parameters.len());
        parameters.iter().enumerate().for_each(|parameter| self.state.extend(make(parameter)));
    }

    /// `optimizer.step()`, once there is state.
    pub(crate) fn step(&self, parameters: &[Parameter]) {
        let Some(first) = parameters.first() else { return };
        let torch = first.tensor.torch();
        match self.kind {
            OptimizerKind::AdamW => adamw::step(torch, parameters, self.implementation),
            OptimizerKind::AdamW8bit => adamw_8bit::step(torch, parameters),
            OptimizerKind::AdamW32bit => adamw_32bit::step(torch, parameters),
            OptimizerKind::Sgd => sgd::step(torch, parameters, self.implementation, self.momentum),
            OptimizerKind::Adafactor => adafactor::step(torch, parameters),
            OptimizerKind::Lion => lion::step(torch, parameters),
            OptimizerKind::Muon => muon::step(torch, parameters),
        }
    }
}

/// The parameters in groups that lists of tensors can take: plain ones, and DTensors of one mesh
/// (`Trainer.create_optimizer`, transformers).
pub(crate) fn by_mesh(parameters: Vec<Parameter>) -> Vec<Vec<Parameter>> {
    let mut groups: Vec<Vec<Parameter>> = Vec::new();
    for parameter in parameters {
        let is_alike =
            |group: &&mut Vec<Parameter>| group.first().is_some_and(|first| first.spread == parameter.spread);
        match groups.iter_mut().find(is_alike) {
            Some(group) => group.push(parameter),
            None => groups.push(vec![parameter]),
        }
    }
    groups
}

/// Gradients as an op over them and the parameters takes them, where they are no such DTensors yet: of one that every rank
/// made whole its part, of one that ranks have parts of the sum. They are there as long as the op runs.
pub(crate) fn redistributed<'a>(parameters: impl IntoIterator<Item = &'a Parameter>) -> Vec<Tensor> {
    let part = |parameter: &Parameter| {
        let grad = parameter.leaf.as_ref()?.grad.borrow().clone()?;
        of_the_part(parameter, &grad)
    };
    parameters.into_iter().filter_map(part).collect()
}

/// The gradient of this rank's part, where `grad` is none yet.
pub(crate) fn of_the_part(parameter: &Parameter, grad: &Tensor) -> Option<Tensor> {
    match parameter.parts_of_gradient {
        Some(group) => Some(ops::all_reduce(grad, group)),
        None => is_whole(parameter, grad).then(|| ops::part_like(grad, &parameter.tensor)),
    }
}

/// Whether every rank has the whole gradient of a parameter of which it has a part.
fn has_whole_gradient(parameter: &Parameter) -> bool {
    let grad = parameter.leaf.as_ref().and_then(|leaf| leaf.grad.borrow().clone());
    grad.is_some_and(|grad| is_whole(parameter, &grad))
}

fn is_whole(parameter: &Parameter, grad: &Tensor) -> bool {
    parameter.spread != Spread::None && grad.sizes() != parameter.tensor.sizes()
}

/// The optimizers that step these parameters, in order: one, but for Muon, which leaves to AdamW what it does not take.
pub(crate) fn shared_out(
    kind: OptimizerKind,
    parameters: Vec<Parameter>,
) -> Vec<(OptimizerKind, Vec<Parameter>)> {
    if kind != OptimizerKind::Muon {
        return vec![(kind, parameters)];
    }
    let (matrices, others): (Vec<_>, Vec<_>) = parameters.into_iter().partition(muon::takes);
    let both = [(OptimizerKind::Muon, matrices), (OptimizerKind::AdamW, others)];
    both.into_iter().filter(|(_, parameters)| !parameters.is_empty()).collect()
}

/// A piece of optimizer state for a parameter, made by an op of that name.
fn state_of(
    parameter: &Parameter,
    op: &'static str,
    name: &'static str,
    layout: Layout,
    dtype: Dtype,
) -> Tensor {
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

/// The running op reads or writes as much as all parameters are, so many times: its passes over them, their gradients and
/// states of their type, but for those over tensors that it makes.
fn passes(torch: &Torch, parameters: &[Parameter], times: u64) {
    let bytes = parameters.iter().fold(0, |n: u64, p| n.saturating_add(p.tensor.bytes_seen()));
    torch.moves(bytes.saturating_mul(times));
}

/// Lists of one type each, as ops over lists of tensors want them. The type that comes last is first: torch groups in an
/// unordered map (`_group_tensors_by_first_tensors_device_and_dtype`, `aten/src/ATen/native/ForeachUtils.h`).
fn by_dtype(parameters: &[Parameter]) -> Vec<Vec<&Parameter>> {
    let mut lists: Vec<Vec<&Parameter>> = Vec::new();
    for parameter in parameters {
        let is_alike = |list: &&mut Vec<&Parameter>| {
            list.first().is_some_and(|first| first.tensor.dtype() == parameter.tensor.dtype())
        };
        match lists.iter_mut().find(is_alike) {
            Some(list) => list.push(parameter),
            None => lists.push(vec![parameter]),
        }
    }
    lists.reverse();
    lists
}

/// Tensors shaped as the parameters, made by one op over all of them: a foreach temporary.
fn foreach_like(torch: &Rc<Torch>, parameters: &[&Parameter], op: &'static str) -> Vec<Tensor> {
    torch.launch(op);
    let like = |p: &&Parameter| torch.empty(p.tensor.layout().clone(), p.tensor.dtype());
    parameters.iter().map(like).collect()
}
