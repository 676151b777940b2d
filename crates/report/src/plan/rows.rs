//! The rows of the phase table: micro-batches that are alike share one.

use peakledger_plan::{At, Plan, PlannedPhase, StepPlan};

/// A phase, or the same phase of several micro-batches that are alike.
pub(super) struct PhaseRow {
    /// What it is called: `update`, `forward.0`, `backward.1–7`.
    pub(super) name: String,
    /// Its place in the step's list of phases; the first where there are several.
    at: usize,
    /// The micro-batches that share the row.
    micro_batches: Option<(u32, u32)>,
}

impl PhaseRow {
    /// The phase in one of the steps.
    pub(super) fn phase<'a>(&self, step: &'a StepPlan) -> Option<&'a PlannedPhase> {
        step.phases.get(self.at)
    }

    /// Whether the row holds that place.
    pub(super) fn covers(&self, at: At<'_>) -> bool {
        let same_phase = self.phase(at.step).is_some_and(|phase| phase.phase == at.phase.phase);
        let same_micro_batch = match (self.micro_batches, at.phase.micro_batch) {
            (Some((first, last)), Some(i)) => (first..=last).contains(&i),
            (None, None) => true,
            _ => false,
        };
        same_phase && same_micro_batch
    }
}

/// A phase's name, with its micro-batch where there are several.
pub(crate) fn id(phase: &PlannedPhase, several: bool) -> String {
    match phase.micro_batch.filter(|_| several) {
        Some(i) => format!("{}.{i}", phase.phase),
        None => phase.phase.to_string(),
    }
}

/// The rows of both steps, which have the same phases.
pub(super) fn phase_rows(plan: &Plan) -> Vec<PhaseRow> {
    let steps = [&plan.first, &plan.steady];
    let count = plan.options.gradient_accumulation_steps;
    let alike = first_alike(&steps, count);
    let mut rows = Vec::new();
    for (at, phase) in plan.steady.phases.iter().enumerate() {
        let (name, micro_batches) = match phase.micro_batch {
            Some(i) if i > alike => continue,
            Some(i) if i == alike && i + 1 < count => {
                (format!("{}.{i}–{}", phase.phase, count - 1), Some((i, count - 1)))
            }
            i => (id(phase, count > 1), i.map(|i| (i, i))),
        };
        rows.push(PhaseRow { name, at, micro_batches });
    }
    rows
}

/// The first micro-batch that is like all those after it.
fn first_alike(steps: &[&StepPlan], count: u32) -> u32 {
    let figures = |i: u32| -> Vec<_> {
        let of = |step: &&StepPlan| -> Vec<_> {
            let phases = step.phases.iter().filter(|phase| phase.micro_batch == Some(i));
            phases.map(|phase| (phase.peak, phase.end, phase.by_category)).collect()
        };
        steps.iter().map(of).collect()
    };
    let last = count.saturating_sub(1);
    let like_last = figures(last);
    (0..last).rev().take_while(|i| figures(*i) == like_last).last().unwrap_or(last)
}
