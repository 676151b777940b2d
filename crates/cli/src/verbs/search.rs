//! `peakledger fit --search`: every combination of some options on a card.
//!
//! Each is planned and none is guessed at. A device peak alone says that a combination does not fit. What fits by it is held by
//! a replay of the caching allocator where it is shown, as `plan` does, and where it is near the limit by one of as much of the
//! step as is planned for the peak. That is final where it is the whole step, and where it runs out before it comes to what is
//! left out of it. Else nothing is: the allocator may come to the last micro-batch with other blocks free, and fit after all. So
//! where ranks differ or there are more micro-batches it is left open whether the others fit, and said how many there are.

use super::fit::Trial;
use crate::Answer;
use crate::combinations::Combinations;
use crate::from::{Given, Resolved};
use crate::output::Output;
use crate::progress::Progress;
use crate::search_args::SearchArgs;
use crate::step_args::StepArgs;
use peakledger_core::Bytes;
use peakledger_input::{Place, Problem, Source};
use peakledger_plan::options::Options;
use peakledger_plan::{Tried, Verdict, plan, try_out, try_out_replayed};
use peakledger_report::side_by_side::{cores, counted, side_by_side};
use peakledger_report::{Refused, SearchReport, SearchRow, closest, is_near};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

pub(super) fn run(
    args: &SearchArgs,
    (request, given): (&Resolved, &Given),
    trial: &Trial<'_>,
    (name, config): (&str, &Source),
    output: &Output,
    exit_code: bool,
) -> Result<Answer, Problem> {
    let blame = |problem| request.blame(problem);
    let options = request.step.options(Some(trial.card)).map_err(blame)?;
    let sequences = args.sequences(&options).map_err(blame)?;
    let (combinations, fixed) =
        args.combinations((request, given), &options, &trial.architecture, sequences)?;
    let search = Search { trial, request, combinations: &combinations, sequences };
    let (mut rows, mut refused) = search.try_all(cores(), output);
    let front = search.front(&mut rows, &mut refused);
    let beyond = match front.is_empty() {
        true => {
            search.settle_closest(&mut rows);
            search.beyond(&rows, given, config)
        }
        false => Vec::new(),
    };
    let shown = front.first().and_then(|at| rows.get(*at)).or_else(|| closest(&rows));
    let plan = shown.and_then(|row| plan(trial.architecture.clone(), search.options(row.number).ok()?).ok());
    let report = SearchReport {
        name,
        card: trial.card,
        dimensions: &combinations.dimensions(),
        sequences,
        rows: &rows,
        front: &front,
        beyond: &beyond,
        fixed: &fixed,
        refused: &refused,
        plan: plan.as_ref(),
        command: &request.plan_without(given, config, &search.follow()),
        origins: request.origins.as_ref(),
    };
    output.write(&report)?;
    Ok(if exit_code && front.is_empty() { Answer::No } else { Answer::Given })
}

/// The combinations that are tried, and where.
pub(super) struct Search<'a> {
    pub(super) trial: &'a Trial<'a>,
    pub(super) request: &'a Resolved,
    pub(super) combinations: &'a Combinations,
    sequences: u64,
}

