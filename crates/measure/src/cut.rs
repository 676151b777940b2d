//! A device whose last events are lost with the rest of a damaged file.
//!
//! torch writes the segments before the events, so what is left has the state at the end and only the first events. A block
//! of that state that none of them handed out was there before them, or came after them. It was surely there before only
//! where the recording has the stack of whatever it saw handed out and has none of this block, and no event touched its
//! addresses; only such blocks are counted, so that what is handed out is the least that there was. Segments count whole where
//! events come to them: when each was mapped is lost, so that what is reserved may be more than there was then.

use crate::snapshot::{Action, Block, Segment, Snapshot, StackId};
use std::ops::Range;

/// What the events that are left say of addresses and stacks.
pub(crate) struct Seen {
    /// The addresses that an event had to do with, in order and apart from each other.
    touched: Vec<Range<u64>>,
    /// Whether a block without a stack is one that was not recorded.
    stacks_tell: bool,
}

impl Seen {
    /// Of a device; nothing where its events are whole.
    pub(crate) fn of(snapshot: &Snapshot, device: u32) -> Option<Seen> {
        if snapshot.cut_device != Some(device) {
            return None;
        }
        let (mut ranges, mut has_stacks, mut lacks_stacks) = (Vec::new(), false, false);
        for event in snapshot.events.between(snapshot.trace(device)) {
            if event.action == Action::Alloc {
                has_stacks |= event.stack != StackId::NONE;
                lacks_stacks |= event.stack == StackId::NONE;
            }
            if !matches!(event.action, Action::Oom | Action::Snapshot | Action::Annotate | Action::Unknown) {
                ranges.push(event.addr..event.addr.saturating_add(event.size));
            }
        }
        let mut blocks = snapshot.segments_of(device).flat_map(|segment| snapshot.blocks_of(segment));
        has_stacks |= blocks.any(|block| block.state.is_active() && block.stack != StackId::NONE);
        Some(Seen { touched: apart(ranges), stacks_tell: has_stacks && !lacks_stacks })
    }

    /// Whether a block of the state at the end that no event handed out was surely there before them.
    pub(crate) fn was_before(&self, block: &Block) -> bool {
        self.stacks_tell && block.stack == StackId::NONE && !self.touches(block.address, block.size)
    }

    /// Whether the events had to do with a segment of the state at the end.
    pub(crate) fn knows(&self, segment: &Segment) -> bool {
        self.touches(segment.address, segment.size)
    }

    fn touches(&self, start: u64, bytes: u64) -> bool {
        let end = start.saturating_add(bytes);
        let first = self.touched.partition_point(|range| range.end <= start);
        self.touched.get(first).is_some_and(|range| range.start < end)
    }
}

/// Ranges in order, with those that meet made one.
fn apart(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.retain(|range| !range.is_empty());
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup_by(|next, before| {
        let meet = next.start <= before.end;
        if meet {
            before.end = before.end.max(next.end);
        }
        meet
    });
    ranges
}
