//! How sums grow from a unit that was run to the next, over those between them that were not.

use super::steps::stay;
use super::{Level, Step};
use crate::repeat::{Aside, Between, Folded, Postponed};
use crate::torch::tape::Tape;
use peakledger_core::sweep::Totals;
use peakledger_core::{Moment, Slot, Timeline};

/// Whether the peaks that were seen are those of the whole step. What was postponed in a layer that was not run is on no tape, so
/// no sum has it. At its place in that layer there would be what else stands there, which lies on the line between the sums at
/// that place in the layers that were run before and after, and on top of it the most that the postponed had. Where that stays
/// below the peak of its phase it changes nothing; where it does not, there is no answer, and the step is written down whole.
pub(super) fn is_below(
    postponed: &Postponed,
    (tape, step): (&Tape, Step),
    (timeline, columns): (&Timeline, [&[u64]; 2]),
) -> Option<()> {
    let peak = |column: &[u64], slot: &Slot| {
        column.get(slot.first.index()..=slot.last.index()).and_then(|column| column.iter().copied().max())
    };
    let mut peaks: Option<(Moment, [u64; 2])> = None;
    for Aside { beside, units, copies, most } in &postponed.aside {
        let [before, after] = beside.map(|moment| Some(step.within(tape, postponed.moment(moment)?)));
        let (before, after) = (before?, after?);
        let slot = timeline.slot_at(after)?;
        let known = peaks.filter(|(first, _)| *first == slot.first).map(|(_, peaks)| peaks);
        let of_slot = match known {
            Some(known) => known,
            None => [peak(columns[0], slot)?, peak(columns[1], slot)?],
        };
        peaks = Some((slot.first, of_slot));
        for (column, peak) in columns.into_iter().zip(of_slot) {
            let [from, to] = [after, before].map(|moment| column.get(moment.index()).copied());
            let (from, to) = (i128::from(from?), i128::from(to?));
            let there = from + (to - from) * i128::from(*units) / i128::from(copies + 1);
            (there + i128::from(*most) < i128::from(peak)).then_some(())?;
        }
    }
    Some(())
}

/// Whether from a unit that was left out to the next one that was run, the sums of the whole first step change as often as it
/// was left out, and once more, by what they changed when it was run. So nothing is added that was not seen, and nothing
/// that was seen is forgotten.
pub(super) fn is_as_run(folded: &Folded, timeline: &Timeline, whole: &Totals) -> Option<()> {
    let alone = |with_layers| {
        let storages = folded.run_alone(with_layers);
        let stays = storages.filter_map(|stored| stay(&folded.run, Step::First, &stored, Level::Op));
        Totals::of(timeline.moments(), stays).ok()
    };
    let change = |column: &[u64], [from, to]: [u32; 2]| {
        let at = |moment: u32| column.get(Moment(moment).index()).copied().unwrap_or(0);
        i128::from(at(to)) - i128::from(at(from))
    };
    let grows = |run: &Totals, pair: [u32; 2], copies: u32| {
        [(whole.gpu(), run.gpu()), (whole.cpu(), run.cpu())]
            .into_iter()
            .all(|(whole, run)| change(whole, pair) == (i128::from(copies) + 1) * change(run, pair))
    };
    if !folded.cuts.is_empty() {
        let run = alone(false)?;
        // what was postponed goes by other bounds than those of units
        let moved = |moment: u32| match &folded.postponed {
            Some(postponed) => postponed.moment(Moment(moment)).map(|moment| moment.0),
            None => Some(moment),
        };
        for cut in folded.postponed.as_ref().map_or(&folded.cuts, |postponed| &postponed.cuts) {
            let length = cut.moments.checked_div(cut.copies)?;
            let firsts = [cut.at.0.checked_sub(length)?, cut.at.0];
            let is_alike = |offset: u32| match firsts.map(|first| moved(first + offset)) {
                [Some(from), Some(to)] => grows(&run, [from, to], cut.copies),
                _ => true,
            };
            (0..length).all(is_alike).then_some(())?;
        }
    }
    // each phase that was not run lies between two that were, and the first between them says which
    let pairs = folded.phases.iter().filter_map(|phase| Some((phase.mark, phase.between?)));
    let pairs: Vec<(usize, Between)> = pairs.filter(|(_, between)| between.step == 1).collect();
    if pairs.is_empty() {
        return Some(());
    }
    let run = alone(true)?;
    for (mark, Between { next, of, .. }) in pairs {
        let [from, to] = [timeline.slots().get(mark)?, timeline.slots().get(next)?];
        (from.moments() == to.moments()).then_some(())?;
        let is_alike = |offset: u32| grows(&run, [from.first.0 + offset, to.first.0 + offset], of - 1);
        (0..from.moments()).all(is_alike).then_some(())?;
    }
    Some(())
}

