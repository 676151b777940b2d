//! In which order micro-batches go through a step, and which of them need not be run: those of a row of rounds that are each
//! the one before it with the next micro-batches.
//!
//! A loop runs forward and backward of one micro-batch after the other. A stage of a pipeline warms up with some forward
//! passes, then runs one forward and one backward in turn, of micro-batches that lie as far apart as the warm-up is long: a
//! round has both. Where all forward passes come first (GPipe), forward and backward passes each have rounds of their own.
//!
//! Megatron's schedule holds what it received by a name until the next is received, which in the rounds is after another pass
//! than at the end. So what its rounds leave has to go in rounds, and as many more are run as the warm-up is long. torch's
//! lets go of everything in the backward pass of its micro-batch or in the pass that follows.

use crate::options::{HoldOutputs, Options};
use crate::parallel::schedule::{Action, Pass, actions};
use crate::parallel::{Schedule, Sharding, Stack};
use std::ops::Range;

/// What is run of a step's micro-batches in order, and what of it is written down again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rounds {
    /// What is run.
    pub(super) run: Vec<Action>,
    /// What runs in a whole step.
    pub(super) whole: Vec<Action>,
    /// How many micro-batches are run.
    pub(crate) micro_batches: u32,
    /// How many are written down.
    pub(super) copies: u32,
    /// For each pass the micro-batch that is written down again.
    again: Vec<(Pass, u32)>,
    /// Those of each pass that are run in rounds, where nothing else tells where something goes.
    in_rounds: Option<Vec<(Pass, Range<u32>)>>,
}

impl Rounds {
    /// The fewest micro-batches that have everything in their order that all of them have; nothing where these are all.
    pub(crate) fn of(options: &Options, has_experts: bool) -> Option<Rounds> {
        let parallel = &options.parallel;
        let stage = options.mesh().ok()?.place(parallel.rank).pp;
        let order = |micro_batches| match parallel.pp {
            1 => in_turn(micro_batches),
            _ => actions(parallel, stage, micro_batches),
        };
        let is_planned = parallel.pp == 1
            || !shares_within_passes(options)
                && matches!(parallel.schedule, Schedule::OneFOneB | Schedule::Gpipe)
                && parallel.virtual_stages == 1;
        // beside the first round, which makes the gradients, and the two that are compared
        let more = u32::from(parallel.pp > 1 || ends_otherwise(options, has_experts));
        let by_names = parallel.pp > 1 && options.stack == Stack::Megatron;
        let warm_up = match parallel.schedule {
            Schedule::OneFOneB if by_names => 2 * (parallel.pp - 1 - stage) + 1,
            Schedule::OneFOneB => parallel.pp.saturating_sub(1 + stage),
            _ => 0,
        };
        let (all, micro_batches) = (options.gradient_accumulation_steps, warm_up + 3 + more);
        if !is_planned || sends_in_buckets(options) || micro_batches >= all {
            return None;
        }
        let rounds = Rounds::within(order(micro_batches), order(all), all - micro_batches)?;
        let in_rounds = by_names.then(|| rounds.in_rounds());
        Some(Rounds { micro_batches, in_rounds, ..rounds })
    }

    fn within(run: Vec<Action>, whole: Vec<Action>, copies: u32) -> Option<Rounds> {
        let mut rows: Vec<Pass> = run.iter().map(|action| action.pass).collect();
        rows.sort_unstable();
        rows.dedup();
        let together = round(&run, 0..run.len(), &rows).map(|round| vec![round]);
        let apart = || -> Option<Vec<Range<usize>>> {
            let of_row = |row: &Pass| {
                let from = run.iter().position(|action| action.pass == *row)?;
                let to = run.iter().rposition(|action| action.pass == *row)?;
                round(&run, from..to + 1, &[*row])
            };
            rows.iter().map(of_row).collect()
        };
        let mut windows = together.or_else(apart)?;
        windows.sort_unstable_by_key(|window| window.start);
        let again = windows.iter().flat_map(|window| run.get(window.clone()).unwrap_or_default());
        let again = again.map(|action| (action.pass, action.micro_batch)).collect();
        let rounds = Rounds { micro_batches: 0, copies, again, in_rounds: None, run, whole };
        rounds.is_whole(&windows).then_some(rounds)
    }

    /// Whether what is run, with each round as often as it is written down again, is the whole step in its order.
    fn is_whole(&self, windows: &[Range<usize>]) -> bool {
        let mut all = Vec::with_capacity(self.whole.len());
        let mut next = 0;
        for window in windows {
            let run = self.run.get(next..window.end).unwrap_or_default();
            all.extend(run.iter().map(|action| self.in_whole(*action)));
            let again = self.run.get(window.clone()).unwrap_or_default();
            for copy in 1..=self.copies {
                all.extend(again.iter().map(|action| later(*action, copy)));
            }
            next = window.end;
        }
        all.extend(self.run.get(next..).unwrap_or_default().iter().map(|action| self.in_whole(*action)));
        all == self.whole
    }

    /// From the round that is written down again on, the micro-batches of each pass whose rounds follow each other.
    fn in_rounds(&self) -> Vec<(Pass, Range<u32>)> {
        let each = self.again.len();
        let is_again = |action: &Action| action.micro_batch == self.again(action.pass);
        let first = self.run.iter().position(is_again).unwrap_or(0);
        let follows = |at: &usize| {
            let (here, next) = (self.run.get(*at), self.run.get(*at + each));
            here.zip(next).is_some_and(|(here, next)| later(*here, 1) == *next)
        };
        let rounds = (first..).take_while(follows).count() / each.max(1) + 1;
        let rounds = u32::try_from(rounds).unwrap_or(1);
        self.again.iter().map(|(pass, again)| (*pass, *again..*again + rounds)).collect()
    }

