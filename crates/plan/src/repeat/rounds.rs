//! In which order micro-batches go through a step, and which of them need not be run: those of a row of rounds that are each
//! the one before it with the next micro-batches.
//!
//! A loop runs forward and backward of one micro-batch after the other. A stage of a pipeline warms up, and then runs a forward
//! and a backward pass in turn, of micro-batches that lie as far apart as the warm-up is long: a round has both. With backward
//! in two passes it has three, with stages of several parts each part's passes of as many micro-batches as there are stages,
//! with two directions the passes of both. Where all forward passes come first (GPipe), forward and backward passes each have
//! rounds of their own. A round is found in the order of passes, not by the schedule's name, and what is run, with the round
//! as often as it is written down again, has to be the whole step in its order.
//!
//! A stage of 1F1B that warms up with many passes is run as one that warms up with few: it has rounds of the warm-up, of forward and
//! backward in turn, and of the cool-down. What is made in the warm-up passes that are left out is there until as many passes of
//! the cool-down.
//!
//! Megatron's schedule holds what it received by a name until the next is received, which in the rounds is after another pass
//! than at the end; FSDP2 and DDP leave things to whichever pass comes next. So what such rounds leave has to go in rounds, and
//! as many more are run as the warm-up is long. In torch's own schedules, without FSDP2 and DDP, everything goes in the
//! backward pass of its micro-batch or in the pass after it.

use crate::options::{HoldOutputs, Options};
use crate::parallel::schedule::{Action, Pass, actions, in_steps_of, one_f_one_b};
use crate::parallel::{Schedule, Sharding, Stack};
use std::collections::BTreeMap;
use std::ops::Range;

/// What is run of a step's micro-batches in order, and what of it is written down again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rounds {
    /// What is run.
    pub(crate) run: Vec<Action>,
    /// What runs in a whole step.
    pub(super) whole: Vec<Action>,
    /// How many micro-batches are run.
    pub(crate) micro_batches: u32,
    /// What of it is written down again: one round, or one of each pass.
    rows: Vec<Row>,
    /// Whether something goes by where a pass stands among the others, not by its micro-batch.
    by_place: bool,
}

/// Rounds one after the other, one of which is written down again. Places are those of what is run.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    /// The round that is written down again. The next, which it is compared with, comes right after it.
    again: Range<usize>,
    /// Where the last of the rounds ends.
    end: usize,
    /// Micro-batches from one round to the next.
    step: u32,
    /// How often it is written down again.
    copies: u32,
}

/// What stands where in the whole step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Again {
    /// What was run for it, by its place.
    pub(super) run: usize,
    /// How many micro-batches later this is.
    pub(super) later: u32,
}

/// The longest round that is looked for, in passes.
const LONGEST: usize = 256;

/// With how many passes a stage of 1F1B warms up whose own warm-up is longer: the first, one that is written down again, and one
/// that it is compared with.
const FEW: u32 = 3;

/// More micro-batches than these are not run to save others.
const MOST: u32 = 256;

impl Rounds {
    /// The fewest micro-batches that have everything in their order that all of them have; nothing where these are all.
    pub(crate) fn of(options: &Options, has_experts: bool) -> Option<Rounds> {
        let parallel = &options.parallel;
        let all = options.gradient_accumulation_steps;
        let stage = options.mesh().ok()?.place(parallel.rank).pp;
        let order = |run| match parallel.pp {
            1 => in_turn(run),
            _ => actions(parallel, stage, run, all),
        };
        let whole = order(all);
        // names that are bound anew in every pass; those of interleaved stages are bound in their own part
        let by_names = options.stack == Stack::Megatron && parallel.schedule != Schedule::Interleaved;
        let by_place = parallel.pp > 1 && by_names || shares_within_passes(options);
        let ends = parallel.pp > 1 || ends_otherwise(options, has_experts);
        let is_plain = !options.offload.has_optimizer() && !by_place;
        if parallel.pp > 1 && parallel.schedule == Schedule::OneFOneB && is_plain {
            let few = Rounds::of_few_ahead(&whole, parallel.pp - 1 - stage, all);
            if few.is_some() {
                return few;
            }
        }
        let each = in_steps_of(parallel);
        let fewer = (1..).map(|steps| steps * each).take_while(|run| *run < all.min(MOST));
        fewer.into_iter().find_map(|micro_batches| {
            let run = order(micro_batches);
            candidates(&run, Tail { ends, by_place }).find_map(|mut rows| {
                let each: usize = rows.iter().map(|row| row.again.len()).sum();
                let copies = u32::try_from((whole.len() - run.len()) / each).ok()?;
                rows.iter_mut().for_each(|row| row.copies = copies);
                let rounds = Rounds { run: run.clone(), whole: Vec::new(), micro_batches, rows, by_place };
                rounds.is_whole(&whole).then(|| Rounds { whole: whole.clone(), ..rounds })
            })
        })
    }

