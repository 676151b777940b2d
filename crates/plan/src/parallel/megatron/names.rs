//! What Megatron-LM's schedules hold by their Python names while micro-batches go through a stage
//! (`megatron/core/pipeline_parallel/schedules.py`, `p2p_communication.py`), beside what torch's would.
//!
//! Without virtual stages hidden states and gradients are sent and received at once, and waited for. A name holds what it is bound
//! to until the next is there: `input_tensor`, with its gradient (`retain_grad`), and `output_tensor_grad`. With virtual stages
//! what comes next is asked for as soon as a pass has ended (`overlap_p2p_comm`), and what was sent goes when the next
//! forward begins. `TransformerBlock.input_tensor` is cleared by nobody: what a part was last given stays, with its gradient, to
//! the next step.

use crate::parallel::Schedule;
use crate::parallel::schedule::{Action, Pass};
use crate::pipeline::Received;
use crate::torch::Tensor;
use std::collections::BTreeMap;
use std::rc::Rc;

/// The names.
pub(crate) struct Names {
    is_interleaved: bool,
    /// `input_tensor` after its backward.
    input: Option<Rc<Received>>,
    /// `output_tensor_grad`.
    output_grad: Option<Tensor>,
    /// `TransformerBlock.input_tensor` of each part.
    blocks: BTreeMap<u32, Rc<Received>>,
    next_input: Option<Rc<Received>>,
    next_grad: Option<Tensor>,
}

/// The passes for which something is asked.
#[derive(Default)]
pub(crate) struct Asks {
    pub(crate) input: Option<Action>,
    pub(crate) grad: Option<Action>,
}

impl Names {
    pub(crate) fn new(schedule: Schedule) -> Names {
        Names {
            is_interleaved: schedule == Schedule::Interleaved,
            input: None,
            output_grad: None,
            blocks: BTreeMap::new(),
            next_input: None,
            next_grad: None,
        }
    }

    /// What the model still holds when the schedule has returned.
    pub(crate) fn after_the_schedule(self) -> Names {
        Names { input: None, output_grad: None, next_input: None, next_grad: None, ..self }
    }

    /// A part is given its hidden states.
    pub(crate) fn received(&mut self, part: u32, received: &Rc<Received>) {
        self.input = None;
        self.blocks.insert(part, received.clone());
    }

    pub(crate) fn received_grad(&mut self, grad: &Tensor) {
        if !self.is_interleaved {
            self.output_grad = Some(grad.clone());
        }
    }

    pub(crate) fn backward_ended(&mut self, received: Option<Rc<Received>>) {
        if !self.is_interleaved {
            self.input = received;
        }
    }

    /// Whether what a forward sent is still there when it has ended: where it is not waited for, but for the warm-up.
    pub(crate) fn holds_sent(&self, actions: &[Action], index: usize) -> bool {
        self.is_interleaved && actions.get(index + 1).is_some_and(|next| next.pass != Pass::Forward)
    }

    /// What is asked for when the pass at that place has ended: after a forward the next one's input; after a backward, and after the
    /// last forward of the warm-up that is followed by another, the next backward's gradient.
    pub(crate) fn asks_ahead(&self, actions: &[Action], index: usize) -> Asks {
        let (Some(ended), Some(later)) = (actions.get(index), actions.get(index + 1..)) else {
            return Asks::default();
        };
        if !self.is_interleaved {
            return Asks::default();
        }
        let next = |forward: bool| later.iter().find(|it| (it.pass == Pass::Forward) == forward).copied();
        let is_forward = ended.pass == Pass::Forward;
        let before = actions.get(..index).unwrap_or_default();
        let warmed_up = is_forward
            && before.iter().all(|it| it.pass == Pass::Forward)
            && matches!(later, [then, after, ..] if then.pass == Pass::Forward && after.pass != Pass::Forward);
        Asks {
            input: if is_forward { next(true) } else { None },
            grad: if !is_forward || warmed_up { next(false) } else { None },
        }
    }

    pub(crate) fn ask_input(&mut self, received: Rc<Received>) {
        self.next_input = Some(received);
    }

    pub(crate) fn ask_grad(&mut self, grad: Tensor) {
        self.next_grad = Some(grad);
    }

    pub(crate) fn asked_input(&mut self) -> Option<Rc<Received>> {
        self.next_input.take()
    }

    pub(crate) fn asked_grad(&mut self) -> Option<Tensor> {
        self.next_grad.take()
    }
}
