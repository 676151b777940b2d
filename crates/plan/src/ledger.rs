//! A planned step as a ledger: every storage a state with a name, so that `show` and `compare` work on plans. What is
//! offloaded is one state on the device, on the host, and on the device again.

use crate::plan::{Level, Plan, Step};
use crate::torch::tape::{CopiedFor, ModuleId, Role, StorageId, Stored, Tape};
use peakledger_core::{Bytes, Ledger, LedgerError, Residencies, Residency, State};
use std::collections::BTreeMap;

impl Plan {
    /// The ledger of a step, at device level: the batch is in it.
    ///
    /// # Errors
    /// Where a total does not fit into 64 bits.
    pub fn ledger(&self, step: Step) -> Result<Ledger, LedgerError> {
        self.ledger_of(step, |stored| self.residency(step, stored))
    }

    /// The ledger of a step at op level, as [`StepPlan::phases`](crate::StepPlan::phases) and the contributors have it.
    ///
    /// # Errors
    /// Where a total does not fit into 64 bits.
    pub fn op_ledger(&self, step: Step) -> Result<Ledger, LedgerError> {
        self.ledger_of(step, |stored| {
            let (start, end) = step.interval(self.tape(), stored, Level::Op)?;
            Some(Residency { device: stored.device, start, end })
        })
    }

    fn ledger_of(
        &self,
        step: Step,
        residency: impl Fn(&Stored) -> Option<Residency>,
    ) -> Result<Ledger, LedgerError> {
        let states = self.states(residency).into_iter().map(|(_, state)| state).collect();
        Ledger::new(self.step(step).timeline.clone(), states)
    }

    /// The storages of a step as states, each with the storage that it began as.
    pub(crate) fn states(&self, residency: impl Fn(&Stored) -> Option<Residency>) -> Vec<(StorageId, State)> {
        let mut names = Names::new(self.tape());
        let mut states: Vec<(StorageId, State)> = Vec::with_capacity(self.tape().stored.len());
        let mut of_storage: Vec<Option<usize>> = vec![None; self.tape().stored.len()];
        for (id, stored) in (0u32..).map(StorageId).zip(&self.tape().stored) {
            let Some(residency) = residency(stored).filter(|_| stored.bytes > 0) else { continue };
            let original = match stored.copied_for {
                Some(CopiedFor::Offload(original)) if self.tape().get(original).is_some() => original,
                _ => id,
            };
            let Some(of_storage) = of_storage.get_mut(original.0 as usize) else { continue };
            let state = of_storage.and_then(|index| states.get_mut(index));
            if state.is_some_and(|(_, state)| state.bytes.get() == stored.bytes && joined(state, residency)) {
                continue;
            }
            of_storage.get_or_insert(states.len());
            let state = State {
                name: names.of(stored),
                category: stored.category,
                detail: stored.detail,
                bytes: Bytes::new(stored.bytes),
                persistent: stored.outlives_the_step(),
                residencies: Residencies::One(residency),
            };
            states.push((id, state));
        }
        states
    }

    /// Where a storage is in a step, at device level, if it is there at all.
    pub(crate) fn residency(&self, step: Step, stored: &Stored) -> Option<Residency> {
        let at = |level| step.interval(self.tape(), stored, level);
        let (start, end) = match (at(Level::Untracked), at(Level::Op)) {
            (Some((start, end)), None) | (None, Some((start, end))) => (start, end),
            (Some((start, _)), Some((_, end))) => (start, end),
            (None, None) => return None,
        };
        Some(Residency { device: stored.device, start, end })
    }
}

/// One more residency for a state, where it does not overlap those that it has on that device.
fn joined(state: &mut State, residency: Residency) -> bool {
    let overlaps = |other: &Residency| {
        other.device == residency.device && other.start <= residency.end && residency.start <= other.end
    };
    if state.residencies.as_slice().iter().any(overlaps) {
        return false;
    }
    let mut all = state.residencies.as_slice().to_vec();
    all.push(residency);
    state.residencies = Residencies::Many(all);
    true
}

/// Names for storages, each given once: `model.norm.weight.grad`, `model.layers.0.mlp: mul.Tensor #2`.
struct Names<'a> {
    tape: &'a Tape,
    /// The place of each module among the paths, once it is known: the parts of a pipeline stage have modules of the same path.
    of_module: Vec<Option<usize>>,
    paths: Vec<Path>,
    by_text: BTreeMap<String, usize>,
}

/// Where modules stand, and what was named there.
struct Path {
    text: String,
    /// How often each name was given: few stand at one place, so they are looked through.
    given: Vec<(Name, u32)>,
}

/// A name at its place: a parameter's with a state of it, or what was put out there.
type Name = (&'static str, Option<&'static str>);

impl<'a> Names<'a> {
    fn new(tape: &'a Tape) -> Names<'a> {
        let of_module = vec![None; tape.modules.len()];
        Names { tape, of_module, paths: Vec::new(), by_text: BTreeMap::new() }
    }

    fn of(&mut self, stored: &Stored) -> Box<str> {
        match stored.role {
            Role::Input { name, micro_batch } => format!("{name}.{micro_batch}").into(),
            Role::Named { name } => self.numbered(stored.module, (name, None)),
            Role::Of { parameter: id, state } => {
                let parameter = self.tape.parameters.get(id as usize).copied();
                parameter.map_or_else(Box::default, |it| self.numbered(it.module, (it.name, Some(state))))
            }
            Role::Output => {
                let op = self.tape.ran.get(stored.birth.index()).map_or("", |ran| ran.op);
                self.numbered(stored.module, (op, None))
            }
        }
    }

    /// The name, with a number from the second time on that it is given.
    fn numbered(&mut self, module: ModuleId, name: Name) -> Box<str> {
        let at = self.place(module);
        let Some(Path { text, given }) = self.paths.get_mut(at) else { return Box::default() };
        let times = match given.iter_mut().find(|(known, _)| *known == name) {
            None => {
                given.push((name, 1));
                1
            }
            Some((_, times)) => {
                *times += 1;
                *times
            }
        };
        let parts = match name {
            (what, None) if text.is_empty() => ["step", ": ", what, "", ""],
            (what, None) => [text, ": ", what, "", ""],
            (parameter, Some("")) => [text, ".", parameter, "", ""],
            (parameter, Some(state)) => [text, ".", parameter, ".", state],
        };
        match times {
            1 => parts.concat().into(),
            times => (parts.concat() + " #" + &times.to_string()).into(),
        }
    }

    /// The place of a module's path.
    fn place(&mut self, module: ModuleId) -> usize {
        if let Some(known) = self.of_module.get(module.0 as usize).copied().flatten() {
            return known;
        }
        let text = self.tape.path(module);
        let place = *self.by_text.entry(text).or_insert_with_key(|text| {
            self.paths.push(Path { text: text.clone(), given: Vec::new() });
            self.paths.len() - 1
        });
        if let Some(of_module) = self.of_module.get_mut(module.0 as usize) {
            *of_module = Some(place);
        }
        place
    }
}