    /// Those of a stage of 1F1B that warms up with so many passes, run with few of them; nothing where it has no more.
    fn of_few_ahead(whole: &[Action], warm_up: u32, all: u32) -> Option<Rounds> {
        let ahead = warm_up.checked_sub(FEW).filter(|ahead| *ahead > 0)?;
        let micro_batches = 2 * FEW;
        let between = all.checked_sub(micro_batches + ahead).filter(|rounds| *rounds > 0)?;
        let run = one_f_one_b(FEW + 1, 0, micro_batches);
        let few = FEW as usize;
        // of each row the first is unlike the others: it is the first of its kind, or comes after another
        let row = |from, length, copies| Some(Row { copies, ..Row::from(&run, from, length)? });
        let rows = vec![row(1, 1, ahead)?, row(few + 2, 2, between)?, row(3 * few, 1, ahead)?];
        let rounds = Rounds { run, whole: whole.to_vec(), micro_batches, rows, by_place: false };
        rounds.is_whole(whole).then_some(rounds)
    }

    /// What runs in the whole step, in its order: what was run, and each round as often as it is written down again.
    pub(super) fn written(&self) -> Vec<Again> {
        let mut written = Vec::with_capacity(self.whole.len());
        for run in 0..self.run.len() {
            written.push(Again { run, later: self.moved(run) });
            let Some(row) = self.rows.iter().find(|row| row.again.end == run + 1) else { continue };
            for copy in 1..=row.copies {
                let again = |run| Again { run, later: self.moved(run) + copy * row.step };
                written.extend(row.again.clone().map(again));
            }
        }
        written
    }

    /// Whether that is the whole step.
    fn is_whole(&self, whole: &[Action]) -> bool {
        let action = |Again { run, later }| self.run.get(run).map(|action| later_by(*action, later));
        self.written().into_iter().map(action).eq(whole.iter().copied().map(Some))
    }

    /// The rows that a pass is run in, or those of its part are.
    fn rows_of(&self, run: usize) -> impl DoubleEndedIterator<Item = &Row> {
        let action = self.run.get(run);
        let has = move |row: &&Row, is_one: &dyn Fn(&Action, &Action) -> bool| {
            let round = self.run.get(row.again.clone()).unwrap_or_default();
            action.is_some_and(|action| round.iter().any(|it| is_one(it, action)))
        };
        let is_of_pass = |it: &Action, action: &Action| key(it) == key(action);
        let passes_have_rows = self.rows.iter().any(|row| has(&row, &is_of_pass));
        self.rows.iter().filter(move |row| match passes_have_rows {
            true => has(row, &is_of_pass),
            false => has(row, &|it, action| it.part == action.part),
        })
    }

    /// By how many micro-batches what was run there is later in the whole step, where it first stands.
    pub(super) fn moved(&self, run: usize) -> u32 {
        self.rows_of(run).filter(|row| run >= row.again.end).map(|row| row.copies * row.step).sum()
    }

