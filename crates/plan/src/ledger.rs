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
            let (start, end) = step.interval(&self.tape, stored, Level::Op)?;
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
        let mut names = Names::new(&self.tape);
        let mut states: Vec<(StorageId, State)> = Vec::with_capacity(self.tape.stored.len());
        let mut of_storage = BTreeMap::new();
        for (id, stored) in (0u32..).map(StorageId).zip(&self.tape.stored) {
            let Some(residency) = residency(stored).filter(|_| stored.bytes > 0) else { continue };
            let original = match stored.copied_for {
                Some(CopiedFor::Offload(original)) => original,
                _ => id,
            };
            let state = of_storage.get(&original.0).and_then(|index: &usize| states.get_mut(*index));
            if state.is_some_and(|(_, state)| state.bytes.get() == stored.bytes && joined(state, residency)) {
                continue;
            }
            of_storage.entry(original.0).or_insert(states.len());
            let state = State {
                name: names.of(stored).into(),
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
        let at = |level| step.interval(&self.tape, stored, level);
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
    paths: BTreeMap<ModuleId, String>,
    /// How often a name was given: the parts of a pipeline stage have modules of the same path.
    given: BTreeMap<String, u32>,
}

impl<'a> Names<'a> {
    fn new(tape: &'a Tape) -> Names<'a> {
        Names { tape, paths: BTreeMap::new(), given: BTreeMap::new() }
    }

    fn path(&mut self, module: ModuleId) -> &str {
        self.paths.entry(module).or_insert_with(|| self.tape.path(module))
    }

    fn of(&mut self, stored: &Stored) -> String {
        match stored.role {
            Role::Input { name, micro_batch } => format!("{name}.{micro_batch}"),
            Role::Named { name } => self.numbered(stored.module, name),
            Role::Of { parameter: id, state } => {
                let name = self.tape.parameters.get(id as usize).copied();
                let Some(parameter) = name else { return String::new() };
                let path = self.path(parameter.module);
                let name = match state {
                    "" => format!("{path}.{}", parameter.name),
                    state => format!("{path}.{}.{state}", parameter.name),
                };
                self.counted(name)
            }
            Role::Output => {
                let op = self.tape.ran.get(stored.birth.index()).map_or("", |ran| ran.op);
                self.numbered(stored.module, op)
            }
        }
    }

    fn numbered(&mut self, module: ModuleId, what: &'static str) -> String {
        let path = match self.path(module) {
            "" => "step",
            path => path,
        };
        let name = format!("{path}: {what}");
        self.counted(name)
    }

    /// The name, with a number from the second time on that it is given.
    fn counted(&mut self, name: String) -> String {
        match self.given.get_mut(&name) {
            None => {
                self.given.insert(name.clone(), 1);
                name
            }
            Some(times) => {
                *times += 1;
                format!("{name} #{times}")
            }
        }
    }
}
