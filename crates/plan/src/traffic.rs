//! The tape as the caching allocator sees it: allocations and frees one after the other, at device level.

use crate::plan::{Level, Plan, Step};
use crate::torch::Stream;
use crate::torch::tape::{EMPTY_CACHE, Role, Stored, Tape};
use peakledger_core::{Device, Moment};
use std::convert::Infallible;
use std::ops::ControlFlow;

/// What a planned step asks of the allocator at one point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// In which of the step's phases, by its place in [`crate::StepPlan::phases`].
    pub phase: usize,
    /// At which moment of the step's timeline.
    pub moment: Moment,
    /// What.
    pub asks: Asks,
}

/// What the allocator is asked. Storages have numbers that are the same in every step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asks {
    /// A block for a storage.
    Allocates(u32, Block),
    /// A storage gives its block back.
    Frees(u32),
    /// What is cached goes back to the card (`torch.cuda.empty_cache`).
    EmptiesCache,
}

/// A block that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Its bytes, rounded up to 512 (which changes no block that the allocator makes of it).
    pub bytes: u64,
    /// The stream that it is on.
    pub stream: Stream,
}

impl Plan {
    /// What a step asks for and gives back, in order, as [`Plan::each_ask`] has it.
    pub fn traffic(&self, step: Step) -> Vec<Traffic> {
        let mut traffic = Vec::new();
        let ControlFlow::Continue(()) = self.each_ask::<Infallible>(&[step], |_, event| {
            traffic.push(event);
            ControlFlow::Continue(())
        });
        traffic
    }

    /// Tells what steps ask for and give back, in order, until it is told to stop: the first step from an empty device on, the
    /// model's load among it, the steady one from where a step before it ended. Inside one op, what it allocates comes before
    /// what goes with it. Nothing of it is kept: a step may ask half a million times.
    pub fn each_ask<B>(
        &self,
        steps: &[Step],
        mut each: impl FnMut(Step, Traffic) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        let tape = self.tape();
        let moments = tape.ran.len().saturating_add(1);
        let (births, deaths) = by_moment(tape, moments);
        for step in steps.iter().copied() {
            // what outlives a step is there already when the next begins, and some of the first step comes only once
            let again: Vec<bool> = match step {
                Step::First => vec![true; tape.stored.len()],
                Step::Steady => tape.stored.iter().map(|stored| comes_again(tape, stored)).collect(),
            };
            let empties = if step == Step::First { empties_cache(tape) } else { Vec::new() };
            let comes = |storage: &u32| again.get(*storage as usize).copied().unwrap_or_default();
            let is_a_batch = |(stored, comes): &(&Stored, &bool)| {
                **comes && on_the_card(stored) && matches!(stored.role, Role::Input { .. })
            };
            let batches = (0u32..).zip(tape.stored.iter().zip(&again)).filter(|(_, it)| is_a_batch(it));
            let last_of_a_batch = batches.last().map(|(storage, _)| storage);
            let mut phases = tape.marks.iter().map(|mark| mark.first).enumerate().skip(1).peekable();
            let mut phase = 0;
            for moment in (0u32..).map(Moment).take(moments) {
                while let Some((next, _)) = phases.next_if(|(_, first)| *first <= moment) {
                    phase = next;
                }
                let (born, dead) = (births.at(moment), deaths.at(moment));
                let empties = empties.contains(&moment);
                if born.is_empty() && dead.is_empty() && !empties {
                    continue;
                }
                let of_step = step.within(tape, moment);
                let at = |asks| Traffic { phase, moment: of_step, asks };
                for storage in born.iter().filter(|storage| comes(storage)) {
                    let Some(stored) = tape.stored.get(*storage as usize) else { continue };
                    let block = Block { bytes: stored.bytes, stream: stored.stream };
                    each(step, at(Asks::Allocates(*storage, block)))?;
                    if Some(*storage) == last_of_a_batch {
                        for (storage, block) in self.batches_left_out() {
                            each(step, at(Asks::Allocates(storage, block)))?;
                        }
                    }
                }
                for storage in dead.iter().filter(|storage| comes(storage)) {
                    each(step, at(Asks::Frees(*storage)))?;
                }
                if empties {
                    each(step, at(Asks::EmptiesCache))?;
                }
            }
        }
        ControlFlow::Continue(())
    }

    /// The batches of micro-batches that are not run, under numbers that no storage has.
    fn batches_left_out(&self) -> impl Iterator<Item = (u32, Block)> {
        let block = |bytes| Block { bytes, stream: Stream::Compute };
        let batches = (0..self.left_out).flat_map(move |_| self.batch_bytes().map(block));
        let numbers = u32::try_from(self.tape().stored.len()).unwrap_or(u32::MAX)..u32::MAX;
        numbers.zip(batches)
    }
}

