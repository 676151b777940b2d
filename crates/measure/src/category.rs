//! What kind of memory a block is, where it can be told: by the user's own word on it, or by the code that asked for it
//! and how long the block stays.
//!
//! A stack tells who asked ([`Maker`]), and the events tell whether the block outlives that part of the step. What
//! autograd or an optimizer asks for and gives back before anyone else asks for memory is its workspace; what it leaves
//! behind is a gradient, or state. A snapshot does not tell which activations autograd saves, which of them only pass
//! through, nor what a program does outside modules, autograd and optimizers.

use crate::maker::{Maker, Makers};
use crate::replay::Live;
use crate::snapshot::{Action, Snapshot};
use hashbrown::HashMap;
use peakledger_core::{Category, Detail};

/// How blocks are told apart, in words for a note.
pub const UNTOLD: &str = "told by the user's words on blocks (metadata), and by the frames of modules, autograd and \
     optimizers and what outlives them; else blocks from before the recording count as parameter, later ones as activation";

/// What a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// The category; of a block that cannot be told, what it counts as.
    pub category: Category,
    /// The finer word.
    pub detail: Option<Detail>,
    /// Whether anything tells it.
    pub told: bool,
}

/// Tells blocks apart.
pub(crate) struct Categories<'a> {
    snapshot: &'a Snapshot,
    makers: Makers,
}

impl<'a> Categories<'a> {
    pub(crate) fn of(snapshot: &'a Snapshot, device: u32) -> Categories<'a> {
        Categories { snapshot, makers: Makers::of(snapshot, device) }
    }

    /// The kind of a block that is freed by an event, or kept to the end.
    pub(crate) fn kind(&self, live: &Live, died: Option<u32>) -> Kind {
        let word = live.word.and_then(|word| of_word(&self.snapshot.texts.text(word)));
        if let Some((category, detail)) = word {
            return Kind { category, detail, told: true };
        }
        let left = || self.makers.outlives_its_part(live.event, died);
        let (category, detail) = match self.makers.maker(live.stack, live.event) {
            Some(Maker::Forward) => (Category::Activation, None),
            Some(Maker::Input) => (Category::Activation, Some(Detail::Input)),
            Some(Maker::Gradient) => (Category::Gradient, None),
            Some(Maker::Backward) if left() => (Category::Gradient, None),
            Some(Maker::OptimizerState) => (Category::OptimizerState, None),
            Some(Maker::Optimizer) if left() => (Category::OptimizerState, None),
            Some(Maker::Backward | Maker::Optimizer) => (Category::Workspace, Some(Detail::Temporary)),
            Some(Maker::Parameter) => (Category::Parameter, None),
            Some(Maker::Communication) => (Category::CommunicationBuffer, None),
            Some(Maker::Kernel) => (Category::Workspace, Some(Detail::Kernel)),
            None => {
                let category = if live.event.is_none() { Category::Parameter } else { Category::Activation };
                return Kind { category, detail: None, told: false };
            }
        };
        Kind { category, detail, told: true }
    }
}

/// What each of some blocks is that are in use just after an event, or before the first.
pub fn kinds(snapshot: &Snapshot, device: u32, live: &[Live], after: Option<u32>) -> Vec<Kind> {
    let categories = Categories::of(snapshot, device);
    let mut later: HashMap<u64, (Option<u32>, Live)> =
        live.iter().map(|live| (live.address, (None, *live))).collect();
    let mut left = later.len();
    let trace = snapshot.trace(device);
    let next = after.map_or(0, |event| event.saturating_add(1));
    let rest = trace.start.saturating_add(next).min(trace.end)..trace.end;
    for (number, event) in (next..).zip(snapshot.events.between(rest)) {
        if left == 0 {
            break;
        }
        let Some((died @ None, live)) = later.get_mut(&event.addr) else { continue };
        match event.action {
            Action::FreeRequested | Action::FreeCompleted => {
                *died = Some(number);
                left -= 1;
            }
            Action::Annotate => {
                let word = snapshot.events.metadata(trace.start.saturating_add(number));
                live.word = word.or(live.word);
            }
            _ => {}
        }
    }
    let kind = |live: &Live| {
        let (died, live) = later.get(&live.address).copied().unwrap_or((None, *live));
        categories.kind(&live, died)
    };
    live.iter().map(kind).collect()
}

/// What a user writes with `_set_memory_metadata`, or on a block with `_annotate_tensor` (torch 2.15).
pub(crate) fn of_word(word: &str) -> Option<(Category, Option<Detail>)> {
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
