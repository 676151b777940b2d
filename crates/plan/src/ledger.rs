//! A planned step as a ledger: every storage a state with a name, so that `show` and `compare` work on plans.

use crate::plan::{Level, Plan, Step};
use crate::torch::tape::{ModuleId, Role, Stored, Tape};
use peakledger_core::{Bytes, Device, Ledger, LedgerError, Residencies, Residency, State};
use std::collections::BTreeMap;

impl Plan {
    /// The ledger of a step, at device level: the batch is in it.
    ///
    /// # Errors
    /// Where a total does not fit into 64 bits.
    pub fn ledger(&self, step: Step) -> Result<Ledger, LedgerError> {
        let timeline = self.step(step).timeline.clone();
        let mut names = Names::new(&self.tape);
        let mut states = Vec::with_capacity(self.tape.stored.len());
        for stored in &self.tape.stored {
            let name = names.of(stored);
            let at = |level| step.interval(&self.tape, stored, level);
            let (start, end) = match (at(Level::Untracked), at(Level::Op)) {
                (Some((start, end)), None) | (None, Some((start, end))) => (start, end),
                (Some((start, _)), Some((_, end))) => (start, end),
                (None, None) => continue,
            };
            states.push(State {
                name: name.into(),
                category: stored.category,
                detail: stored.detail,
                bytes: Bytes::new(stored.bytes),
                persistent: stored.outlives_the_step(),
                residencies: Residencies::One(Residency { device: Device::Gpu, start, end }),
            });
        }
        Ledger::new(timeline, states)
    }
}

/// Names for storages, each given once: `model.norm.weight.grad`, `model.layers.0.mlp: mul.Tensor #2`.
struct Names<'a> {
    tape: &'a Tape,
    paths: BTreeMap<ModuleId, String>,
    given: BTreeMap<(ModuleId, &'static str), u32>,
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
            Role::Kernel { name } => self.numbered(stored.module, name),
            Role::Of { parameter, state } => {
                let name = self.tape.parameters.get(parameter as usize).copied();
                let Some(parameter) = name else { return String::new() };
                let path = self.path(parameter.module);
                match state {
                    "" => format!("{path}.{}", parameter.name),
                    state => format!("{path}.{}.{state}", parameter.name),
                }
            }
            Role::Output => {
                let op = self.tape.ran.get(stored.birth.index()).map_or("", |ran| ran.op);
                self.numbered(stored.module, op)
            }
        }
    }

    fn numbered(&mut self, module: ModuleId, what: &'static str) -> String {
        let given = self.given.entry((module, what)).or_insert(0);
        *given += 1;
        let number = *given;
        let path = match self.path(module) {
            "" => "step",
            path => path,
        };
        match number {
            1 => format!("{path}: {what}"),
            number => format!("{path}: {what} #{number}"),
        }
    }
}