    /// By how many micro-batches more another pass of the same round is moved: in the whole step the two come together,
    /// whichever micro-batches they are of.
    pub(super) fn moved_more(&self, run: usize, other: usize) -> i64 {
        let is_of_pass = |a: Option<&Action>, b: Option<&Action>| a.map(key) == b.map(key);
        let round = |row: &Row, run: usize| {
            let length = row.again.len();
            (run + length - row.again.start % length) / length
        };
        let is_in_one = |row: &Row| row.again.len() > 1 && round(row, run) == round(row, other);
        if is_of_pass(self.run.get(run), self.run.get(other)) || !self.rows.iter().any(is_in_one) {
            return 0;
        }
        i64::from(self.moved(other)) - i64::from(self.moved(run))
    }

    /// Micro-batches from a round to the next, where that pass is run in rounds.
    pub(super) fn step(&self, run: usize) -> u32 {
        self.rows_of(run).next().map_or(1, |row| row.step)
    }

    /// The row of a pass that is written down again.
    fn row_again(&self, run: usize) -> Option<&Row> {
        self.rows.iter().find(|row| row.again.contains(&run))
    }

    /// How often a pass is written down again.
    pub(super) fn copies(&self, run: usize) -> u32 {
        self.row_again(run).map_or(0, |row| row.copies)
    }

    /// Where what is written down again of a pass ends.
    pub(super) fn again_ends(&self, run: usize) -> Option<usize> {
        Some(self.row_again(run)?.again.end)
    }

    /// The end of the row whose passes let go of what a pass made that is written down again, where one like `other` does: its
    /// own row, or for the warm-up that of the cool-down.
    pub(super) fn goes_with(&self, run: usize, other: usize) -> Option<usize> {
        let own = self.row_again(run)?;
        let has_own = self.rows_of(other).any(|row| row == own);
        let row = if has_own { own } else { self.rows_of(other).next_back()? };
        Some(row.again.end)
    }

    /// What the round that is written down again is compared with: for a place in it, that of the next.
    pub(super) fn next(&self, run: usize) -> Option<usize> {
        Some(run + self.row_again(run)?.again.len())
    }

    /// All places that are written down again.
    pub(super) fn again(&self) -> impl Iterator<Item = usize> + '_ {
        self.rows.iter().flat_map(|row| row.again.clone())
    }

    /// Whether what was run there is written down again.
    pub(super) fn is_again(&self, run: usize) -> bool {
        self.row_again(run).is_some()
    }

    /// Whether it is, or is compared with what is.
    pub(super) fn is_compared(&self, run: usize) -> bool {
        self.rows.iter().any(|row| (row.again.start..row.again.end + row.again.len()).contains(&run))
    }

    /// Whether what goes in the pass that was run there goes at the same place of the one that was run for another.
    pub(super) fn goes_alike(&self, run: usize, other: usize) -> bool {
        let in_rounds = |row: &Row| [run, other].iter().all(|it| (row.again.start..row.end).contains(it));
        !self.by_place || run == other || self.rows.iter().any(in_rounds)
    }
}

/// What stands against the last rounds.
#[derive(Clone, Copy)]
struct Tail {
    /// The last pass of each kind is unlike the others.
    ends: bool,
    /// What the rounds leave has to go in rounds.
    by_place: bool,
}

/// What may be the rows of an order, not written down again yet: one of rounds with all passes, the shortest first, or one for
/// each pass.
fn candidates(run: &[Action], tail: Tail) -> impl Iterator<Item = Vec<Row>> + '_ {
    let mut ends: BTreeMap<(u32, Pass), (usize, usize)> = BTreeMap::new();
    for (at, action) in run.iter().enumerate() {
        ends.entry(key(action)).or_insert((at, at)).1 = at;
    }
    let passes: Vec<Range<usize>> = ends.values().map(|(first, last)| *first..last + 1).collect();
    let middle = move |at: usize, action: &Action| {
        ends.get(&key(action)).is_some_and(|(first, last)| at > *first && (at < *last || !tail.ends))
    };
    let row = move |from: usize, length: usize| {
        let row = Row::from(run, from, length)?;
        let compared = from..from + 2 * length;
        let is_in_the_middle =
            compared.clone().zip(run.get(compared)?).all(|(at, action)| middle(at, action));
        let needed = if tail.by_place { 4 + row.in_flight(run)? } else { 2 };
        (is_in_the_middle && (row.end - from) / length >= needed).then_some(row)
    };
    let apart: Option<Vec<Row>> =
        passes.iter().map(|stretch| stretch.clone().find_map(|from| row(from, 1))).collect();
    let together = move |length: usize| {
        let balanced = |row: &Row| is_balanced(run.get(row.again.clone()).unwrap_or_default(), row.step);
        (0..run.len()).find_map(|from| row(from, length)).filter(balanced).map(|row| vec![row])
    };
    (2..=LONGEST.min(run.len() / 2)).filter_map(together).chain(apart)
}

