//! Activation checkpointing as `torch.utils.checkpoint(use_reentrant=False)` does it: the block runs while hooks keep a
//! promise in place of each tensor that autograd would save; the first promise that backward asks for runs the block
//! again and keeps what it saves this time. The second run stops at the last tensor that anything waits for.

use super::autograd::{Packed, SavedTensorHooks};
use super::{ACTIVATION, Saved, Tensor, Torch};
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

/// Runs `block` over `input` as a checkpoint. What `block` captures is what the checkpoint holds on to.
pub(crate) fn checkpoint(input: Tensor, block: impl Fn(&Tensor) -> Tensor + 'static) -> Tensor {
    let torch = input.torch().clone();
    drop(input.kept()); // the mark stays; the block holds the tensor with its place in the graph
    torch.note_checkpoint(&input);
    let block = move || block(&input);
    let frame = Rc::new(Frame {
        torch: torch.clone(),
        autocast: torch.autocast_dtype(),
        block: Box::new(block),
        promises: RefCell::new(Vec::new()),
        recomputed: Cell::new(false),
    });
    torch.with_hooks(Rc::new(Promising(frame.clone())), || (frame.block)())
}

struct Frame {
    torch: Rc<Torch>,
    autocast: Option<super::Dtype>,
    block: Box<dyn Fn() -> Tensor>,
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
        torch.autocast(self.autocast, || {
            torch.with_hooks(hooks, || drop((self.block)()));
            torch.halted.set(false);
        });
        torch.recomputing(again);
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