    /// Whether what goes in the pass of that micro-batch, as it was run, goes in the same of the whole step.
    pub(super) fn goes_alike(&self, action: Action, in_whole: u32) -> bool {
        let run = self.run_for(action.pass, in_whole);
        let Some(in_rounds) = &self.in_rounds else { return true };
        let range = in_rounds.iter().find(|(pass, _)| *pass == action.pass).map(|(_, range)| range);
        let is_in = |micro_batch| range.is_some_and(|range| range.contains(&micro_batch));
        run == action.micro_batch || is_in(run) && is_in(action.micro_batch)
    }

    /// The micro-batch of a pass that is written down again.
    pub(super) fn again(&self, pass: Pass) -> u32 {
        self.again.iter().find(|(other, _)| *other == pass).map_or(u32::MAX, |(_, again)| *again)
    }

    /// Which micro-batch of the whole step a micro-batch that is run is, in that pass.
    pub(super) fn in_whole(&self, action: Action) -> Action {
        if action.micro_batch <= self.again(action.pass) { action } else { later(action, self.copies) }
    }

    /// Which micro-batch is run for one of the whole step.
    pub(super) fn run_for(&self, pass: Pass, micro_batch: u32) -> u32 {
        let again = self.again(pass);
        match micro_batch {
            early if early <= again => early,
            copy if copy <= again.saturating_add(self.copies) => again,
            late => late - self.copies,
        }
    }
}

/// Whether data parallel ranks share what the passes of a pipeline stage use and make, while they run (DDP and FSDP2): what
/// that leaves goes by where a pass stands among the others, not by its micro-batch.
pub(crate) fn shares_within_passes(options: &Options) -> bool {
    let Ok(mesh) = options.mesh() else { return true };
    let is_ddp = options.parallel.sharding == Sharding::Replicated && mesh.dp * mesh.cp > 1;
    options.stack == Stack::Transformers && mesh.pp > 1 && (is_ddp || options.parallel.sharding.is_fsdp())
}

/// Whether DeepSpeed sends gradients and parameters by its own buckets as they come, or copies them to the host: where a
/// bucket is full has nothing to do with layers. Stage 1 alone does so when the last backward has ended.
pub(crate) fn sends_in_buckets(options: &Options) -> bool {
    let at_the_end = options.parallel.sharding == Sharding::Zero1 && !options.offload.has_optimizer();
    options.is_deepspeed() && !at_the_end
}

/// A loop: forward and backward of one micro-batch after the other.
fn in_turn(micro_batches: u32) -> Vec<Action> {
    let both =
        |micro_batch| [Pass::Forward, Pass::Backward].map(|pass| Action { pass, micro_batch, part: 0 });
    (0..micro_batches).flat_map(both).collect()
}

/// Whether the last micro-batch is unlike the others: the ranks sum what all of them have added, or the loop still holds what
/// it put out, or the dispatchers of Megatron's experts what they sent.
fn ends_otherwise(options: &Options, has_experts: bool) -> bool {
    let is_held = has_experts && options.stack == Stack::Megatron;
    if options.hold_outputs == HoldOutputs::Step || is_held {
        return true;
    }
    let Ok(mesh) = options.mesh() else { return true };
    let shares = mesh.dp * mesh.cp > 1 || options.parallel.sharding != Sharding::Replicated;
    shares && options.stack == Stack::Transformers && !options.parallel.data.sync_each_batch
}

fn later(action: Action, by: u32) -> Action {
    Action { micro_batch: action.micro_batch + by, ..action }
}

/// The first round within a stretch of actions, once there are gradients, that is followed by the same with the next
/// micro-batches. It has each of these passes once.
fn round(run: &[Action], within: Range<usize>, passes: &[Pass]) -> Option<Range<usize>> {
    let windows = within.clone().map(|from| from..from + passes.len());
    windows.into_iter().find(|window| {
        let (Some(here), Some(next)) =
            (run.get(window.clone()), run.get(window.end..window.end + passes.len()))
        else {
            return false;
        };
        let mut found: Vec<Pass> = here.iter().map(|action| action.pass).collect();
        found.sort_unstable();
        found == passes
            && here.iter().all(|action| action.micro_batch > 0)
            && here.iter().map(|action| later(*action, 1)).eq(next.iter().copied())
            && window.end + passes.len() <= within.end
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parallel::Parallel;

    fn of(parallel: Parallel, micro_batches: u32) -> Option<(u32, u32, u32)> {
        let options = Options { gradient_accumulation_steps: micro_batches, parallel, ..Options::default() };
        let rounds = Rounds::of(&options, false)?;
        Some((rounds.micro_batches, rounds.again(Pass::Forward), rounds.again(Pass::Backward)))
    }

    #[test]
    fn a_loop_runs_three_and_one_more_where_the_last_is_another() {
        let one = Parallel::default();
        assert_eq!(of(one.clone(), 3), None);
        assert_eq!(of(one, 4), Some((3, 1, 1)));
        assert_eq!(of(Parallel { dp: Some(2), ..Parallel::default() }, 9), Some((4, 1, 1)));
    }

    #[test]
    fn a_stage_runs_as_many_more_as_it_warms_up() {
        let stages = |rank| Parallel { pp: 4, rank, ..Parallel::default() };
        assert_eq!(of(stages(0), 7), None);
        assert_eq!(of(stages(0), 8), Some((7, 4, 1)), "four forward passes ahead of the second backward");
        assert_eq!(of(stages(3), 32), Some((4, 1, 1)));
        let gpipe = Parallel { schedule: Schedule::Gpipe, ..stages(1) };
        assert_eq!(of(gpipe, 32), Some((4, 1, 1)));
    }
}