/// What a column has in phases of which only the first and the last were run.
#[derive(Clone, Debug)]
pub(super) struct Growth {
    /// Of moments that go up or down alike the highest one.
    lines: Vec<Line>,
    /// The last moment.
    pub(super) last: Line,
}

/// A moment of a phase, in the first and in the last of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    pub(super) offset: u32,
    pub(super) from: u64,
    pub(super) to: u64,
}

impl Line {
    fn change(&self) -> i128 {
        i128::from(self.to) - i128::from(self.from)
    }

    /// What is there so many steps on the way.
    pub(super) fn at(&self, Between { step, of, .. }: Between) -> u64 {
        let on_the_way = i128::from(self.from) + self.change() * i128::from(step) / i128::from(of);
        u64::try_from(on_the_way).unwrap_or(0) // it lies between the two
    }
}

impl Growth {
    /// Nothing where the two phases are not alike, or no whole steps lie between them.
    pub(super) fn of(column: &[u64], phases: [&Slot; 2], steps: u32) -> Option<Growth> {
        let [from, to] = phases.map(|slot| column.get(slot.first.index()..=slot.last.index()).unwrap_or(&[]));
        (phases[0].moments() == phases[1].moments()).then_some(())?;
        let mut lines: Vec<Line> = Vec::new();
        let mut last = Line { offset: 0, from: 0, to: 0 };
        for (offset, (from, to)) in (0..).zip(from.iter().zip(to)) {
            let line = Line { offset, from: *from, to: *to };
            (line.change() % i128::from(steps) == 0).then_some(())?;
            match lines.iter_mut().find(|known| known.change() == line.change()) {
                Some(known) if known.from < line.from => *known = line,
                Some(_) => {}
                None => lines.push(line),
            }
            last = line;
        }
        Some(Growth { lines, last })
    }

    /// The first of the largest moments so many steps on the way.
    pub(super) fn peak(&self, between: Between) -> (u32, u64) {
        let mut best = (0, 0);
        for line in &self.lines {
            let (offset, value) = (line.offset, line.at(between));
            if value > best.1 || value == best.1 && offset < best.0 {
                best = (offset, value);
            }
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use peakledger_core::Phase;
    use std::num::NonZeroU32;

    fn slots() -> Timeline {
        let mut timeline = Timeline::empty();
        for phase in [Phase::Forward, Phase::Backward] {
            assert!(timeline.try_push(phase, None, NonZeroU32::new(3).unwrap()));
        }
        timeline
    }

    /// Of three phases after the first, the third is as it was run; two thirds of the way are gone at the second.
    #[test]
    fn a_phase_between_two_has_its_share_of_the_way() {
        let timeline = slots();
        let [from, to] = [&timeline.slots()[0], &timeline.slots()[1]];
        let growth = Growth::of(&[10, 40, 20, 16, 40, 26], [from, to], 3).unwrap();
        let at = |step| Between { next: 1, step, of: 3 };
        assert_eq!([1, 2].map(|step| growth.peak(at(step))), [(1, 40), (1, 40)]);
        assert_eq!([1, 2].map(|step| growth.last.at(at(step))), [22, 24]);
        // the last moment overtakes the second
        let growth = Growth::of(&[10, 40, 20, 10, 43, 80], [from, to], 3).unwrap();
        assert_eq!([0, 1, 2].map(|step| growth.peak(at(step))), [(1, 40), (1, 41), (2, 60)]);
        assert!(Growth::of(&[10, 40, 20, 11, 40, 20], [from, to], 3).is_none(), "no third of 1");
    }
}
