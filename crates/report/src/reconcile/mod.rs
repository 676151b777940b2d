//! The report of `reconcile`: a plan and a measurement side by side, by phase and category, and the rest by name. The plan
//! never saw the measurement, so what they agree on is shown and not fitted.

mod bridge;
mod json;
mod pairs;
mod write;

use pairs::{Row, off_in_words, rows};
use peakledger_core::sweep::PhaseTotal;
use peakledger_core::{Bytes, Category, Ledger, Phase};
use serde::Serialize;

/// A ledger, what the user calls it, and what its file says of itself.
#[derive(Clone, Copy, Debug)]
pub struct Side<'a> {
    /// The name.
    pub name: &'a str,
    /// The ledger.
    pub ledger: &'a Ledger,
    /// The note of the file.
    pub note: Option<&'a str>,
    /// Why it is only a part, where it is.
    pub incomplete: Option<&'a str>,
}

/// What is known of a measurement beyond its ledger.
#[derive(Clone, Copy, Debug, Default)]
pub struct MeasuredFacts {
    /// Which step of how many the ledger is, where it is of one alone.
    pub step: Option<(usize, usize)>,
    /// The largest sum of blocks in use, and what these blocks have more than their requests rounded up.
    pub tails: Option<(u64, u64)>,
    /// The most bytes that the caching allocator held.
    pub reserved: Option<u64>,
    /// What of the card neither the allocator held nor was free: the CUDA context, and other processes.
    pub outside: Option<u64>,
}

/// How far off a phase may be: either is enough.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tolerance {
    /// Hundredths of a percent of what is measured.
    pub per_myriad: Option<u64>,
    /// Bytes.
    pub bytes: Option<Bytes>,
}

impl Tolerance {
    fn holds(&self, predicted: Bytes, measured: Bytes) -> bool {
        let off = measured.minus(predicted).unsigned_abs();
        let within = |share: u64| off * 10_000 <= u128::from(share) * u128::from(measured.get());
        self.per_myriad.is_some_and(within) || self.bytes.is_some_and(|most| off <= u128::from(most.get()))
    }
}

/// A plan and a measurement.
#[derive(Clone, Debug)]
pub struct ReconcileReport<'a> {
    plan: Side<'a>,
    measured: Side<'a>,
    facts: MeasuredFacts,
    tolerance: Option<Tolerance>,
    /// Steps in the measurement, and which of them is looked at.
    steps: usize,
    step: usize,
    rows: Vec<Row<'a>>,
    rules: Vec<Rule>,
}

/// A rule that a measurement has to keep, to be held against a plan.
#[derive(Clone, Debug, Serialize)]
struct Rule {
    holds: bool,
    rule: String,
}

impl<'a> ReconcileReport<'a> {
    /// Holds a plan against a step of a measurement: the last one, unless another is named.
    pub fn of(
        plan: Side<'a>,
        measured: Side<'a>,
        facts: MeasuredFacts,
        step: Option<usize>,
        tolerance: Option<Tolerance>,
    ) -> ReconcileReport<'a> {
        let (rows, at, inside) = rows(plan.ledger, measured.ledger, step);
        let (step, steps) = facts.step.unwrap_or((at, inside));
        let mut report =
            ReconcileReport { plan, measured, facts, tolerance, steps, step, rows, rules: Vec::new() };
        report.rules = report.rules();
        report
    }

    /// How many steps the measurement has.
    pub fn steps(&self) -> usize {
        self.steps
    }

    /// Whether every phase is measured and within the tolerance, and every rule holds.
    pub fn agrees(&self) -> bool {
        let within = |row: &Row<'_>| match (row.measured, self.tolerance) {
            (None, _) => false,
            (Some(_), None) => true,
            (Some(measured), Some(tolerance)) => tolerance.holds(row.predicted.total, measured.total),
        };
        self.compared().all(within) && self.rules.iter().all(|rule| rule.holds)
    }

    /// The phases that a tolerance is for: what a step begins with is the end of the one before.
    fn compared(&self) -> impl Iterator<Item = &Row<'a>> {
        self.rows.iter().filter(|row| row.measured.is_some() || row.name != Phase::Load.to_string())
    }

    /// Rules of conformance: phases are there and in order, and what is allocated is at least what tensors take.
    fn rules(&self) -> Vec<Rule> {
        let missing: Vec<&str> =
            self.compared().filter(|row| row.measured.is_none()).map(|row| row.name.as_str()).collect();
        let order = self.rows.iter().filter_map(|row| row.measured).map(|total| total.moment);
        let moments: Vec<_> = order.collect();
        let in_order = moments.windows(2).all(|pair| matches!(pair, [a, b] if a <= b));
        let parameters = |row: &&Row<'_>| row.predicted.by_category.get(Category::Parameter);
        let too_small =
            self.rows.iter().find(|row| row.measured.is_some_and(|total| total.total < parameters(row)));
        vec![
            Rule {
                holds: missing.is_empty(),
                rule: match missing.as_slice() {
                    [] => "every phase of the plan is measured".to_owned(),
                    missing => format!(
                        "not measured: {} (name them in the program: `with torch.profiler.record_function(\"forward\")`)",
                        missing.join(", ")
                    ),
                },
            },
            Rule { holds: in_order, rule: "the phases are in the plan's order".to_owned() },
            Rule {
                holds: too_small.is_none(),
                rule: match too_small {
                    None => "every phase holds at least the parameters that the plan has there".to_owned(),
                    Some(row) => {
                        format!("{} holds less than the parameters there, {}", row.name, parameters(&row))
                    }
                },
            },
        ]
    }

    /// The phase where most is measured.
    fn peak(&self) -> Option<(&Row<'a>, &'a PhaseTotal)> {
        let measured = self.rows.iter().filter_map(|row| Some((row, row.measured?)));
        measured.rev().max_by_key(|(_, measured)| measured.total)
    }

    fn heading(&self) -> String {
        match self.peak() {
            None => "no phase of the plan is measured".to_owned(),
            Some((_, measured)) if measured.total == Bytes::ZERO => "nothing is measured on a gpu".to_owned(),
            Some((row, measured)) => {
                let off = measured.total.minus(row.predicted.total);
                let (predicted, total) = (row.predicted.total, measured.total);
                format!(
                    "measured {total} in {}, predicted {predicted}: {}",
                    row.name,
                    off_in_words(off, total)
                )
            }
        }
    }

    /// Host memory, which is kept apart, and how categories were told.
    fn notes(&self) -> Vec<String> {
        let [predicted, measured] = [self.plan, self.measured].map(|side| side.ledger.cpu_peak());
        let host = [predicted, measured].iter().any(|bytes| *bytes > Bytes::ZERO);
        let host = host
            .then(|| format!("on the cpu, and no part of it: {predicted} predicted, {measured} measured"));
        host.into_iter().chain(self.measured.note.map(str::to_owned)).collect()
    }

    fn judgement(&self) -> Option<&'static str> {
        self.tolerance
            .map(|_| if self.agrees() { "within the tolerance" } else { "not within the tolerance" })
    }

    fn which(&self) -> String {
        match self.steps {
            0 | 1 => String::new(),
            steps => format!(", step {} of {steps}", self.step),
        }
    }
}
