//! What the picture of a timeline is made of: bytes that come and go, added up. Names are none of it, so a step that is planned
//! again with every move of a knob needs none.

use peakledger_core::sweep::{Overflow, PhaseTotal, Stay, Totals, sums};
use peakledger_core::{Bytes, Ledger, Moment, Slot, Timeline};
use std::borrow::Cow;

/// Stays on a timeline, and their sums.
pub(super) struct Picture<'a> {
    pub(super) timeline: &'a Timeline,
    pub(super) stays: Vec<Stay>,
    pub(super) totals: Cow<'a, Totals>,
    phases: Cow<'a, [PhaseTotal]>,
}

impl<'a> Picture<'a> {
    /// That of a ledger.
    pub(super) fn of(ledger: &'a Ledger) -> Picture<'a> {
        Picture {
            timeline: ledger.timeline(),
            stays: ledger.states().iter().flat_map(Stay::all_of).collect(),
            totals: Cow::Borrowed(ledger.totals()),
            phases: ledger.phases().map(|(_, sums)| *sums).collect(),
        }
    }

    /// That of stays without names.
    ///
    /// # Errors
    /// The first moment at which a total does not fit into 64 bits.
    pub(super) fn of_stays(timeline: &'a Timeline, stays: Vec<Stay>) -> Result<Picture<'a>, Overflow> {
        let (totals, phases) = sums(timeline, || stays.iter().copied())?;
        Ok(Picture { timeline, stays, totals: Cow::Owned(totals), phases: Cow::Owned(phases) })
    }

    /// Each phase with its sums, in order.
    pub(super) fn phases(&self) -> impl ExactSizeIterator<Item = (&Slot, &PhaseTotal)> {
        self.timeline.slots().iter().zip(self.phases.iter())
    }

    /// The phase with the largest total and its sums; ties go to the earliest.
    pub(super) fn peak(&self) -> Option<(&Slot, &PhaseTotal)> {
        self.phases().reduce(|best, other| if other.1.total > best.1.total { other } else { best })
    }

    /// The moment of the peak.
    pub(super) fn peak_moment(&self) -> Moment {
        self.peak().map_or(Moment(0), |(_, sums)| sums.moment)
    }

    /// The largest sum on the cpu.
    pub(super) fn cpu_peak(&self) -> Bytes {
        self.phases.iter().map(|phase| phase.cpu).max().unwrap_or(Bytes::ZERO)
    }
}
