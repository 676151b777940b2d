//! Which phase of a plan stands beside which of a measurement, and their categories.

use crate::figures::{percent, plus};
use peakledger_core::sweep::PhaseTotal;
use peakledger_core::{Bytes, Category, Ledger, Phase};
use std::collections::BTreeMap;

/// A phase of the plan, and the same of the measurement, if it has it.
#[derive(Clone, Debug)]
pub(super) struct Row<'a> {
    pub(super) name: String,
    pub(super) predicted: &'a PhaseTotal,
    pub(super) measured: Option<&'a PhaseTotal>,
}

impl Row<'_> {
    /// What is measured, and how far off that is, in words.
    pub(super) fn told(&self) -> (String, String) {
        match self.measured {
            None => ("not measured".to_owned(), String::new()),
            Some(measured) => {
                let off = measured.total.minus(self.predicted.total);
                (measured.total.to_string(), off_in_words(off, measured.total))
            }
        }
    }
}

pub(super) fn off_in_words(off: i128, measured: Bytes) -> String {
    let share = Bytes::new(u64::try_from(off.unsigned_abs()).unwrap_or(u64::MAX));
    format!("{} ({})", plus(off), percent(share, measured))
}

/// The sums of a ledger's phases, by phase and in order.
type ByPhase<'a> = BTreeMap<String, Vec<&'a PhaseTotal>>;

fn by_phase(ledger: &Ledger) -> ByPhase<'_> {
    let mut phases: ByPhase<'_> = BTreeMap::new();
    for (slot, total) in ledger.phases() {
        phases.entry(slot.phase.to_string()).or_default().push(total);
    }
    phases
}

/// How often the measurement has what the plan has once.
fn steps(plan: &ByPhase<'_>, measured: &ByPhase<'_>) -> usize {
    let times = |phase: &Phase| {
        let [once, all] = [plan, measured].map(|phases| phases.get(&phase.to_string()).map_or(0, Vec::len));
        all.checked_div(once).filter(|times| *times > 0)
    };
    [Phase::Forward, Phase::Backward, Phase::Update].iter().filter_map(times).min().unwrap_or(1)
}

/// Each phase of the plan with the same of that step. Where the loss is not told apart it is part of forward.
pub(super) fn rows<'a>(
    plan: &'a Ledger,
    measured: &'a Ledger,
    step: Option<usize>,
) -> (Vec<Row<'a>>, usize, usize) {
    let (planned, found) = (by_phase(plan), by_phase(measured));
    let steps = steps(&planned, &found);
    let step = step.unwrap_or(steps.saturating_sub(1));
    let loss = Phase::Loss.to_string();
    let joined = !found.contains_key(&loss);
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut rows = Vec::new();
    for (slot, predicted) in plan.phases() {
        let phase = slot.phase.to_string();
        let times = seen.entry(phase.clone()).or_default();
        let index = *times;
        *times += 1;
        if joined && phase == loss {
            continue;
        }
        let at = |phases: &ByPhase<'a>, phase: &str, at: usize| {
            phases.get(phase).and_then(|all| all.get(at)).copied()
        };
        let in_a_step = planned.get(&phase).map_or(0, Vec::len);
        let measured = at(&found, &phase, step.saturating_mul(in_a_step).saturating_add(index));
        let with = at(&planned, &loss, index).filter(|_| joined && slot.phase == Phase::Forward);
        rows.push(match with {
            Some(loss) => {
                let predicted = if loss.total > predicted.total { loss } else { predicted };
                Row { name: format!("{} with the loss", slot.id()), predicted, measured }
            }
            None => Row { name: slot.id(), predicted, measured },
        });
    }
    if rows.iter().all(|row| row.measured.is_none()) {
        rows.extend(whole(plan, measured));
    }
    (rows, step, steps)
}

/// Both peaks, where the measurement does not tell phases apart.
fn whole<'a>(plan: &'a Ledger, measured: &'a Ledger) -> Option<Row<'a>> {
    let [predicted, measured] = [plan, measured].map(|ledger| {
        let peak = ledger.peak().moment;
        ledger.phases().find(|(slot, _)| slot.first <= peak && peak <= slot.last).map(|(_, total)| total)
    });
    Some(Row { name: WHOLE.to_owned(), predicted: predicted?, measured })
}

/// All that is measured, whatever the phase.
const WHOLE: &str = "the whole recording";

/// Categories that either side holds, predicted and measured.
pub(super) fn by_category(predicted: &PhaseTotal, measured: &PhaseTotal) -> Vec<(Category, [Bytes; 2])> {
    let both = |category| (category, [predicted, measured].map(|total| total.by_category.get(category)));
    Category::ALL.map(both).into_iter().filter(|(_, bytes)| *bytes != [Bytes::ZERO; 2]).collect()
}
