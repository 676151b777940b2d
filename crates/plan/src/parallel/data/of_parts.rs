//! Parts of a pipeline stage, each of which is wrapped by itself: what the schedule calls a stage has a module of its own, with
//! a reducer or an FSDP root of its own (`_PipelineStageBase.submod`, `torch/distributed/pipelining/stage.py`).

use crate::torch::hooks::{Inner, InnerExperts, ModuleHooks};
use crate::torch::{ModuleId, Tensor};
use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

/// The hooks of several parts, of which one runs at a time.
pub(super) struct OfParts {
    /// By part.
    all: Vec<Rc<dyn ModuleHooks>>,
    /// The part that runs, and whether this is its last backward.
    now: Cell<(u32, bool)>,
}

impl OfParts {
    /// Those hooks as one; the same where there is one part.
    pub(super) fn joined(mut all: Vec<Rc<dyn ModuleHooks>>) -> Option<Rc<dyn ModuleHooks>> {
        match all.len() {
            0 | 1 => all.pop(),
            _ => Some(Rc::new(OfParts { all, now: Cell::new((0, false)) })),
        }
    }

    fn now(&self) -> Option<&Rc<dyn ModuleHooks>> {
        self.all.get(self.now.get().0 as usize)
    }
}

impl ModuleHooks for OfParts {
    fn part(&self, part: u32, is_last: bool) {
        self.now.set((part, is_last));
    }

    fn begin(&self, _is_last_of_all: bool) {
        let (_, is_last) = self.now.get();
        self.now().iter().for_each(|hooks| hooks.begin(is_last));
    }

    fn unshard(&self) {
        self.now().iter().for_each(|hooks| hooks.unshard());
    }

    fn wait_for_unshard(&self) {
        self.now().iter().for_each(|hooks| hooks.wait_for_unshard());
    }

    fn reshard(&self) {
        self.now().iter().for_each(|hooks| hooks.reshard());
    }

    fn enter(&self) {
        self.now().iter().for_each(|hooks| hooks.enter());
    }

    fn after_embedding(self: Rc<Self>, embedded: Tensor) -> Tensor {
        match self.now() {
            Some(hooks) => hooks.clone().after_embedding(embedded),
            None => embedded,
        }
    }

    fn around(self: Rc<Self>, layers: Range<usize>, hidden_states: &Tensor, run: Inner<'_>) -> Tensor {
        match self.now() {
            Some(hooks) => hooks.clone().around(layers, hidden_states, run),
            None => run(hidden_states),
        }
    }

    fn around_experts(
        self: Rc<Self>,
        module: ModuleId,
        inputs: [&Tensor; 2],
        run: InnerExperts<'_>,
    ) -> Tensor {
        match self.now() {
            Some(hooks) => hooks.clone().around_experts(module, inputs, run),
            None => run(&inputs.map(Tensor::clone)),
        }
    }

    fn before_head(self: Rc<Self>, hidden_states: Tensor) -> Tensor {
        match self.now() {
            Some(hooks) => hooks.clone().before_head(hidden_states),
            None => hidden_states,
        }
    }

    fn after_head(self: Rc<Self>, logits: Tensor) -> Tensor {
        match self.now() {
            Some(hooks) => hooks.clone().after_head(logits),
            None => logits,
        }
    }

    fn leave(self: Rc<Self>, output: Tensor) -> Tensor {
        match self.now() {
            Some(hooks) => hooks.clone().leave(output),
            None => output,
        }
    }

    fn end(&self) {
        self.now().iter().for_each(|hooks| hooks.end());
    }

    fn reduce_grad(&self) {
        self.now().iter().for_each(|hooks| hooks.reduce_grad());
    }

    fn zero_grad(&self) {
        self.all.iter().for_each(|hooks| hooks.zero_grad());
    }
}
