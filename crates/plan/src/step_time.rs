//! How long a step takes in theory, of however many ranks: as long as the rank that takes longest is busy, and as the stages of
//! its pipeline wait for each other. What a plan says, its candidates, what fits and a search are all by this one time.

use crate::catalogue::Speeds;
use crate::parallel::Parallel;
use crate::parallel::bubble::{Passes, bubble};
use crate::{Costs, Picoseconds, Plan, Step, TheoreticalTime, Unknown};
use peakledger_core::Phase;

/// The least time of a step by the card's peak rates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepTime {
    /// What keeps the rank busy that takes longest.
    pub busy: TheoreticalTime,
    /// How long the stages of the pipeline wait for each other.
    pub bubble: Picoseconds,
}

impl StepTime {
    /// The whole step.
    pub fn step(&self) -> Picoseconds {
        Picoseconds(self.busy.step.0.saturating_add(self.bubble.0))
    }
}

/// What a step costs a rank, and how long the step takes where none takes longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankCosts {
    /// The rank.
    pub rank: u32,
    /// What it does in the step apart from memory.
    pub costs: Costs,
    /// The time of a step whose other ranks take no longer, or which rate is not known.
    pub time: Result<StepTime, Unknown>,
}

impl RankCosts {
    /// Those of the rank that a plan is of, at the rates of its card.
    pub fn of(plan: &Plan, step: Step, speeds: Option<&Speeds>) -> RankCosts {
        RankCosts::of_all(plan, step, speeds, plan.left_out)
    }

    /// The same with so many more micro-batches, each of which costs what the second does.
    pub(crate) fn of_all(plan: &Plan, step: Step, speeds: Option<&Speeds>, left_out: u32) -> RankCosts {
        let parallel = &plan.options.parallel;
        let micro_batches = plan.options.gradient_accumulation_steps.saturating_add(left_out);
        let mut spent = Spent::default();
        for phase in &plan.step(step).phases {
            let again = if phase.micro_batch == Some(1) { left_out } else { 0 };
            spent.add(&phase.phase, phase.costs + phase.costs.times(again));
        }
        let time = speeds.ok_or(Unknown::Rates);
        let time = time.and_then(|speeds| spent.time(speeds, parallel, micro_batches));
        RankCosts { rank: parallel.rank, costs: spent.all, time }
    }

    /// Those of the rank that takes longer; of equals this one. A time that is not known may be any; without times it is the
    /// rank that computes more, which ranks share out as they do time.
    #[must_use]
    pub fn or_slower(self, other: RankCosts) -> RankCosts {
        let length = |rank: &RankCosts| {
            let busy = rank.time.ok().map(|time| time.busy.step);
            (busy.is_none(), busy, rank.costs.flops.total())
        };
        if length(&other) > length(&self) { other } else { self }
    }
}

/// What a rank spends on a step, and on the passes of its micro-batches.
#[derive(Default)]
struct Spent {
    all: Costs,
    forward: Costs,
    backward: Costs,
    weights: Costs,
}

impl Spent {
    fn add(&mut self, phase: &Phase, costs: Costs) {
        self.all += costs;
        let is = |name| phase.as_str().strip_prefix(name).is_some_and(is_of_a_part);
        let pass = match phase {
            Phase::Loss => &mut self.forward,
            _ if is("forward") => &mut self.forward,
            _ if is("backward") => &mut self.backward,
            _ if is("weight_grad") => &mut self.weights,
            _ => return,
        };
        *pass += costs;
    }

    fn time(&self, speeds: &Speeds, parallel: &Parallel, micro_batches: u32) -> Result<StepTime, Unknown> {
        let time = |costs| TheoreticalTime::of(costs, speeds, parallel);
        let busy = time(&self.all)?;
        let of_one = |costs| {
            let Picoseconds(all) = time(costs)?.step;
            Ok(Picoseconds(all / u128::from(micro_batches.max(1))))
        };
        let passes = Passes {
            forward: of_one(&self.forward)?,
            backward: of_one(&self.backward)?,
            weights: of_one(&self.weights)?,
        };
        Ok(StepTime { busy, bubble: bubble(parallel, passes) })
    }
}

/// Whether a phase's name ends so: that of a stage's first part, or of a later one.
fn is_of_a_part(rest: &str) -> bool {
    rest.is_empty() || rest.starts_with("_part_")
}