impl Search<'_> {
    /// Tries all combinations: those that can be, and why the others cannot, the most common reason first.
    fn try_all(&self, threads: usize, output: &Output) -> (Vec<SearchRow>, Vec<Refused>) {
        let many = self.combinations.count();
        let progress = Progress::of_plans(many as u64, "combinations", output);
        let refusals: Mutex<BTreeMap<String, (usize, Refused)>> = Mutex::default();
        let rows = counted(many, threads, |number| {
            let row = self.row(number as u64).map_err(|problem| {
                let mut refusals = refusals.lock().unwrap_or_else(PoisonError::into_inner);
                refuse(&mut refusals, number, problem);
            });
            progress.one_more();
            row.ok()
        });
        let refusals = refusals.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut refusals: Vec<(usize, Refused)> = refusals.into_values().collect();
        refusals.sort_by_key(|(first, refused)| (Reverse(refused.count), *first));
        let rows = rows.into_iter().flatten().collect();
        (rows, refusals.into_iter().map(|(_, refused)| refused).collect())
    }

    /// The options that follow the command of a row: those that differ, and the number of micro-batches, which follows from them.
    pub(super) fn follow(&self) -> Vec<String> {
        let steps = "gradient-accumulation-steps".to_owned();
        self.combinations.options().into_iter().chain([steps]).collect()
    }

    /// How a combination is run.
    pub(super) fn options(&self, number: u64) -> Result<Options, Problem> {
        let number = usize::try_from(number).unwrap_or(usize::MAX);
        self.dealt_out(&self.combinations.step(number, &self.request.step)?)
    }

    /// A step with as many micro-batches as its sequences make.
    pub(super) fn dealt_out(&self, step: &StepArgs) -> Result<Options, Problem> {
        let dealt_out = step.options(Some(self.trial.card))?.of_sequences(self.sequences);
        dealt_out.map_err(|problem| match &problem.place {
            Some(Place::Option(option)) if option == "--micro-batch-size" => {
                let cause = format!("{}; --global-batch-size N says how many there are", problem.cause);
                Problem { cause, ..problem }
            }
            _ => problem,
        })
    }

    /// Plans a combination, and asks the allocator where its device peak is near the limit. Of a pipeline the plan that is there
    /// says too little; of others that have more micro-batches than it, only that they run out in the first of them.
    fn row(&self, number: u64) -> Result<SearchRow, Problem> {
        let options = self.options(number)?;
        let Trial { architecture, card, .. } = self.trial;
        let (dp, is_a_stage, mut is_replayed) = (options.mesh()?.dp, options.parallel.pp > 1, false);
        let (micro_batch_size, gradient_accumulation_steps) =
            (options.micro_batch_size, options.gradient_accumulation_steps);
        let length = options.length(&architecture.shape);
        let tokens = self.sequences.saturating_mul(length);
        let mut cache_flushes = 0;
        let tried = try_out(architecture, options, card, |plan| {
            let quick = Verdict::of(plan, card, None);
            is_replayed = !is_a_stage && is_near(quick);
            if !is_replayed {
                return quick;
            }
            let fits = self.trial.quick(plan);
            cache_flushes = cache_flushes.max(fits.retries);
            if fits.is_of_whole { fits.verdict } else { quick }
        })?;
        if is_replayed && tried.verdict.fits() && !tried.is_whole {
            (is_replayed, cache_flushes) = (false, 0);
        }
        let row = SearchRow {
            number,
            micro_batch_size,
            gradient_accumulation_steps,
            dp,
            tokens,
            tried,
            is_replayed,
            cache_flushes,
        };
        Ok(row)
    }

    /// The same by what the caching allocator reserves, and how often it gives back what it has cached; nothing where it reserves
    /// more than it may.
    fn replayed(&self, number: u64, most: Bytes) -> Result<Option<(Tried, u64)>, Problem> {
        let (Trial { architecture, card, .. }, mut cache_flushes) = (self.trial, 0);
        let tried = try_out_replayed(architecture, self.options(number)?, card, |plan| {
            let fits = self.trial.quick_within(plan, most)?;
            cache_flushes = cache_flushes.max(fits.retries);
            Some(fits.verdict)
        })?;
        Ok(tried.map(|tried| (tried, cache_flushes)))
    }

    /// Where none fits: replays what needs least, as far as is known, to its end, until that is what needs least. A row that did
    /// not fit was let go of as soon as that was seen.
    fn settle_closest(&self, rows: &mut [SearchRow]) {
        let Trial { architecture, card, .. } = self.trial;
        let mut settled = Vec::new();
        while settled.len() < MOST_SETTLED {
            let Some(number) = closest(rows).map(|row| row.number).filter(|number| !settled.contains(number))
            else {
                break;
            };
            settled.push(number);
            let whole = |options| {
                try_out_replayed(architecture, options, card, |plan| Some(self.trial.verdict(plan)))
            };
            let tried = self.options(number).and_then(whole);
            if let (Some(row), Ok(Some(tried))) = (rows.iter_mut().find(|row| row.number == number), tried) {
                (row.is_replayed, row.tried) = (true, tried);
            }
        }
        rows.sort_unstable_by_key(SearchRow::order);
    }

    /// Puts rows in order, and replays those that may be on the front until all of it is: a device peak is the least that is
    /// reserved, so what a quicker one beats by its device peak alone is beaten. So is what has reserved as much before its
    /// replay ends, and that is what is known of it from then on. What cannot be replayed is refused after all.
    fn front(&self, rows: &mut Vec<SearchRow>, refused: &mut Vec<Refused>) -> Vec<usize> {
        loop {
            rows.sort_unstable_by_key(SearchRow::order);
            let Front { front, open } = Front::of(rows);
            if open.is_empty() {
                return front;
            }
            let replay = |(at, most): &(usize, Bytes)| match rows.get(*at) {
                Some(row) => self.replayed(row.number, *most),
                None => Ok(None),
            };
            let replayed = side_by_side(&open, replay);
            let mut failed = Vec::new();
            for ((at, most), tried) in open.into_iter().zip(replayed) {
                let Some(row) = rows.get_mut(at) else { continue };
                match tried {
                    Ok(Some((tried, flushes))) => {
                        (row.is_replayed, row.tried, row.cache_flushes) = (true, tried, flushes);
                    }
                    Ok(None) => {
                        let known = &mut row.tried.verdict.needed;
                        *known = Bytes::new(most.get().saturating_add(1)).max(*known);
                    }
                    Err(problem) => {
                        refused.push(Refused::of(problem));
                        failed.push(row.number);
                    }
                }
            }
            rows.retain(|row| !failed.contains(&row.number));
        }
    }
}

