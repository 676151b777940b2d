//! Running out of memory: what was asked for, and what there was.

use crate::Totals;
use peakledger_core::block::Pool;

/// A request that neither the free blocks nor the device could serve, after everything cached was given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// The bytes asked for.
    pub requested: u64,
    /// The request rounded up, as an `oom` event of a snapshot has it.
    pub rounded: u64,
    /// The segment that the device was asked for: what the message of the error calls "tried to allocate".
    pub segment: u64,
    /// The pool whose free blocks were looked at.
    pub pool: Pool,
    /// What the allocator held then.
    pub totals: Totals,
    /// What the device had left, where that is known.
    pub unused: Option<u64>,
    /// The free blocks that this request could have been cut from, had they been one: those of its pool and stream.
    pub free_in_pool: u64,
    /// The largest of them.
    pub largest_free: u64,
}

impl OutOfMemory {
    /// Whether all that was free, in every pool and on the device, would have held the request, had it been in one piece.
    pub fn is_fragmentation(&self) -> bool {
        self.totals.free().saturating_add(self.unused.unwrap_or(0)) >= self.rounded
    }
}
