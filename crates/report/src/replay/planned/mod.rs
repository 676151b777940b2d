//! What the caching allocator makes of a plan: its load, its first and its steady step, one after the other.

mod asked;
mod quick;
#[cfg(test)]
mod tests;

pub use quick::Fits;

use super::script::{Outcome, run};
use crate::plan::id;
use asked::Asked;
use peakledger_allocator::{Card as Device, OutOfMemory, Settings, Totals};
use peakledger_core::{Bytes, Moment};
use peakledger_plan::catalogue::Card;
use peakledger_plan::{Plan, PlannedPhase, Step, Verdict};

/// What the allocator reserves for a plan.
#[derive(Clone, Debug)]
pub struct Reservation {
    /// The settings that it runs under.
    pub settings: Settings,
    /// What is held where most is reserved. On a card that runs out, what the steps would take on a larger one.
    pub peak: Totals,
    /// Where that is: the step and its phase, by place. Nothing where nothing is reserved.
    pub at: Option<(Step, usize)>,
    /// The most bytes allocated: what `torch.cuda.max_memory_allocated` shows, with what the allocator adds to requests.
    pub allocated: u64,
    /// How often everything cached is given back to the card to make room; the step waits for it each time.
    pub retries: u64,
    /// The request that the card has no room for, and where it is made.
    pub oom: Option<PlannedOom>,
    /// The reserved bytes from a moment of a step on, at each change; on a card that runs out, as on a larger one.
    pub over_time: Vec<(Step, Moment, u64)>,
}

/// A planned step runs out of memory.
#[derive(Clone, Copy, Debug)]
pub struct PlannedOom {
    /// In which step.
    pub step: Step,
    /// In which of its phases, by place.
    pub phase: usize,
    /// What was asked for, and what there was.
    pub oom: OutOfMemory,
}

impl Reservation {
    /// Runs the load and the steps of a plan through the allocator: the first step where only that is looked at, else both.
    /// Nothing comes of sums that pass 64 bits.
    pub fn of(
        plan: &Plan,
        settings: Settings,
        card: Option<&Card>,
        step: Option<Step>,
    ) -> Option<Reservation> {
        let steps: &[Step] =
            if step == Some(Step::First) { &[Step::First] } else { &[Step::First, Step::Steady] };
        let asked = Asked::of(plan, steps);
        let outcome = run(asked.asks(), settings, limited(plan, card));
        let Some((at, oom)) = outcome.oom else { return Some(Reservation::from(&outcome, &asked, None)) };
        let (step, phase, _) = asked.place(at)?;
        let unlimited = Settings { memory_fraction: 1.0, ..settings };
        let outcome = run(asked.asks(), unlimited, Device::unlimited());
        let reservation = Reservation::from(&outcome, &asked, Some(PlannedOom { step, phase, oom }));
        Some(Reservation { settings, ..reservation })
    }

    fn from(outcome: &Outcome, asked: &Asked, oom: Option<PlannedOom>) -> Reservation {
        let over_time = outcome.reserved.iter().filter_map(|point| {
            let (step, _, moment) = asked.place(point.at?)?;
            Some((step, moment, point.totals.reserved))
        });
        Reservation {
            settings: outcome.settings,
            peak: outcome.peak.totals,
            at: outcome.peak.at.and_then(|at| asked.place(at)).map(|(step, phase, _)| (step, phase)),
            allocated: outcome.allocated_peak.totals.allocated,
            retries: outcome.retries,
            oom,
            over_time: over_time.collect(),
        }
    }

    /// The most bytes reserved.
    pub fn reserved(&self) -> Bytes {
        Bytes::new(self.peak.reserved)
    }

    /// Whether the process fits a card: what is reserved and what lies outside the allocator, or the request that was not
    /// served.
    pub fn verdict(&self, plan: &Plan, card: &Card) -> Verdict {
        let oom = self.oom.as_ref().map(|planned| &planned.oom);
        taken(plan, card, self.settings, (self.peak.reserved, oom))
    }

    /// Whether that is known of the whole step, where micro-batches of it are left out, as [`Fits::is_of_whole`] has it.
    pub fn is_of_whole(&self, plan: &Plan) -> bool {
        let end = (Step::Steady, plan.steady.phases.len());
        let (step, phase) = self.oom.as_ref().map_or(end, |out| (out.step, out.phase));
        plan.is_whole_until(step, phase)
    }

    /// `reserved 18.21 GiB by the caching allocator: …`, and what that is made of.
    pub(crate) fn sentence(&self, plan: &Plan) -> String {
        let tails = match self.peak.tails {
            0 => String::new(),
            tails => format!(" ({} of it the unsplit ends of blocks)", Bytes::new(tails)),
        };
        let mut parts = vec![format!("{} allocated{tails}", Bytes::new(self.peak.allocated))];
        let others = [
            (self.peak.returnable, "free in whole segments"),
            (self.peak.stuck(), "free in segments that are partly in use"),
        ];
        let others = others.iter().filter(|(size, _)| *size > 0);
        parts.extend(others.map(|(size, what)| format!("{} {what}", Bytes::new(*size))));
        let settings = match self.settings.to_string() {
            text if text == "default" => String::new(),
            text => format!(" under {text}"),
        };
        let place = self.at.and_then(|(step, phase)| Some((step, plan.step(step).phases.get(phase)?)));
        let place = place.map_or_else(String::new, |(step, phase)| {
            let several = plan.options.gradient_accumulation_steps > 1;
            format!(" in {} of the {} step", id(phase, several), step.as_str())
        });
        let (reserved, parts) = (self.reserved(), parts.join(", "));
        format!("reserved {reserved} by the caching allocator{settings}, most of all{place}: there {parts}")
    }
}

impl PlannedOom {
    /// The phase that runs out.
    pub fn phase<'a>(&self, plan: &'a Plan) -> Option<&'a PlannedPhase> {
        plan.step(self.step).phases.get(self.phase)
    }
}

/// What a process takes of a card where so much is reserved, or a request was not served.
fn taken(
    plan: &Plan,
    card: &Card,
    settings: Settings,
    (reserved, oom): (u64, Option<&OutOfMemory>),
) -> Verdict {
    let outside = plan.outside(Some(card)).get();
    let limit = settings.limit_on(Some(card.total.get())).map(|limit| limit.saturating_add(outside));
    let capacity = limit.unwrap_or(u64::MAX).min(card.total.get());
    let needed = reserved.saturating_add(outside);
    let needed = match oom {
        None => needed,
        Some(oom) => {
            let then = oom.totals.reserved.saturating_add(oom.segment).saturating_add(outside);
            needed.max(then).max(capacity.saturating_add(1))
        }
    };
    Verdict { needed: Bytes::new(needed), capacity: Bytes::new(capacity) }
}

/// A card, or one that never runs out.
fn limited(plan: &Plan, card: Option<&Card>) -> Device {
    match card {
        None => Device::unlimited(),
        Some(card) => Device::of(card.total.get(), plan.outside(Some(card)).get()),
    }
}
