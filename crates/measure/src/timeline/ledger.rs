//! A memory timeline as a ledger: its peak, by torch's categories.
//!
//! A timeline has sums by category and time, and names neither tensors nor phases. So the ledger has one phase of one
//! moment, the peak, and a state for each category that holds anything there.

use super::{MemoryTimeline, TorchCategory};
use peakledger_core::{
    Bytes, Category, Device, Ledger, LedgerError, Moment, Phase, Residencies, Residency, State, Timeline,
};
use std::num::NonZeroU32;

impl MemoryTimeline {
    /// The ledger of the peak. What torch could not place is workspace, under the name that torch gives it.
    ///
    /// # Errors
    /// The sum passes 64 bits, which a timeline that was read does not.
    pub fn ledger(&self) -> Result<Ledger, LedgerError> {
        let mut timeline = Timeline::empty();
        let _room = timeline.try_push(Phase::named("recording"), None, NonZeroU32::MIN);
        let held = self.peak.totals.iter().filter(|(_, bytes)| *bytes > Bytes::ZERO);
        Ledger::new(timeline, held.map(|(torch, bytes)| state(torch, bytes)).collect())
    }
}

fn state(torch: TorchCategory, bytes: Bytes) -> State {
    let category = torch.category.unwrap_or(Category::Workspace);
    let at_the_peak = Residency { device: Device::Gpu, start: Moment(0), end: Moment(0) };
    State {
        name: torch.name.into(),
        category,
        detail: torch.detail,
        bytes,
        persistent: matches!(category, Category::Parameter | Category::OptimizerState),
        residencies: Residencies::One(at_the_peak),
    }
}
