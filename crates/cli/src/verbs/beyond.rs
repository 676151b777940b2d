//! Where nothing fits of a search: what the search has no values of, tried on the combinations that come close.
//!
//! A lever helps some combinations and cannot go with others, so each is tried on the closest of several kinds. That is a fixed
//! number of plans, whatever the number of combinations.

use super::search::Search;
use crate::from::Given;
use crate::levers::levers;
use crate::step_args::{Said, StepArgs};
use crate::usage::Asker;
use peakledger_core::Bytes;
use peakledger_input::{Problem, Source};
use peakledger_plan::options::Options;
use peakledger_plan::{Plan, Verdict, try_out, try_out_replayed};
use peakledger_report::side_by_side::side_by_side;
use peakledger_report::{Beyond, SearchRow, closest};
use std::collections::BTreeMap;

/// On how many combinations each lever is tried.
const MOST_STARTS: usize = 24;

/// A lever on a combination.
#[derive(Clone)]
struct Pulled<'r> {
    start: &'r SearchRow,
    /// The levers, as options.
    words: String,
    /// The options that they set.
    sets: Vec<String>,
    /// Whether the step computes what it does without.
    trains_alike: bool,
    /// The least that is known of what it takes.
    needed: Bytes,
}

impl Search<'_> {
    /// What makes the combinations that come close take less: each lever once, on what it helps most, and those together that
    /// it takes. First those that fit and train alike, then those that fit, the quickest first; then those that take least.
    pub(super) fn beyond(&self, rows: &[SearchRow], given: &Given, config: &Source) -> Vec<Beyond> {
        let Some(closest) = closest(rows) else { return Vec::new() };
        let starts = self.starts(rows);
        let alone: Vec<Pulled<'_>> = starts.iter().flat_map(|start| self.levers(start)).collect();
        let mut best: BTreeMap<Vec<String>, Pulled<'_>> = BTreeMap::new();
        for pulled in self.tried(alone) {
            let known = best.entry(pulled.sets.clone()).or_insert_with(|| pulled.clone());
            if (pulled.needed, pulled.start.number) < (known.needed, known.start.number) {
                *known = pulled;
            }
        }
        let singles: Vec<Pulled<'_>> =
            best.into_values().filter(|pulled| pulled.needed < closest.tried.verdict.needed).collect();
        let together = self.together(&singles);
        let all: Vec<Pulled<'_>> = singles.into_iter().chain(together).collect();
        let settled = side_by_side(&all, |pulled| self.settled(pulled, given, config).ok().flatten());
        let mut beyond: Vec<Beyond> = settled.into_iter().flatten().collect();
        beyond.retain(|it| it.row.tried.verdict.needed < closest.tried.verdict.needed);
        beyond.sort_by_key(|it| {
            let verdict = it.row.tried.verdict;
            let fits_alike = verdict.fits() && !it.trains_otherwise;
            // of what fits, the quickest
            let time = it.row.tried.slowest.time.ok().map_or(u128::MAX, |time| time.step().0);
            let time = if verdict.fits() { time } else { 0 };
            (!fits_alike, !verdict.fits(), time, verdict.needed, it.with.len(), it.with.clone())
        });
        beyond
    }

    /// The closest with each value of each option, the closest of them all first.
    fn starts<'r>(&self, rows: &'r [SearchRow]) -> Vec<&'r SearchRow> {
        let mut least: BTreeMap<(usize, u64), &SearchRow> = BTreeMap::new();
        let needs = |row: &SearchRow| (row.tried.verdict.needed, row.number);
        for row in rows {
            for of_value in self.combinations.places(row.number).into_iter().enumerate() {
                let known = least.entry(of_value).or_insert(row);
                if needs(row) < needs(known) {
                    *known = row;
                }
            }
        }
        let mut starts: Vec<&SearchRow> = least.into_values().chain(closest(rows)).collect();
        starts.sort_by_key(|row| needs(row));
        starts.dedup_by_key(|row| row.number);
        starts.truncate(MOST_STARTS);
        starts
    }

    /// The levers of a combination that set nothing which the search varies.
    fn levers<'r>(&self, start: &'r SearchRow) -> Vec<Pulled<'r>> {
        let Ok(options) = self.options(start.number) else { return Vec::new() };
        let saved_in = self.trial.architecture.dtype.filter(|dtype| dtype.is_half());
        let varied = self.combinations.options();
        let pulled = |words: String| {
            let said = Said::of(words.split_whitespace().map(str::to_owned), Asker::Step("a lever")).ok()?;
            let sets = said.options();
            if sets.iter().any(|option| varied.contains(option)) {
                return None;
            }
            let with = self.with(start, &words).ok()?;
            // more GPUs are no way out for those who have these
            (with.mesh().ok()?.world == options.mesh().ok()?.world).then_some(())?;
            let trains_alike = with.trains_as(&options);
            Some(Pulled { start, words, sets, trains_alike, needed: Bytes::ZERO })
        };
        levers(&options, saved_in).into_iter().filter_map(pulled).collect()
    }

    /// The step of a combination with more options.
    fn with(&self, start: &SearchRow, words: &str) -> Result<Options, Problem> {
        self.dealt_out(&self.step_with(start, words)?)
    }

    fn step_with(&self, start: &SearchRow, words: &str) -> Result<StepArgs, Problem> {
        let number = usize::try_from(start.number).unwrap_or(usize::MAX);
        let mut step = self.combinations.step(number, &self.request.step)?;
        step.change(words.split_whitespace().map(str::to_owned))?;
        Ok(step)
    }

    /// Those that can be, with what they take by their device peaks.
    fn tried<'r>(&self, all: Vec<Pulled<'r>>) -> Vec<Pulled<'r>> {
        let needed = |pulled: &Pulled<'_>| {
            let (architecture, card) = (&self.trial.architecture, self.trial.card);
            let options = self.with(pulled.start, &pulled.words)?;
            let tried = try_out(architecture, options, card, |plan| Verdict::of(plan, card, None))?;
            Ok::<Bytes, Problem>(tried.verdict.needed)
        };
        let needed = side_by_side(&all, needed);
        let tried = all.into_iter().zip(needed);
        tried.filter_map(|(pulled, needed)| Some(Pulled { needed: needed.ok()?, ..pulled })).collect()
    }

    /// Levers one over the other, that which helps most first and those that train alike before the others, until it fits or
    /// none helps; nothing where it takes no two.
    fn together<'r>(&self, singles: &[Pulled<'r>]) -> Option<Pulled<'r>> {
        let least = |all: Vec<Pulled<'r>>| all.into_iter().min_by_key(|pulled| pulled.needed);
        let fits = |pulled: &Pulled<'_>| pulled.needed <= pulled.start.tried.verdict.capacity;
        let first =
            |alike: bool| least(singles.iter().filter(|it| it.trains_alike || !alike).cloned().collect());
        let mut taken = first(true).or_else(|| first(false))?;
        let mut many = 1;
        for alike in [true, false] {
            while !fits(&taken) {
                let more = self.levers(taken.start).into_iter().filter(|it| {
                    (it.trains_alike || !alike) && it.sets.iter().all(|option| !taken.sets.contains(option))
                });
                let over = more.map(|more| Pulled {
                    words: format!("{} {}", taken.words, more.words),
                    sets: taken.sets.iter().chain(&more.sets).cloned().collect(),
                    trains_alike: taken.trains_alike && more.trains_alike,
                    ..more
                });
                match least(self.tried(over.collect())).filter(|over| over.needed < taken.needed) {
                    Some(over) => (taken, many) = (over, many + 1),
                    None => break,
                }
            }
        }
        (many > 1).then_some(taken)
    }

    /// The same by what the caching allocator reserves, with the command that plans it.
    fn settled(
        &self,
        pulled: &Pulled<'_>,
        given: &Given,
        config: &Source,
    ) -> Result<Option<Beyond>, Problem> {
        let trial = self.trial;
        let options = self.with(pulled.start, &pulled.words)?;
        let (dp, steps) = (options.mesh()?.dp, options.gradient_accumulation_steps);
        let micro_batch_size = options.micro_batch_size;
        let mut cache_flushes = 0;
        let verdict = |plan: &Plan| {
            let quick = trial.quick(plan);
            cache_flushes = cache_flushes.max(quick.retries);
            // what does not fit is replayed to its end, for how much it lacks
            Some(if quick.verdict.fits() { quick.verdict } else { trial.verdict(plan) })
        };
        let Some(tried) = try_out_replayed(&trial.architecture, options, trial.card, verdict)? else {
            return Ok(None);
        };
        let mut follow = self.follow();
        follow.extend(pulled.sets.iter().cloned());
        let row = SearchRow {
            micro_batch_size,
            gradient_accumulation_steps: steps,
            dp,
            tried,
            is_replayed: true,
            cache_flushes,
            ..pulled.start.clone()
        };
        Ok(Some(Beyond {
            with: pulled.words.clone(),
            trains_otherwise: !pulled.trains_alike,
            command: self.request.plan_without(given, config, &follow),
            row,
        }))
    }
}
