//! Both steps, read off what was run and added up at op and at device level.

use super::below::Below;
use super::growth::{self, Growth, Line};
use super::{Level, PlannedPhase, Step, StepPlan};
use crate::repeat::{Folded, PhaseRun};
use crate::torch::Costs;
use crate::torch::tape::{Mark, NEVER, Once, Stored, Tape};
use peakledger_core::sweep::{Stay, Totals, by_category_at};
use peakledger_core::{ByCategory, Bytes, Device, Moment, Timeline};
use std::num::NonZeroU32;
use std::ops::Range;

impl StepPlan {
    /// Both steps; nothing where a sum does not fit into 64 bits, or where what was not run does not lie between what was. The
    /// steady step is the first without what is done once and with the little that it holds otherwise, so most storages are
    /// added up but once.
    pub(crate) fn both(folded: &Folded) -> Option<[StepPlan; 2]> {
        let tape = &folded.run;
        let Stays { op, otherwise, untracked: [in_first, in_steady] } = Stays::of(folded);
        let [first, steady] = [timeline(tape, Step::First)?, timeline(tape, Step::Steady)?];
        let once: Vec<Range<u32>> = tape.once.iter().map(|once| once.moments.clone()).collect();
        let of_first = Totals::of(first.moments(), op.iter().copied()).ok()?;
        let more = Totals::of(steady.moments(), otherwise.iter().copied()).ok()?;
        growth::is_as_run(folded, &first, &of_first)?;
        let of_steady = of_first.without(&once).joined(&more).ok()?;
        let sums = [
            Sums::of(folded, Step::First, first, (of_first, in_first))?,
            Sums::of(folded, Step::Steady, steady, (of_steady, in_steady))?,
        ];
        for (postponed, Sums { step, run, op, device, .. }) in
            folded.postponed.iter().flat_map(|it| sums.iter().map(move |sums| (it, sums)))
        {
            let columns = [op.gpu(), device.gpu()];
            Below { postponed, tape, step: *step, timeline: run, columns }.is_so()?;
        }
        let tops = [sums[0].tops()?, sums[1].tops()?];
        // by category at the peaks of both, in the order in which they are on the tape
        let [in_first, in_steady] = tops.each_ref().map(|tops| in_order(tops.iter().flat_map(Top::moments)));
        let on_tape = in_steady.iter().map(|moment| Step::Steady.on_tape(tape, *moment));
        let all = in_order(in_first.iter().copied().chain(on_tape));
        let at_all = by_category_at(sums[0].run.moments(), &all, op.into_iter());
        let more = by_category_at(sums[1].run.moments(), &in_steady, otherwise.into_iter());
        let there = |step: Step, moment: Moment| {
            let at = all.binary_search(&step.on_tape(tape, moment)).ok()?;
            let there = at_all.get(at)?;
            match step {
                Step::First => Some(*there),
                Step::Steady => Some(there.plus(more.get(in_steady.binary_search(&moment).ok()?)?)),
            }
        };
        let [first, steady] = sums;
        let [of_first, of_steady] = tops;
        Some([first.step(of_first, there)?, steady.step(of_steady, there)?])
    }
}

fn in_order(moments: impl Iterator<Item = Moment>) -> Vec<Moment> {
    let mut moments: Vec<Moment> = moments.collect();
    moments.sort_unstable();
    moments.dedup();
    moments
}

/// A step as it was run, added up.
struct Sums<'a> {
    folded: &'a Folded,
    step: Step,
    /// Its timeline.
    run: Timeline,
    op: Totals,
    device: Totals,
}

/// What is known of a phase of the whole step.
struct Top {
    phase: PhaseRun,
    peak: u64,
    end: u64,
    host_peak: u64,
    device_peak: u64,
    /// Where the peak is, of the step as it was run: in the phase itself, or in the one before and the one after it.
    at: Moment,
    next: Option<Moment>,
}

impl Top {
    fn moments(&self) -> impl Iterator<Item = Moment> + use<> {
        [Some(self.at), self.next].into_iter().flatten()
    }
}

