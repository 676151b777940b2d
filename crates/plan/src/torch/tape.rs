//! The tape: every storage's birth and death over one training step, in columns. What the rest of the planner does ends up
//! here, and everything that is said about a plan is read off here.

use super::{Costs, Dtype, Stream};
use peakledger_core::block::BLOCK;
use peakledger_core::{Category, Detail, Device, Moment, Phase};
use std::ops::Range;

/// A storage on the tape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StorageId(pub(crate) u32);

impl StorageId {
    /// A storage that leaves no trace.
    pub(crate) const NOWHERE: StorageId = StorageId(u32::MAX);
}

/// A module of the model, by its place in [`Tape::modules`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ModuleId(pub(crate) u32);

/// Where a module stands: its parent and its own name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Module {
    pub(crate) parent: Option<ModuleId>,
    pub(crate) name: ModuleName,
}

/// A module's own name: a word, or a number in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ModuleName {
    Word(&'static str),
    Index(u32),
}

/// What a storage is for, as a person would say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// A parameter, or what belongs to one: its gradient, its optimizer state under this name.
    Of { parameter: u32, state: &'static str },
    /// What this op put out.
    Output,
    /// What has a name of its own: what a kernel took and kept, a buffer for all gradients.
    Named { name: &'static str },
    /// A tensor of the batch.
    Input { name: &'static str, micro_batch: u32 },
}

/// One storage from birth to death.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    /// Its size, rounded up to what the caching allocator hands out (512 B).
    pub(crate) bytes: u64,
    pub(crate) birth: Moment,
    /// From when on torch's tracker counts it: from birth on, but for the batch, which it sees when a view is taken, and
    /// for what kernels allocate inside themselves, which it never sees.
    pub(crate) tracked: Moment,
    /// The last moment at which it is there; [`NEVER`] if it outlives the step.
    pub(crate) death: Moment,
    pub(crate) device: Device,
    /// The stream that it is allocated on, and whose blocks alone it can take.
    pub(crate) stream: Stream,
    pub(crate) category: Category,
    pub(crate) detail: Option<Detail>,
    pub(crate) dtype: Dtype,
    pub(crate) module: ModuleId,
    pub(crate) role: Role,
    /// What it is a copy for, if it is one that nobody asked for by name.
    pub(crate) copied_for: Option<CopiedFor>,
}

/// Why a copy in another type is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopiedFor {
    /// A parameter, for ops under autocast.
    Autocast,
    /// A module's input, for its adapter.
    Adapter,
    /// That storage, on the other device: what is offloaded, and what comes back.
    Offload(StorageId),
}

/// What ran at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ran {
    pub(crate) op: &'static str,
    pub(crate) module: ModuleId,
}

/// A phase on the tape, with its first moment and what it costs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) phase: Phase,
    pub(crate) micro_batch: Option<u32>,
    pub(crate) first: Moment,
    pub(crate) costs: Costs,
}

/// A parameter's place and name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ParameterName {
    pub(crate) module: ModuleId,
    pub(crate) name: &'static str,
}

/// What is done in the first step alone: its moments, and what it costs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Once {
    pub(crate) moments: Range<u32>,
    pub(crate) costs: Costs,
}

/// The columns.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Tape {
    pub(crate) stored: Vec<Stored>,
    pub(crate) ran: Vec<Ran>,
    pub(crate) marks: Vec<Mark>,
    pub(crate) modules: Vec<Module>,
    pub(crate) parameters: Vec<ParameterName>,
    /// What is done in the first step alone, in order: loading the model, and making the optimizer's state.
    pub(crate) once: Vec<Once>,
    /// A size passed what can be counted: nothing on this tape is to be believed.
    pub(crate) overflow: bool,
}

/// What runs at a moment in which what the allocator caches goes back to the card.
pub(crate) const EMPTY_CACHE: &str = "empty_cache";

/// No moment of any tape.
pub(crate) const NEVER: Moment = Moment(u32::MAX);

impl Stored {
    /// Whether torch's tracker ever counts it.
    pub(crate) fn is_tracked(&self) -> bool {
        self.tracked != NEVER
    }

    /// Whether it is there in every later step.
    pub(crate) fn outlives_the_step(&self) -> bool {
        self.death == NEVER
    }
}

/// A request rounded up as the allocator does, but for one of 0 bytes, which never reaches it; sizes past 64 bits saturate and
/// are refused later.
pub(crate) fn rounded(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK).saturating_mul(BLOCK)
}

impl Tape {
    /// The same model with other columns.
    pub(crate) fn with(
        &self,
        stored: Vec<Stored>,
        ran: Vec<Ran>,
        (marks, once): (Vec<Mark>, Vec<Once>),
    ) -> Tape {
        let (modules, parameters) = (self.modules.clone(), self.parameters.clone());
        Tape { stored, ran, marks, modules, parameters, once, overflow: self.overflow }
    }

    /// The moment that is running.
    pub(crate) fn now(&self) -> Moment {
        Moment(u32::try_from(self.ran.len().saturating_sub(1)).unwrap_or(u32::MAX))
    }

    /// The moment that comes next.
    pub(crate) fn next(&self) -> Moment {
        Moment(u32::try_from(self.ran.len()).unwrap_or(u32::MAX))
    }

    pub(crate) fn bear(&mut self, stored: Stored) -> StorageId {
        let id = u32::try_from(self.stored.len()).unwrap_or(u32::MAX);
        self.overflow |= stored.bytes > u64::MAX / 2 || id == u32::MAX;
        self.stored.push(stored);
        StorageId(id)
    }

    pub(crate) fn bury(&mut self, id: StorageId) {
        let now = self.now();
        if let Some(stored) = self.get_mut(id) {
            stored.death = now;
        }
    }

    pub(crate) fn get(&self, id: StorageId) -> Option<&Stored> {
        self.stored.get(id.0 as usize)
    }

    pub(crate) fn get_mut(&mut self, id: StorageId) -> Option<&mut Stored> {
        self.stored.get_mut(id.0 as usize)
    }

    /// The decoder layer that a module is in.
    pub(crate) fn layer(&self, id: ModuleId) -> Option<u32> {
        let module = self.modules.get(id.0 as usize)?;
        let outer = module.parent.and_then(|parent| self.layer(parent));
        match module.name {
            ModuleName::Index(index) => outer.or(Some(index)),
            ModuleName::Word(_) => outer,
        }
    }

    /// The decoder layer that a module is in, as a module; the model itself for one that is in none.
    pub(crate) fn layer_module(&self, id: ModuleId) -> ModuleId {
        let Some(module) = self.modules.get(id.0 as usize) else { return ModuleId(0) };
        let outer = module.parent.map_or(ModuleId(0), |parent| self.layer_module(parent));
        match module.name {
            ModuleName::Index(_) if outer == ModuleId(0) => id,
            _ => outer,
        }
    }

    /// The full name of a module: `model.layers.3.mlp`.
    pub(crate) fn path(&self, id: ModuleId) -> String {
        let Some(module) = self.modules.get(id.0 as usize) else { return String::new() };
        let mut path = module.parent.map(|parent| self.path(parent)).unwrap_or_default();
        if !path.is_empty() {
            path.push('.');
        }
        match module.name {
            ModuleName::Word(word) => path.push_str(word),
            ModuleName::Index(index) => path.push_str(&index.to_string()),
        }
        path
    }
}
