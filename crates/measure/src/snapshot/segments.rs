//! What the allocator held when the snapshot was taken: segments of the device's memory, each tiled by blocks.

use super::events::{PoolId, StreamId};
use super::stacks::StackId;
use peakledger_core::block::{Pool, SMALL_SEGMENT};
use std::ops::Range;

/// What becomes of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BlockState {
    /// In use.
    Allocated,
    /// Let go of, and waiting for a stream that still uses it.
    PendingFree,
    /// Free, and kept by the allocator.
    Inactive,
}

impl BlockState {
    /// The word in files.
    pub const fn as_str(self) -> &'static str {
        match self {
            BlockState::Allocated => "active_allocated",
            BlockState::PendingFree => "active_pending_free",
            BlockState::Inactive => "inactive",
        }
    }

    /// The state of that word; torch's docstring has another one for pending.
    pub fn named(word: &[u8]) -> Option<BlockState> {
        Some(match word {
            b"active_allocated" => BlockState::Allocated,
            b"active_pending_free" | b"active_awaiting_free" => BlockState::PendingFree,
            b"inactive" => BlockState::Inactive,
            _ => return None,
        })
    }

    /// Whether the allocator cannot hand it out.
    pub fn is_active(self) -> bool {
        self != BlockState::Inactive
    }
}

/// A piece of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Where it begins.
    pub address: u64,
    /// Its bytes.
    pub size: u64,
    /// The bytes that were asked for; means nothing for an inactive block.
    pub requested: u64,
    /// What becomes of it.
    pub state: BlockState,
    /// Where it was asked for.
    pub stack: StackId,
}

/// Memory that the allocator got from the device in one piece; of an expandable segment, a run of mapped pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The device, as torch counts them.
    pub device: u32,
    /// Where it begins.
    pub address: u64,
    /// Its bytes.
    pub size: u64,
    /// The allocator's own count of the bytes in use.
    pub allocated: u64,
    /// The same with those that wait for a stream.
    pub active: u64,
    /// The stream that alone uses it.
    pub stream: StreamId,
    /// Which of the two default pools, or of a private pool's two, it belongs to.
    pub kind: Pool,
    /// The pool.
    pub pool: PoolId,
    /// Whether it grows and shrinks by pages.
    pub expandable: bool,
    /// Where it was asked for.
    pub stack: StackId,
    /// Its blocks, by their numbers in [`Snapshot::blocks`](super::Snapshot::blocks).
    pub blocks: Range<u32>,
}

impl Segment {
    /// The kind of a segment that the snapshot does not name: no large one is as small as a small one.
    pub fn kind_of(size: u64) -> Pool {
        if size <= SMALL_SEGMENT { Pool::Small } else { Pool::Large }
    }
}