/// How many rows that do not fit are replayed for the closest of them.
const MOST_SETTLED: usize = 32;

/// How many rows are replayed before the front is looked at again. Each time its rows have less to beat, whatever the
/// machine: on one with more cores the same rows are replayed.
const AT_ONCE: usize = 8;

/// What is known of the front.
struct Front {
    /// The rows that are on it as far as is known: all that were replayed.
    front: Vec<usize>,
    /// The first rows that may be on it, each with the most that it may take then.
    open: Vec<(usize, Bytes)>,
}

impl Front {
    /// Of rows in their order: those that fit and that no earlier one beats.
    fn of(rows: &[SearchRow]) -> Front {
        let (mut front, mut open, mut least) = (Vec::new(), Vec::new(), Bytes::new(u64::MAX));
        let fitting = rows.iter().enumerate().take_while(|(_, row)| row.tried.verdict.fits());
        for (at, row) in fitting {
            let needed = row.tried.verdict.needed;
            if needed >= least {
                continue;
            }
            if row.is_replayed {
                front.push(at);
                least = needed;
            } else {
                open.push((at, Bytes::new(least.get().saturating_sub(1))));
                if open.len() == AT_ONCE {
                    break;
                }
            }
        }
        Front { front, open }
    }
}

/// Counts a reason, with those that differ from it in their figures alone.
fn refuse(refusals: &mut BTreeMap<String, (usize, Refused)>, number: usize, problem: Problem) {
    let this = Refused::of(problem);
    let mut kind: String = this.option.iter().flat_map(|option| [option.as_str(), " "]).collect();
    let mut after_a_digit = false;
    for c in this.cause.chars() {
        if !(after_a_digit && c.is_ascii_digit()) {
            kind.push(if c.is_ascii_digit() { '#' } else { c });
        }
        after_a_digit = c.is_ascii_digit();
    }
    let (first, refused) =
        refusals.entry(kind).or_insert_with(|| (number, Refused { count: 0, ..this.clone() }));
    let count = refused.count + 1;
    if number < *first {
        (*first, *refused) = (number, this);
    }
    refused.count = count;
}
