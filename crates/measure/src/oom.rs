//! A request that failed: what was asked, what there was, and why that was not enough.

use crate::replay::Replay;
use crate::snapshot::{Event, Snapshot, StackId};
use peakledger_core::Bytes;
use peakledger_core::block::Pool;

/// How many failed requests of a device are explained; the others are counted.
pub(crate) const MOST_EXPLAINED: usize = 64;

/// A request that failed. All sizes in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Oom {
    /// The event.
    pub event: u32,
    /// The request, rounded as the allocator rounds.
    pub rounded: u64,
    /// The segment that it asked the device for.
    pub segment: u64,
    /// What the device had free; nothing where the snapshot does not say (before torch 2.0).
    pub device_free: Option<u64>,
    /// What the allocator held.
    pub reserved: u64,
    /// What of that was in use or waited for a stream.
    pub active: u64,
    /// What was asked for of the blocks in use.
    pub requested: u64,
    /// The largest free block that this request could have had: of its stream and its kind of pool.
    pub largest_free: u64,
    /// Whether all that was free together would have been enough.
    pub defragmenting_saves: bool,
    /// Where it was asked for.
    pub stack: StackId,
}

impl Oom {
    /// A failed request, as the device is then.
    pub(crate) fn of(snapshot: &Snapshot, number: u32, event: &Event, replay: &Replay<'_>) -> Oom {
        let rounded = event.size;
        let kind = Pool::of(rounded);
        let usable =
            replay.gaps().into_iter().filter(|(run, ..)| run.stream == event.stream && run.kind == kind);
        let largest_free = usable.map(|(_, _, bytes)| bytes).max().unwrap_or(0);
        let (reserved, active) = (clamped(replay.reserved()), clamped(replay.active()));
        let device_free =
            snapshot.events.device_free(snapshot.trace(replay.device()).start.saturating_add(number));
        let free = reserved.saturating_sub(active).saturating_add(device_free.unwrap_or(0));
        Oom {
            event: number,
            rounded,
            segment: snapshot.settings.cut.segment(rounded).unwrap_or(u64::MAX),
            device_free,
            reserved,
            active,
            requested: clamped(replay.requested()),
            largest_free,
            defragmenting_saves: free >= rounded,
            stack: event.stack,
        }
    }

    /// What the allocator held and did not use.
    pub fn cached(&self) -> u64 {
        self.reserved.saturating_sub(self.active)
    }

    /// Why it failed, in a sentence.
    pub fn sentence(&self) -> String {
        let [asked, cached, largest] = [self.rounded, self.cached(), self.largest_free].map(Bytes::new);
        let device = match self.device_free {
            Some(free) => format!("the device had {} free", Bytes::new(free)),
            None => "what the device had free is not recorded".to_owned(),
        };
        let why = if self.defragmenting_saves {
            "all that was free together would have been enough: fragmentation is the cause \
             (`expandable_segments:True` avoids most of it)"
        } else {
            "all that was free together would not have been enough"
        };
        format!(
            "{asked} were asked for; {device}; {cached} were cached, the largest free block {largest}; {why}"
        )
    }
}

fn clamped(sum: u128) -> u64 {
    u64::try_from(sum).unwrap_or(u64::MAX)
}
