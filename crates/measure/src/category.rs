//! What kind of memory a block is, where it can be told: by the user's own word on it, or by the code that asked for it.

use crate::replay::Live;
use crate::snapshot::{Frame, Snapshot, StackId, Texts};
use peakledger_core::{Category, Detail};

/// What is said of blocks that cannot be told, in words for a note.
pub const UNTOLD: &str = "told by the user's metadata and by frames of torch's optimizers (what they keep is state) and \
     modules; else blocks from before the recording count as parameter, later ones as activation";

/// Tells blocks apart.
pub(crate) struct Categories<'a> {
    snapshot: &'a Snapshot,
    first_event: u32,
    frames: Vec<Option<Told>>,
}

/// What a frame tells.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Told {
    /// The optimizer makes its state.
    OptimizerState,
    /// The optimizer computes.
    Optimizer,
    /// A module is moved or made.
    Module,
}

impl<'a> Categories<'a> {
    pub(crate) fn of(snapshot: &'a Snapshot, device: u32) -> Categories<'a> {
        let told = |frame: &Frame| told(frame, &snapshot.texts);
        let frames = snapshot.stacks.all_frames().iter().map(told).collect();
        Categories { snapshot, first_event: snapshot.trace(device).start, frames }
    }

    /// The kind of a block.
    /// `kept` is whether it is there to the end.
    pub(crate) fn category(&self, live: &Live, kept: bool) -> (Category, Option<Detail>) {
        let event = live.event.and_then(|event| self.first_event.checked_add(event));
        let word = event.and_then(|event| self.snapshot.events.metadata(event));
        if let Some(told) = word.and_then(|word| of_word(&self.snapshot.texts.text(word))) {
            return told;
        }
        match (self.of_stack(live.stack), live.event) {
            (Some(Told::OptimizerState), _) => (Category::OptimizerState, None),
            (Some(Told::Optimizer), _) if kept => (Category::OptimizerState, None),
            (Some(Told::Optimizer), _) => (Category::Workspace, Some(Detail::Temporary)),
            (Some(Told::Module), _) | (None, None) => (Category::Parameter, None),
            (None, Some(_)) => (Category::Activation, None),
        }
    }

    fn of_stack(&self, stack: StackId) -> Option<Told> {
        let frames = self.snapshot.stacks.ids(stack).iter();
        let told: Vec<Told> =
            frames.filter_map(|frame| self.frames.get(frame.index()).copied().flatten()).collect();
        // the state is made within the step
        [Told::OptimizerState, Told::Optimizer, Told::Module].into_iter().find(|kind| told.contains(kind))
    }
}

/// What a user writes with `_set_memory_metadata`.
fn of_word(word: &str) -> Option<(Category, Option<Detail>)> {
    let word = word.to_lowercase();
    if let Some(category) = Category::named(&word) {
        return Some((category, None));
    }
    Some(match word.as_str() {
        "param" | "params" | "parameters" | "weight" | "weights" => (Category::Parameter, None),
        "buffer" | "buffers" => (Category::Parameter, Some(Detail::Buffer)),
        "grad" | "grads" | "gradients" => (Category::Gradient, None),
        "optim" | "optimizer" | "optimizer_states" => (Category::OptimizerState, None),
        "activations" => (Category::Activation, None),
        "input" | "inputs" | "batch" => (Category::Activation, Some(Detail::Input)),
        _ => return None,
    })
}

fn told(frame: &Frame, texts: &Texts) -> Option<Told> {
    let file = texts.text(frame.file?).replace('\\', "/");
    let name = frame.name.map(|name| texts.text(name)).unwrap_or_default();
    if file.contains("/torch/optim/") {
        return Some(if name == "_init_group" { Told::OptimizerState } else { Told::Optimizer });
    }
    (file.ends_with("/torch/nn/modules/module.py") && matches!(name.as_str(), "_apply" | "convert"))
        .then_some(Told::Module)
}
