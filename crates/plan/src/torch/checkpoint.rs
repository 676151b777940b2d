//! Activation checkpointing as `torch.utils.checkpoint(use_reentrant=False)` does it: the block runs while hooks keep a
//! promise in place of each tensor that autograd would save; the first promise that backward asks for runs the block
//! again and keeps what it saves this time. The second run stops at the last tensor that anything waits for.
//!
//! Selective checkpointing (`create_selective_checkpoint_contexts`) keeps in the first run what some ops put out, and the
//! second takes it up in their place.

use super::autograd::{Edge, Packed, SavedTensorHooks};
use super::{ACTIVATION, Saved, Tensor, Torch};
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};

/// Runs `block` over `input` as a checkpoint. What `block` captures is what the checkpoint holds on to, and the input as
/// the hooks outside want it kept.
pub(crate) fn checkpoint(
    input: &Tensor,
    selective: bool,
    block: impl Fn(&Tensor) -> Tensor + 'static,
) -> Tensor {
    let torch = input.torch().clone();
    torch.note_checkpoint(input);
    let frame = Rc::new(Frame {
        torch: torch.clone(),
        autocast: torch.autocast_dtype(),
        input: input.save(),
        edge: input.edge().cloned(),
        block: Box::new(block),
        selected: selective.then(Rc::default),
        promises: RefCell::new(Vec::new()),
        recomputed: Cell::new(false),
    });
    let hooks = Rc::new(Promising(frame.clone()));
    torch.with_hooks(hooks, || torch.selecting(frame.selected.clone(), || (frame.block)(input)))
}

struct Frame {
    torch: Rc<Torch>,
    autocast: Option<super::Dtype>,
    input: Saved,
    /// The input's place in the graph.
    edge: Option<Edge>,
    block: Box<dyn Fn(&Tensor) -> Tensor>,
    selected: Option<Rc<Selected>>,
    /// In the order in which the block saves. A promise that nothing waits for any more is gone.
    promises: RefCell<Vec<Weak<Promise>>>,
    recomputed: Cell<bool>,
}

/// A saved tensor that is not there yet.
struct Promise {
    frame: Rc<Frame>,
    tensor: RefCell<Option<Tensor>>,
}

struct Promising(Rc<Frame>);

impl SavedTensorHooks for Promising {
    fn pack(&self, _tensor: &Tensor) -> Saved {
        let promise = Rc::new(Promise { frame: self.0.clone(), tensor: RefCell::new(None) });
        self.0.promises.borrow_mut().push(Rc::downgrade(&promise));
        Saved::Packed(Box::new(Kept(promise)))
    }
}

struct Kept(Rc<Promise>);

impl Packed for Kept {
    fn unpack(&self) -> Tensor {
        let frame = &self.0.frame;
        if !frame.recomputed.replace(true) {
            frame.recompute();
        }
        match self.0.tensor.borrow_mut().take() {
            Some(tensor) => tensor,
            None => unreachable!("a block saves the same tensors in the same order both times"),
        }
    }
}

impl Frame {
    fn recompute(self: &Rc<Self>) {
        let torch = &self.torch;
        let hooks = Rc::new(Keeping { frame: self.clone(), next: Cell::new(0) });
        let purpose = torch.purpose.replace(ACTIVATION);
        let grad_enabled = torch.grad_enabled.replace(true);
        let again = torch.recomputing(true);
        let contexts = torch.contexts.borrow().len();
        torch.autocast(self.autocast, || {
            let input = self.input.unpack().with_edge(self.edge.clone());
            if let Some(selected) = &self.selected {
                selected.again.set(true);
            }
            let run = || drop((self.block)(&input));
            torch.with_hooks(hooks, || torch.selecting(self.selected.clone(), run));
            torch.halted.set(false);
        });
        torch.recomputing(again);
        let of_the_second_run = torch.contexts.borrow_mut().split_off(contexts);
        drop(of_the_second_run); // the graph of the second run goes at once
        torch.grad_enabled.set(grad_enabled);
        torch.purpose.set(purpose);
    }
}

/// Hooks of the second run: the promises are kept.
struct Keeping {
    frame: Rc<Frame>,
    next: Cell<usize>,
}

impl SavedTensorHooks for Keeping {
    fn pack(&self, tensor: &Tensor) -> Saved {
        let index = self.next.get();
        self.next.set(index + 1);
        let promises = self.frame.promises.borrow();
        if let Some(promise) = promises.get(index).and_then(Weak::upgrade) {
            *promise.tensor.borrow_mut() = Some(tensor.kept());
        }
        if index + 1 == promises.len() {
            tensor.torch().halted.set(true);
        }
        Saved::Plain(tensor.detach())
    }
}

/// What the selected ops of a block put out in its first run, in order.
#[derive(Default)]
pub(crate) struct Selected {
    outputs: RefCell<VecDeque<SmallVec<[Tensor; 4]>>>,
    again: Cell<bool>,
}

impl Torch {
    /// Runs `body` with the outputs of selected ops kept there, or taken from there in the second run.
    fn selecting<T>(&self, selected: Option<Rc<Selected>>, body: impl FnOnce() -> T) -> T {
        let outer = self.selected.replace(selected);
        let result = body();
        self.selected.replace(outer);
        result
    }

    /// The outputs of an op that selective checkpointing keeps: matrix products of two matrices, and fused attention.
    pub(crate) fn selected<const N: usize>(&self, op: impl FnOnce() -> [Tensor; N]) -> [Tensor; N] {
        let Some(selected) = self.selected.borrow().clone().filter(|_| !self.halted.get()) else {
            return op();
        };
        if !selected.again.get() {
            let outputs = op();
            selected.outputs.borrow_mut().push_back(outputs.iter().map(Tensor::kept).collect());
            return outputs;
        }
        let outputs = selected.outputs.borrow_mut().pop_front();
        match outputs.and_then(|outputs| outputs.into_vec().try_into().ok()) {
            Some(outputs) => outputs,
            None => unreachable!("a block runs the same ops in the same order both times"),
        }
    }
}
