//! Whether the peaks that were seen are those of the whole step, where something was postponed in layers that were not run.
//!
//! It is on no tape, so no sum has it. At its place in such a layer there would be what else stands there, which lies on the line
//! between the sums at that place in the layers that were run before and after, and on top of it the most that the postponed had,
//! and what is kept of it by then. Where that stays below the peak of its phase it changes nothing; where it does not, there is
//! no answer, and the step is written down whole.

use super::Step;
use super::growth::beside;
use crate::repeat::{Aside, Cut, Postponed};
use crate::torch::tape::Tape;
use peakledger_core::{Moment, Timeline};
use std::ops::Range;

/// The sums of a step of which something was postponed.
pub(super) struct Below<'a> {
    pub(super) postponed: &'a Postponed,
    pub(super) tape: &'a Tape,
    pub(super) step: Step,
    pub(super) timeline: &'a Timeline,
    /// What is on the card at each moment, as torch's tracker sees it and at device level.
    pub(super) columns: [&'a [u64]; 2],
}

/// What is there at a moment, in both columns.
type There = [i128; 2];

impl Below<'_> {
    /// Whether at every place in a layer that was not run what belongs there stays below, and in all layers that may have what is
    /// kept of it the rest does.
    pub(super) fn is_so(&self) -> Option<()> {
        // those of a phase come one after the other
        let mut known: Option<(Moment, There)> = None;
        for aside in &self.postponed.aside {
            let [before, after] = aside.beside.map(|moment| self.moment(moment));
            let (before, after) = (before?, after?);
            let phase = self.timeline.slot_at(after)?.first;
            let peak = match known {
                Some((of, peak)) if of == phase => peak,
                _ => self.peak_around(after)?,
            };
            known = Some((phase, peak));
            is_less(self.at_place(aside, [self.at(before)?, self.at(after)?]), peak)?;
        }
        for (cut, kept) in self.postponed.cuts().filter(|(_, kept)| *kept > 0) {
            let (most, after) = self.most_around(cut, kept)?;
            is_less(most, self.peak_around(after)?)?;
        }
        Some(())
    }

    /// At a place in a layer that was not run: so far on the way from a layer to one, with what belongs there and was kept by then.
    fn at_place(&self, aside: &Aside, [before, after]: [There; 2]) -> There {
        let [by_then, by_all] = aside.kept.map(i128::from);
        let units = [aside.units, aside.copies + 1].map(i128::from);
        let there = |before: i128, after: i128| {
            let after = after - by_all;
            after + (before - after) * units[0] / units[1] + i128::from(aside.most) + by_then
        };
        [there(before[0], after[0]), there(before[1], after[1])]
    }

    /// The most that may be there from the unit before a cut to the one after it, where all that is kept may be there all the time;
    /// and a moment of the latter.
    fn most_around(&self, cut: &Cut, kept: u64) -> Option<(There, Moment)> {
        let (mut most, mut after): (There, Option<Range<Moment>>) = ([0; 2], None);
        for [before, later] in beside(cut)? {
            if let (Some(before), Some(later)) = (self.moment(before), self.moment(later)) {
                most = largest(most, self.at(before)?.map(|there| there + i128::from(kept)));
                after = Some(after.map_or(later, |after| after.start)..later);
            }
        }
        let Range { start, end } = after?;
        for moment in start.0..=end.0 {
            most = largest(most, self.at(Moment(moment))?);
        }
        Some((most, start))
    }

    /// Where a moment of what was run is in the sums.
    fn moment(&self, moment: Moment) -> Option<Moment> {
        Some(self.step.within(self.tape, self.postponed.moment(moment)?))
    }

    fn at(&self, moment: Moment) -> Option<There> {
        let [a, b] = self.columns.map(|column| column.get(moment.index()).copied().map(i128::from));
        Some([a?, b?])
    }

    /// The most of the phase that a moment is in.
    fn peak_around(&self, moment: Moment) -> Option<There> {
        let slot = self.timeline.slot_at(moment)?;
        let peak = |column: &[u64]| {
            let column = column.get(slot.first.index()..=slot.last.index())?;
            column.iter().copied().max().map(i128::from)
        };
        let [a, b] = self.columns.map(peak);
        Some([a?, b?])
    }
}

fn largest(a: There, b: There) -> There {
    [a[0].max(b[0]), a[1].max(b[1])]
}

fn is_less(a: There, b: There) -> Option<()> {
    (a[0] < b[0] && a[1] < b[1]).then_some(())
}