impl Sums<'_> {
    fn of(
        folded: &Folded,
        step: Step,
        run: Timeline,
        (op, untracked): (Totals, Vec<Stay>),
    ) -> Option<Sums<'_>> {
        let device = op.plus(&Totals::of(run.moments(), untracked.into_iter()).ok()?).ok()?;
        Some(Sums { folded, step, run, op, device })
    }

    /// The sums of every phase of the whole step.
    fn tops(&self) -> Option<Vec<Top>> {
        let slots = self.run.slots();
        let mut grown: Vec<Option<[Growth; 3]>> = vec![None; slots.len()];
        let columns = [self.op.gpu(), self.op.cpu(), self.device.gpu()];
        let mut tops = Vec::with_capacity(self.folded.phases.len());
        for phase in &self.folded.phases {
            let slot = slots.get(phase.mark)?;
            tops.push(match phase.between {
                None => {
                    let (at, peak) = self.op.peak_between(slot.first, slot.last);
                    let (_, device_peak) = self.device.peak_between(slot.first, slot.last);
                    let host = self.op.cpu().get(slot.first.index()..=slot.last.index()).unwrap_or(&[]);
                    Top {
                        phase: *phase,
                        peak: peak.get(),
                        end: self.op.at(Device::Gpu, slot.last).get(),
                        host_peak: host.iter().copied().max().unwrap_or(0),
                        device_peak: device_peak.get(),
                        at,
                        next: None,
                    }
                }
                Some(between) => {
                    let next = slots.get(between.next)?;
                    let grown = grown.get_mut(phase.mark)?;
                    if grown.is_none() {
                        let growth = |column| Growth::of(column, [slot, next], between.of);
                        *grown = Some([growth(columns[0])?, growth(columns[1])?, growth(columns[2])?]);
                    }
                    let [op, host, device] = grown.as_ref()?;
                    let (offset, peak) = op.peak(between);
                    Top {
                        phase: *phase,
                        peak,
                        end: op.last.at(between),
                        host_peak: host.peak(between).1,
                        device_peak: device.peak(between).1,
                        at: slot.moment(offset)?,
                        next: Some(next.moment(offset)?),
                    }
                }
            });
        }
        Some(tops)
    }

    /// The whole step, of what stands at moments of the step as it was run.
    fn step(self, tops: Vec<Top>, there: impl Fn(Step, Moment) -> Option<ByCategory>) -> Option<StepPlan> {
        let Sums { folded, step, run, .. } = self;
        let tape = &folded.run;
        let ends: Vec<Moment> = ends(tape).collect();
        let mut timeline = Timeline::empty();
        let mut phases = Vec::with_capacity(tops.len());
        for top in tops {
            let (mark, end) = (tape.marks.get(top.phase.mark)?, *ends.get(top.phase.mark)?);
            let slot = run.slots().get(top.phase.mark)?;
            let moments = slot.moments().checked_add(folded.moments_left_out(mark.first, end))?;
            let micro_batch = mark.micro_batch.map(|micro_batch| micro_batch + top.phase.later);
            timeline.try_push(mark.phase.clone(), micro_batch, NonZeroU32::new(moments)?).then_some(())?;
            let on_tape = step.on_tape(tape, top.at);
            let ran = folded.ran(on_tape);
            let left_out = folded.moments_left_out(mark.first, Moment(on_tape.0 + 1));
            let first = timeline.slots().last()?.first.0;
            let mut by_category = there(step, top.at)?;
            if let Some((next, between)) = top.next.zip(top.phase.between) {
                let next = there(step, next)?;
                by_category = by_category.zip(&next, |from, to| Line { offset: 0, from, to }.at(between));
            }
            let of_all = by_category.iter().map(|(_, bytes)| bytes.get()).sum::<u64>();
            (of_all == top.peak).then_some(())?;
            phases.push(PlannedPhase {
                phase: mark.phase.clone(),
                micro_batch,
                peak: Bytes::new(top.peak),
                end: Bytes::new(top.end),
                by_category,
                device_peak: Bytes::new(top.device_peak),
                host_peak: Bytes::new(top.host_peak),
                op: ran.map_or("", |ran| ran.op),
                module: ran.map(|ran| tape.path(ran.module)).unwrap_or_default(),
                costs: step.costs(tape, mark, end)
                    + folded.costs.get(top.phase.mark).copied().unwrap_or_default(),
                moment: Moment(first + slot.moment_in(top.at) + left_out),
                run: top.next.is_none().then_some(top.at),
            });
        }
        Some(StepPlan { step, phases, timeline })
    }
}

impl Step {
    /// The moment of this step that a moment of the tape is. The tape is the first step's; later ones do not do what is done
    /// once.
    pub(crate) fn within(self, tape: &Tape, moment: Moment) -> Moment {
        if self == Step::First {
            return moment;
        }
        Moment(moment.0 - tape.once.iter().map(|once| cut(moment, &once.moments)).sum::<u32>())
    }

    /// What a phase of the tape costs in this step.
    fn costs(self, tape: &Tape, mark: &Mark, next: Moment) -> Costs {
        if self == Step::First {
            return mark.costs;
        }
        let phase = mark.first.0..next.0;
        let once = tape.once.iter().filter(|once| phase.contains(&once.moments.start));
        mark.costs - once.map(|once| once.costs).sum()
    }