impl Row {
    /// The rounds of that length from there on, if there are two or more.
    fn from(run: &[Action], from: usize, length: usize) -> Option<Row> {
        let (first, second) = (run.get(from)?, run.get(from + length)?);
        let step = second.micro_batch.checked_sub(first.micro_batch).filter(|step| *step > 0)?;
        let follows = |(here, then): &(&[Action], &[Action])| {
            here.len() == then.len() && here.iter().zip(*then).all(|(a, b)| later_by(*a, step) == *b)
        };
        let chunks = run.get(from..)?.chunks(length);
        let more = chunks.clone().zip(chunks.skip(1)).take_while(follows).count();
        let again = from..from + length;
        (more > 0).then(|| Row { end: again.end + more * length, again, step, copies: 0 })
    }

    /// For how many rounds a micro-batch is in flight.
    fn in_flight(&self, run: &[Action]) -> Option<usize> {
        let round = run.get(self.again.clone())?.iter().map(|action| action.micro_batch);
        Some(((round.clone().max()? - round.min()?) / self.step) as usize)
    }
}

/// Whether a round has, of each part that it runs, all that is to be done with as many micro-batches as it goes on by.
fn is_balanced(round: &[Action], step: u32) -> bool {
    let count = |part, passes: &[Pass]| {
        let of_part = round.iter().filter(|action| action.part == part && passes.contains(&action.pass));
        u32::try_from(of_part.count()) == Ok(step)
    };
    let all_of = |part| {
        count(part, &[Pass::Forward])
            && count(part, &[Pass::Backward, Pass::InputGrad])
            && count(part, &[Pass::Backward, Pass::WeightGrad])
    };
    round.iter().all(|action| all_of(action.part))
}

fn key(action: &Action) -> (u32, Pass) {
    (action.part, action.pass)
}

/// Whether data parallel ranks share what the passes of a pipeline stage use and make, while they run (DDP and FSDP2): what
/// that leaves goes by where a pass stands among the others, not by its micro-batch.
pub(crate) fn shares_within_passes(options: &Options) -> bool {
    let Ok(mesh) = options.mesh() else { return true };
    let is_ddp = options.parallel.sharding == Sharding::Replicated && mesh.replicas() > 1;
    options.stack == Stack::Transformers && mesh.pp > 1 && (is_ddp || options.parallel.sharding.is_fsdp())
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
    let shares = mesh.replicas() > 1 || options.parallel.sharding != Sharding::Replicated;
    shares && options.stack == Stack::Transformers && !options.parallel.data.sync_each_batch
}

