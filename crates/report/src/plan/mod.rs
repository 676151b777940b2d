//! The report of `plan`: what was assumed, each phase of the step, where the peak is and who forms it, whether it fits, and
//! what is not counted. What is said of them is here; each way of writing it has its file.

mod candidates;
mod costs;
mod csv;
mod json;
mod markdown;
mod ranks;
mod ranks_json;
mod rows;
mod table;

use crate::figures::and_more;
use crate::html::Page;
use crate::{Look, Origins, PlannedOom, Report, Reservation, verdict, write_json};
pub(crate) use markdown::assumptions_in_markdown;
use peakledger_core::{Bytes, Ledger};
use peakledger_plan::catalogue::Card;
use peakledger_plan::{At, Contributor, Plan, RankCosts, Step, StepPlan, Verdict};
pub use ranks::{RankFigures, RanksReport};
pub(crate) use rows::id;
use std::io;
pub(crate) use table::{assumptions, contributor_table};

/// A planned step, the card it is to run on, and other ways to run it.
#[derive(Debug)]
pub struct PlanReport<'a> {
    /// What the user calls the model.
    pub name: &'a str,
    /// The plan.
    pub plan: &'a Plan,
    /// The steps to show; nothing for both.
    pub step: Option<Step>,
    /// The card.
    pub card: Option<&'a Card>,
    /// Plans with other options, by name.
    pub candidates: &'a [(String, Plan)],
    /// Usual candidates that could not be planned: a name, and why.
    pub left_out: &'a [(String, String)],
    /// The other ranks, where there is more than one.
    pub ranks: Option<RanksReport<'a>>,
    /// What the step costs the rank that takes longest: of the plan, then of each candidate.
    pub slowest: &'a [RankCosts],
    /// What the caching allocator reserves: for the plan, then for each candidate. Empty where that is not looked at.
    pub reservations: &'a [Reservation],
    /// Where the options came from, if configs were read.
    pub origins: Option<&'a Origins>,
}

impl PlanReport<'_> {
    fn peak(&self) -> At<'_> {
        self.plan.peak_in(self.step)
    }

    fn steps(&self) -> Vec<&StepPlan> {
        match self.step {
            Some(step) => vec![self.plan.step(step)],
            None => vec![&self.plan.first, &self.plan.steady],
        }
    }

    /// Whether the step fits the card.
    pub fn verdict(&self) -> Option<Verdict> {
        self.verdict_of(self.plan)
    }

    /// Whether the plan, or a candidate's, fits the card.
    pub(crate) fn verdict_of(&self, plan: &Plan) -> Option<Verdict> {
        self.card.map(|card| match self.reservation_of(plan) {
            Some(reservation) => reservation.verdict(plan, card),
            None => Verdict::of(plan, card, self.step),
        })
    }

    /// What the caching allocator reserves for the plan, or for a candidate's.
    pub(crate) fn reservation_of(&self, plan: &Plan) -> Option<&Reservation> {
        self.known_of(self.reservations, plan)
    }

    /// What is known of a plan, or of a candidate's, by things of which the first is the plan's.
    fn known_of<'a, T>(&self, known: &'a [T], plan: &Plan) -> Option<&'a T> {
        let plans = std::iter::once(self.plan).chain(self.candidates.iter().map(|(_, plan)| plan));
        plans.zip(known).find(|(of, _)| std::ptr::eq(*of, plan)).map(|(_, known)| known)
    }

    /// What the figures leave out.
    pub(crate) fn not_counted(&self) -> Vec<&'static str> {
        self.plan.not_counted(self.reservation_of(self.plan).is_some())
    }

    /// `in backward of the steady step`.
    fn whereabouts(&self, at: At<'_>) -> String {
        let phase = id(at.phase, self.plan.options.gradient_accumulation_steps > 1);
        format!("in {phase} of the {} step", at.step.step.as_str())
    }

    /// The verdict in a sentence.
    fn verdict_line(&self) -> Option<String> {
        let (card, verdict) = (self.card?, self.verdict_of(self.plan)?);
        Some(match self.reservation_of(self.plan) {
            Some(reservation) => {
                let several = self.plan.options.gradient_accumulation_steps > 1;
                let phase = |out: &PlannedOom| out.phase(self.plan).map(|phase| rows::id(phase, several));
                verdict::of_reserved(self.plan, card, verdict, reservation, phase)
            }
            None => {
                let device_peak = self.plan.device_peak_in(self.step).phase.device_peak;
                verdict::sentence(self.plan, card, verdict, device_peak)
            }
        })
    }

    /// What must be known beside the verdict.
    pub(crate) fn caveats(&self) -> Vec<String> {
        verdict::caveats(self.plan, self.card, self.verdict_of(self.plan), self.origins)
    }

    /// What is reserved and what that is made of.
    fn reserved_line(&self) -> Option<String> {
        self.reservation_of(self.plan).map(|reservation| reservation.sentence(self.plan))
    }

    /// The largest total on the host in the steps shown.
    fn host_peak(&self) -> Bytes {
        let phases = self.steps().into_iter().flat_map(|step| &step.phases);
        phases.map(|phase| phase.host_peak).max().unwrap_or_default()
    }

    /// What is on the host.
    pub(crate) fn host_line(&self) -> Option<String> {
        let host = self.host_peak();
        (host > Bytes::ZERO).then(|| format!("beside it, up to {host} on the cpu"))
    }

    fn device_line(&self) -> String {
        let at = self.plan.device_peak_in(self.step);
        format!(
            "device peak {} with the batch and kernel memory, {}",
            at.phase.device_peak,
            self.whereabouts(at)
        )
    }

    /// What was not tried and why.
    fn left_out_lines(&self) -> impl Iterator<Item = String> {
        self.left_out.iter().map(|(name, cause)| format!("{name} is left out: {cause}"))
    }
}

impl Report for PlanReport<'_> {
    fn table(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        self.write_table(out, look)
    }

    fn json(&self, out: &mut dyn io::Write) -> io::Result<()> {
        write_json(out, &json::PlanJson::of(self))
    }

    fn csv(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        self.write_csv(out, look)
    }

    fn markdown(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        self.write_markdown(out, look)
    }

    fn page(&self) -> io::Result<Option<Page>> {
        self.html_page().map(Some)
    }
}

/// Topics and what is said of each.
pub(crate) fn assumed(
    plan: &Plan,
    origins: Option<&Origins>,
) -> impl Iterator<Item = (&'static str, String)> {
    let said = origins.map(Origins::lines).unwrap_or_default();
    plan.assumptions().into_iter().map(|assumption| (assumption.topic, assumption.value)).chain(said)
}

/// The op-level ledger of a step, for pictures.
pub(crate) fn ledger_of(plan: &Plan, step: Step) -> io::Result<Ledger> {
    plan.op_ledger(step).map_err(|error| io::Error::other(error.to_string()))
}

/// What is said of the contributors that are not listed.
fn more(contributors: &[Contributor], shown: usize) -> Option<String> {
    let rest = contributors.get(shown..)?;
    let bytes = rest.iter().map(|c| c.bytes.get()).sum(); // part of a total that fits
    and_more(rest.len(), Bytes::new(bytes))
}
