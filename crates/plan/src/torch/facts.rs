//! What is told of a storage only when somebody asks how a number came about: its shape, and which backward needs it. Not
//! recorded otherwise, as a plan has no use for it.

use super::tape::{ModuleId, StorageId};
use super::{Layout, Tensor, Torch};

/// The backward of an op in a module, or a checkpoint, that keeps a storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Keeper {
    pub(crate) storage: StorageId,
    pub(crate) op: &'static str,
    pub(crate) module: ModuleId,
}

/// The op of a keeper that is a checkpoint.
pub(crate) const CHECKPOINT: &str = "checkpoint";

/// The columns, beside those of the tape.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    /// The layout that a storage was made with, one a storage.
    pub(crate) layouts: Vec<Layout>,
    /// Each once for a storage, in the order in which backward comes to them.
    pub(crate) keepers: Vec<Keeper>,
    /// The op that each node of the graph is the backward of, by the node's number.
    ops: Vec<&'static str>,
    /// The node that runs.
    running: Option<(&'static str, ModuleId)>,
}

impl Torch {
    /// Runs `note` where facts are recorded.
    pub(super) fn note(&self, note: impl FnOnce(&mut Facts)) {
        if let Some(facts) = &mut *self.facts.borrow_mut() {
            note(facts);
        }
    }

    /// A node of the graph was made, for the op that ran last.
    pub(super) fn note_node(&self) {
        self.note(|facts| {
            let op = self.tape.borrow().ran.last().map_or("", |ran| ran.op);
            facts.ops.push(op);
        });
    }

    /// The node of that number runs.
    pub(super) fn note_running(&self, node: u32) {
        let module = self.module.get();
        self.note(|facts| facts.running = facts.ops.get(node as usize).map(|op| (*op, module)));
    }

    /// The node that runs needs this tensor.
    pub(super) fn note_needed(&self, tensor: &Tensor) {
        self.note(|facts| {
            if let Some((op, module)) = facts.running {
                facts.keep(Keeper { storage: tensor.storage_id(), op, module });
            }
        });
    }

    /// A checkpoint holds this tensor, to run its block again.
    pub(super) fn note_checkpoint(&self, tensor: &Tensor) {
        let module = self.module.get();
        self.note(|facts| facts.keep(Keeper { storage: tensor.storage_id(), op: CHECKPOINT, module }));
    }
}

impl Facts {
    fn keep(&mut self, keeper: Keeper) {
        if !self.keepers.iter().rev().take(64).any(|known| *known == keeper) {
            self.keepers.push(keeper);
        }
    }
}
