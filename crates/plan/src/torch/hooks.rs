//! Hooks around the parts of a model: where a strategy brings what a part needs and takes it away again, as PyTorch's hooks
//! on modules and on the gradients of what goes in and comes out.

use super::{ModuleId, Tensor};
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

/// What runs between the hooks.
pub(crate) type Inner<'a> = Box<dyn FnOnce(&Tensor) -> Tensor + 'a>;

/// The same for experts, which are given hidden states and the weights of the router.
pub(crate) type InnerExperts<'a> = Box<dyn FnOnce(&[Tensor; 2]) -> Tensor + 'a>;

/// What hooks carry from one layer into the next: layers that begin with other numbers are not alike, whatever they leave on the
/// tape.
pub(crate) type Carried = [u64; 6];

/// Hooks of a strategy. Those that it does not need do nothing.
pub(crate) trait ModuleHooks {
    /// What follows is of that part of a pipeline stage, and if it is a backward, it is the part's last or not.
    fn part(&self, _part: u32, _is_last: bool) {}

    /// A micro-batch begins, after which the step goes on to the update if it is the last; in a pipeline, its backward.
    fn begin(&self, _is_last: bool) {}

    /// All parameters of the part set out to the rank (`UNSHARD` of a pipeline's schedule).
    fn unshard(&self) {}

    /// They have come.
    fn wait_for_unshard(&self) {}

    /// They go again (`RESHARD`).
    fn reshard(&self) {}

    /// The model's forward begins.
    fn enter(&self) {}

    /// The embedding has put that out.
    fn after_embedding(self: Rc<Self>, embedded: Tensor) -> Tensor {
        embedded
    }

    /// Runs layers that come and go together, numbered as they are run ([`Torch::in_model`](super::Torch::in_model)).
    fn around(self: Rc<Self>, _layers: Range<usize>, hidden_states: &Tensor, run: Inner<'_>) -> Tensor {
        run(hidden_states)
    }

    /// Whether each module is to be said, and in which order they are called: by a forward pass beforehand.
    fn asks_for_modules(&self) -> bool {
        false
    }

    /// The modules in the order in which they are called, and in which they return.
    fn traced(&self, _called: Vec<ModuleId>, _returned: Vec<ModuleId>) {}

    /// A module is called.
    fn called(&self, _module: ModuleId) {}

    /// It returns.
    fn returned(&self, _module: ModuleId) {}

    /// Backward comes to a node of that module.
    fn backward_at(&self, _module: ModuleId) {}

    /// Runs experts that are spread over ranks.
    fn around_experts(self: Rc<Self>, _: ModuleId, inputs: [&Tensor; 2], run: InnerExperts<'_>) -> Tensor {
        run(&inputs.map(Tensor::clone))
    }

    /// The model has put that out.
    fn leave(self: Rc<Self>, output: Tensor) -> Tensor {
        output
    }

    /// A weight that code reaches for without calling its module, whole as long as that is held; nothing where it is whole.
    fn whole(&self, _weight: &Tensor) -> Option<Tensor> {
        None
    }

    /// What is carried from one layer into the next, as numbers.
    fn carried(&self) -> Carried {
        Carried::default()
    }

    /// Backward has ended.
    fn end(&self) {}

    /// All backward passes of the part have (`REDUCE_GRAD` of a pipeline's schedule).
    fn reduce_grad(&self) {}

    /// The layers have put that out, and what follows them is next.
    fn before_head(self: Rc<Self>, hidden_states: Tensor) -> Tensor {
        hidden_states
    }

    /// The head has put that out, where it is called as a module.
    fn after_head(self: Rc<Self>, logits: Tensor) -> Tensor {
        logits
    }

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

    /// The step is over, and the next begins as this one did.
    fn step_ends(&self) {}
}

/// Notes the modules of a forward pass.
#[derive(Default)]
pub(crate) struct Calls {
    pub(crate) called: RefCell<Vec<ModuleId>>,
    pub(crate) returned: RefCell<Vec<ModuleId>>,
}

impl ModuleHooks for Calls {
    fn called(&self, module: ModuleId) {
        self.called.borrow_mut().push(module);
    }

    fn returned(&self, module: ModuleId) {
        self.returned.borrow_mut().push(module);
    }
}