fn later_by(action: Action, by: u32) -> Action {
    Action { micro_batch: action.micro_batch + by, ..action }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parallel::Parallel;
    use insta::assert_snapshot;

    /// Micro-batches that are run, and the round that is written down again.
    fn of(parallel: Parallel, micro_batches: u32) -> Option<(u32, String)> {
        let options = Options { gradient_accumulation_steps: micro_batches, parallel, ..Options::default() };
        let rounds = Rounds::of(&options, false)?;
        let word = |run: usize| {
            let Action { pass, micro_batch, part } = rounds.run[run];
            let pass = match pass {
                Pass::Forward => 'F',
                Pass::Backward => 'B',
                Pass::InputGrad => 'I',
                Pass::WeightGrad => 'W',
            };
            format!("{pass}{micro_batch}{}", "'".repeat(part as usize))
        };
        Some((rounds.micro_batches, rounds.again().map(word).collect::<Vec<_>>().join(" ")))
    }

    #[test]
    fn a_loop_runs_three_and_one_more_where_the_last_is_another() {
        let one = Parallel::default();
        assert_eq!(of(one.clone(), 3), None);
        assert_eq!(of(one, 4), Some((3, "F1 B1".to_owned())));
        assert_eq!(of(Parallel { dp: Some(2), ..Parallel::default() }, 9), Some((4, "F1 B1".to_owned())));
    }

    #[test]
    fn a_stage_runs_as_many_more_as_it_warms_up() {
        let stages = |rank| Parallel { pp: 4, rank, ..Parallel::default() };
        assert_eq!(of(stages(0), 7), None);
        let run = |parallel, micro_batches| {
            of(parallel, micro_batches).map(|(run, again)| format!("{run}: {again}")).unwrap_or_default()
        };
        assert_snapshot!(run(stages(0), 8), @"7: F4 B1");
        assert_snapshot!(run(stages(3), 32), @"4: F1 B1");
        let of_16 = Parallel { pp: 16, ..stages(0) };
        assert_snapshot!(run(of_16.clone(), 18), @"");
        assert_snapshot!(run(of_16, 64), @"6: F1 F4 B1 B3");
        assert_snapshot!(run(Parallel { schedule: Schedule::Gpipe, ..stages(1) }, 32), @"4: F1 B1");
        let of = |schedule, rank| Parallel { schedule, ..stages(rank) };
        assert_snapshot!(run(of(Schedule::ZbH1, 1), 32), @"7: F4 I2 W1");
        assert_snapshot!(run(of(Schedule::ZbH2, 1), 32), @"10: F7 I3 W1");
        assert_snapshot!(run(of(Schedule::DualPipe, 1), 32), @"12: F3 B17' F19' B1");
        let interleaved = |rank| Parallel { virtual_stages: 2, ..of(Schedule::Interleaved, rank) };
        assert_snapshot!(run(interleaved(0), 32), @"20: F7' B1 F8 B2 F9 B3 F10 B4' F11 B5' F8' B6' F9' B7' F10' B4");
        assert_snapshot!(run(interleaved(3), 32), @"16: F5 B1 F6 B2 F7 B3 F4' B4' F5' B5' F6' B6' F7' B7' F8 B4");
    }

    /// Written down, what is run is the whole step: for stages, schedules and micro-batches of all sizes.
    #[test]
    fn rounds_are_found_in_every_schedule() {
        let schedules = [
            (Schedule::OneFOneB, 1),
            (Schedule::Gpipe, 1),
            (Schedule::ZbH1, 1),
            (Schedule::ZbH2, 1),
            (Schedule::DualPipe, 1),
            (Schedule::Interleaved, 2),
            (Schedule::Interleaved, 3),
        ];
        for ((schedule, virtual_stages), pp) in
            schedules.into_iter().flat_map(|it| [2, 4, 8].map(|pp| (it, pp)))
        {
            for (rank, many) in (0..pp).flat_map(|rank| [8 * pp, 16 * pp, 64 * pp].map(|many| (rank, many))) {
                let parallel = Parallel { pp, rank, schedule, virtual_stages, ..Parallel::default() };
                let options = Options { gradient_accumulation_steps: many, parallel, ..Options::default() };
                let rounds =
                    Rounds::of(&options, false).unwrap_or_else(|| panic!("{:?}, {many}", options.parallel));
                let action = |Again { run, later }| later_by(rounds.run[run], later);
                let written: Vec<Action> = rounds.written().into_iter().map(action).collect();
                assert_eq!(written, actions(&options.parallel, rank, many, many), "{options:?}");
                assert!(rounds.micro_batches <= 7 * pp, "{} of {options:?}", rounds.micro_batches);
            }
        }
    }
}
