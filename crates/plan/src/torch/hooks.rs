//! Hooks around the parts of a model: where a strategy brings what a part needs and takes it away again, as PyTorch's hooks
//! on modules and on the gradients of what goes in and comes out.

use super::Tensor;
use std::ops::Range;
use std::rc::Rc;

/// What runs between the hooks.
pub(crate) type Inner<'a> = Box<dyn FnOnce(&Tensor) -> Tensor + 'a>;

/// Hooks of a strategy. Those that it does not need do nothing.
pub(crate) trait ModuleHooks {
    /// A micro-batch begins, after which the step goes on to the update if it is the last.
    fn begin(&self, _is_last: bool) {}

    /// The model's forward begins.
    fn enter(&self) {}

    /// Runs layers that come and go together, numbered as they are run ([`Torch::in_model`](super::Torch::in_model)).
    fn around(self: Rc<Self>, layers: Range<usize>, hidden_states: &Tensor, run: Inner<'_>) -> Tensor;

    /// The model has put that out.
    fn leave(self: Rc<Self>, output: Tensor) -> Tensor {
        output
    }

    /// Backward has ended.
    fn end(&self) {}

    /// The layers have run, and what follows them is next.
    fn before_head(&self) {}

    /// How many parts of the parameters are stepped one after the other.
    fn sub_groups(&self) -> usize {
        1
    }

    /// The optimizer is about to step a part.
    fn before_step(&self, _sub_group: usize) {}

    /// It has stepped that.
    fn after_step(&self, _sub_group: usize) {}

    /// Gradients are let go of.
    fn zero_grad(&self) {}
}