    /// The moment of the tape that a moment of this step is.
    pub(crate) fn on_tape(self, tape: &Tape, moment: Moment) -> Moment {
        if self == Step::First {
            return moment;
        }
        let put_back = |moment: u32, Once { moments, .. }: &Once| {
            if moment >= moments.start { moment + (moments.end - moments.start) } else { moment }
        };
        Moment(tape.once.iter().fold(moment.0, put_back))
    }

    /// When a storage is there in this step, if it is at all. What outlives the first step is there from the beginning of
    /// every later one.
    pub(crate) fn interval(self, tape: &Tape, stored: &Stored, level: Level) -> Option<(Moment, Moment)> {
        let outlives = self == Step::Steady && stored.outlives_the_step();
        let last = stored.death.min(tape.now());
        let tracked = if outlives && stored.tracked != NEVER { Moment(0) } else { stored.tracked };
        let birth = if outlives { Moment(0) } else { stored.birth };
        let (from, to) = match level {
            Level::Op => (tracked, last),
            Level::Untracked => (birth, Moment(tracked.0.checked_sub(1)?.min(last.0))),
        };
        if from > to {
            return None;
        }
        if self == Step::First {
            return Some((from, to));
        }
        // what is done once has passed, where stretches of it touch too
        let after =
            |moment: u32, once: &Once| if once.moments.contains(&moment) { once.moments.end } else { moment };
        if !outlives && to.0 < tape.once.iter().fold(from.0, after) {
            return None;
        }
        let (mut start, mut end) = (from.0, to.0);
        for Once { moments, .. } in &tape.once {
            start -= cut(from, moments);
            end -= cut(to, moments);
        }
        Some((Moment(start), Moment(end)))
    }
}

/// How many of some moments lie before a moment.
fn cut(moment: Moment, moments: &Range<u32>) -> u32 {
    moment.0.min(moments.end).saturating_sub(moments.start)
}

/// The step's phases, each with its moments.
fn timeline(tape: &Tape, step: Step) -> Option<Timeline> {
    let mut timeline = Timeline::empty();
    for (mark, end) in tape.marks.iter().zip(ends(tape)) {
        let [first, end] = [mark.first, end].map(|moment| step.within(tape, moment).0);
        let moments = NonZeroU32::new(end.checked_sub(first)?)?;
        timeline.try_push(mark.phase.clone(), mark.micro_batch, moments).then_some(())?;
    }
    Some(timeline)
}

/// The moment after each phase of the tape.
fn ends(tape: &Tape) -> impl Iterator<Item = Moment> {
    tape.marks.iter().skip(1).map(|mark| mark.first).chain([tape.next()])
}

/// The storages of both steps as stays.
struct Stays {
    /// Those of the first step, at op level.
    op: Vec<Stay>,
    /// What a steady step holds at op level in moments in which the first did not hold it, on its own timeline.
    otherwise: Vec<Stay>,
    /// What is on the device before the tracker sees it, in each step.
    untracked: [Vec<Stay>; 2],
}

impl Stays {
    fn of(folded: &Folded) -> Stays {
        let tape = &folded.run;
        let mut stays = Stays {
            op: Vec::with_capacity(tape.stored.len() + folded.more.len()),
            otherwise: Vec::new(),
            untracked: [Vec::new(), Vec::new()],
        };
        folded.storages().for_each(|stored| {
            stays.op.extend(stay(tape, Step::First, &stored, Level::Op));
            stays.otherwise.extend(otherwise_in_steady(tape, &stored));
            if stored.tracked != stored.birth {
                for (step, untracked) in [Step::First, Step::Steady].into_iter().zip(&mut stays.untracked) {
                    untracked.extend(stay(tape, step, &stored, Level::Untracked));
                }
            }
        });
        stays
    }
}

/// A storage in a step.
pub(super) fn stay(tape: &Tape, step: Step, stored: &Stored, level: Level) -> Option<Stay> {
    let (start, end) = step.interval(tape, stored, level)?;
    let Stored { device, category, bytes, .. } = *stored;
    Some(Stay { device, category, bytes: Bytes::new(bytes), start, end })
}

/// What of a storage is in the steady step alone. One that outlives the first step is there before the moment that made it.
/// One that went in what is done once, and was made before that, goes in the moment after it.
fn otherwise_in_steady(tape: &Tape, stored: &Stored) -> Option<Stay> {
    let goes_once = || tape.once.iter().any(|once| once.moments.contains(&stored.death.0));
    if !stored.outlives_the_step() && !goes_once() {
        return None;
    }
    let steady = stay(tape, Step::Steady, stored, Level::Op)?;
    if !stored.outlives_the_step() {
        return Some(Stay { start: steady.end, ..steady });
    }
    let end = Step::Steady.within(tape, stored.tracked).0.checked_sub(1)?;
    Some(Stay { end: Moment(end.min(steady.end.0)), ..steady })
}
