//! How long a step takes in theory, of however many ranks: as long as the rank that takes longest is busy, and as the stages of
//! its pipeline wait for each other. What a plan says, its candidates, what fits and a search are all by this one time.

use crate::catalogue::Speeds;
use crate::parallel::Parallel;
use crate::parallel::bubble::{Passes, bubble};
use crate::parallel::schedule::in_steps_of;
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

    /// The same with so many more micro-batches. Those come in the middle of a step, where passes take turns: forward as the last
    /// but one does, backward as the second does. By themselves, or as many together as the schedule takes in a row.
    pub(crate) fn of_all(plan: &Plan, step: Step, speeds: Option<&Speeds>, left_out: u32) -> RankCosts {
        let parallel = &plan.options.parallel;
        let micro_batches = plan.options.gradient_accumulation_steps.saturating_add(left_out);
        let together = in_steps_of(parallel);
        let last_but_one = (plan.options.gradient_accumulation_steps / together).saturating_sub(2);
        let mut spent = Spent::default();
        for phase in &plan.step(step).phases {
            let like = if is_forward(&phase.phase) { last_but_one } else { 1 };
            let is_again = phase.micro_batch.is_some_and(|micro_batch| micro_batch / together == like);
            let again = if is_again { left_out / together } else { 0 };
            spent.add(&phase.phase, phase.costs + phase.costs.times(again));
        }
        let time = speeds.ok_or(Unknown::Rates);
        let time = time.and_then(|speeds| spent.time(speeds, parallel, micro_batches));
        RankCosts { rank: parallel.rank, costs: spent.all, time }
    }

    /// Those of the rank that takes longer; of equals this one.
    #[must_use]
    pub fn or_slower(self, other: RankCosts) -> RankCosts {
        if other.takes_longer_than(&self) { other } else { self }
    }

    /// Whether this rank takes longer. A time that is not known may be any; without times it is the rank that computes more,
    /// which ranks share out as they do time.
    pub fn takes_longer_than(&self, other: &RankCosts) -> bool {
        let length = |rank: &RankCosts| {
            let busy = rank.time.ok().map(|time| time.busy.step);
            (busy.is_none(), busy, rank.costs.flops.total())
        };
        length(self) > length(other)
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
            _ if is_forward(phase) => &mut self.forward,
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

fn is_forward(phase: &Phase) -> bool {
    *phase == Phase::Loss || phase.as_str().strip_prefix("forward").is_some_and(is_of_a_part)
}

/// Whether a phase's name ends so: that of a stage's first part, or of a later one.
fn is_of_a_part(rest: &str) -> bool {
    rest.is_empty() || rest.starts_with("_part_")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::card;
    use crate::options::{Offload, Options, Precision};
    use crate::parallel::{Schedule, Sharding, Shown, plan_ranks};
    use crate::try_out::tests::model;
    use crate::{Verdict, try_out};

    fn options(micro_batches: u32, parallel: Parallel) -> Options {
        let (seq_len, precision) = (Some(32), Precision::Bf16);
        Options {
            seq_len,
            precision,
            gradient_accumulation_steps: micro_batches,
            parallel,
            ..Options::default()
        }
    }

    /// What a search says of a step, and what the whole plans of all its ranks do.
    fn both(options: &Options) -> [RankCosts; 2] {
        let card = card("h100-80gb").unwrap();
        let tried = try_out(&model(), options.clone(), &card, |plan| Verdict::of(plan, &card, None)).unwrap();
        let look = |plan: &Plan| {
            let costs = RankCosts::of(plan, Step::Steady, card.speeds.as_ref());
            (plan.device_peak().phase.device_peak, costs)
        };
        let ranks = plan_ranks(&model(), options, Shown::Worst, look).unwrap();
        let slowest = ranks.each.iter().map(|(_, costs)| *costs).reduce(RankCosts::or_slower);
        [tried.slowest, slowest.unwrap()]
    }

    /// The stages of a pipeline wait for what its schedule says of all passes of the rank that takes longest: those of every
    /// part of a stage, and of weights that wait.
    #[test]
    fn a_pipeline_waits() {
        let card = card("h100-80gb").unwrap();
        let speeds = card.speeds.as_ref().unwrap();
        for (schedule, virtual_stages, wait) in [
            (Schedule::OneFOneB, 1, |[f, b, _]: [u128; 3]| 3 * (f + b)),
            (Schedule::Gpipe, 1, |[f, b, _]| 3 * (f + b)),
            (Schedule::Interleaved, 2, |[f, b, _]| 3 * (f + b) / 2),
            (Schedule::ZbH1, 1, |[f, i, w]| 3 * (f + i - w)),
            (Schedule::ZbH2, 1, |[f, i, w]| 3 * (f + i).saturating_sub(2 * w)),
            (Schedule::DualPipe, 1, |[f, b, w]| f + 2 * (b + w) - (b + w) / 2 * 3),
        ] as [(_, _, fn([u128; 3]) -> u128); 6]
        {
            let options = options(8, Parallel { pp: 4, schedule, virtual_stages, ..Parallel::default() });
            let look = |plan: &Plan| {
                let of = |names: &[&str]| {
                    let is_one = |phase: &Phase| names.iter().any(|name| phase.as_str().starts_with(name));
                    let phases = plan.steady.phases.iter().filter(|phase| is_one(&phase.phase));
                    let costs = phases.map(|phase| phase.costs).sum();
                    TheoreticalTime::of(&costs, speeds, &Parallel::default()).unwrap().step.0
                };
                let passes = [of(&["forward", "loss"]), of(&["backward"]), of(&["weight_grad"])];
                (plan.device_peak().phase.device_peak, (of(&[""]), passes.map(|all| all / 8)))
            };
            let ranks = plan_ranks(&model(), &options, Shown::Worst, look).unwrap();
            let (busy, passes) = ranks.each.iter().map(|(_, times)| *times).max().unwrap();
            assert_eq!(
                passes[2] > 0,
                !matches!(schedule, Schedule::OneFOneB | Schedule::Gpipe | Schedule::Interleaved)
            );
            for found in both(&options) {
                let time = found.time.unwrap();
                assert_eq!((time.busy.step.0, time.bubble.0), (busy, wait(passes)), "{schedule:?}");
                assert_eq!(time.step().0, busy + wait(passes));
            }
        }
        let alone = both(&options(8, Parallel::default()))[0];
        assert_eq!(alone.time.unwrap().bubble, Picoseconds(0));
    }

    /// Ranks that share out the update by parameters differ in it; the one that takes longest is the same, however few of them a
    /// search looks at.
    #[test]
    fn ranks_with_parts_of_other_parameters_take_as_long() {
        let shardings = [Sharding::Zero1, Sharding::Zero2, Sharding::Zero3, Sharding::FullShard];
        for (sharding, dp) in shardings.into_iter().flat_map(|sharding| (2..9).map(move |dp| (sharding, dp)))
        {
            for (precision, clip_grad_norm, optimizer) in [
                (Precision::Bf16, false, false),
                (Precision::Bf16Mixed, true, false),
                (Precision::Bf16, false, sharding.is_zero()),
            ] {
                let parallel = Parallel { dp: Some(dp), sharding, ..Parallel::default() };
                let offload = Offload { optimizer, ..Offload::default() };
                let options = Options { precision, clip_grad_norm, offload, ..options(2, parallel) };
                let [tried, planned] = both(&options);
                assert_eq!(tried, planned, "{sharding:?}, dp {dp}, {precision:?}");
            }
        }
    }
}