fn on_the_card(stored: &Stored) -> bool {
    stored.device == Device::Gpu && stored.bytes > 0
}

/// The storages on the card by the moment at which they are made, and by that at which they go.
fn by_moment(tape: &Tape, moments: usize) -> (Buckets, Buckets) {
    let last = tape.now();
    let death = |stored: &Stored| (!stored.outlives_the_step()).then(|| stored.death.min(last));
    let (mut births, mut deaths) = (Buckets::of(moments), Buckets::of(moments));
    for stored in tape.stored.iter().filter(|stored| on_the_card(stored)) {
        births.count(stored.birth);
        death(stored).into_iter().for_each(|death| deaths.count(death));
    }
    births.lay_out();
    deaths.lay_out();
    for (storage, stored) in (0u32..).zip(&tape.stored).filter(|(_, stored)| on_the_card(stored)) {
        births.put(stored.birth, storage);
        death(stored).into_iter().for_each(|death| deaths.put(death, storage));
    }
    (births, deaths)
}

/// When what is cached goes back to the card, which is asked for at the start alone.
fn empties_cache(tape: &Tape) -> Vec<Moment> {
    let once = tape.once.iter().flat_map(|once| once.moments.clone()).map(Moment);
    let empties = |moment: &Moment| tape.ran.get(moment.index()).is_some_and(|ran| ran.op == EMPTY_CACHE);
    once.filter(empties).collect()
}

/// Whether a storage comes in every step, and goes.
fn comes_again(tape: &Tape, stored: &Stored) -> bool {
    let is_there = |level| Step::Steady.interval(tape, stored, level).is_some();
    !stored.outlives_the_step() && (is_there(Level::Op) || is_there(Level::Untracked))
}

/// Storages by moment, in one array: counted, then put in their places.
struct Buckets {
    /// Where each moment's begin; while they are put, where the next one goes.
    starts: Vec<u32>,
    items: Vec<u32>,
}

impl Buckets {
    fn of(moments: usize) -> Buckets {
        Buckets { starts: vec![0; moments + 1], items: Vec::new() }
    }

    fn count(&mut self, moment: Moment) {
        if let Some(count) = self.starts.get_mut(moment.index()) {
            *count += 1;
        }
    }

    fn lay_out(&mut self) {
        let mut total = 0;
        for start in &mut self.starts {
            total += std::mem::replace(start, total);
        }
        self.items.resize(total as usize, 0);
    }

    fn put(&mut self, moment: Moment, item: u32) {
        let Some(at) = self.starts.get_mut(moment.index()) else { return };
        if let Some(slot) = self.items.get_mut(*at as usize) {
            *slot = item;
        }
        *at += 1;
    }

    /// After all are put, each start has moved to where the next moment's begin.
    fn at(&self, moment: Moment) -> &[u32] {
        let end = |index: usize| self.starts.get(index).map_or(0, |end| *end as usize);
        let start = moment.index().checked_sub(1).map_or(0, end);
        self.items.get(start..end(moment.index())).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::open_model;
    use crate::config::Architecture;
    use crate::options::Options;
    use crate::plan;

    /// Added up, the traffic of the first step and then the steady one has each phase's device peak.
    #[test]
    fn adds_up_to_the_device_peaks() {
        let architecture = Architecture::read(&open_model("qwen2.5-0.5b").unwrap().config).unwrap();
        let options = Options { gradient_accumulation_steps: 2, seq_len: Some(256), ..Options::default() };
        let plan = plan(architecture, options).unwrap();
        let (mut live, mut sizes) = (0, std::collections::BTreeMap::new());
        for step in [Step::First, Step::Steady] {
            let phases = &plan.step(step).phases;
            let mut peaks = vec![0; phases.len()];
            let mut now = None;
            for event in plan.traffic(step) {
                while now != Some(event.phase) {
                    let next = now.map_or(0, |now| now + 1);
                    peaks[next] = live;
                    now = Some(next);
                }
                match event.asks {
                    Asks::Allocates(storage, Block { bytes, .. }) => {
                        live += bytes;
                        assert_eq!(sizes.insert(storage, bytes), None);
                    }
                    Asks::Frees(storage) => live -= sizes.remove(&storage).unwrap(),
                    Asks::EmptiesCache => {}
                }
                peaks[event.phase] = peaks[event.phase].max(live);
            }
            let planned: Vec<u64> = phases.iter().map(|phase| phase.device_peak.get()).collect();
            assert_eq!(peaks, planned, "{step:?}");
        }
    }
}
