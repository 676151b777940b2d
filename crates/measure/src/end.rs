//! The state at the end, from segments and blocks: what is in use, what is free, and why what is free may be of no use.
//!
//! `reserved − allocated` is, by name: what waits for a stream; what lies in wholly free segments, which `empty_cache`
//! gives back; and what is stuck inside segments that are partly in use. `allocated − requested` is rounding.

use crate::snapshot::{BlockState, PoolId, Segment, Snapshot, StreamId};
use peakledger_core::block::Pool;
use std::collections::{BTreeMap, BTreeSet};

/// What the segments and blocks at the end add up to, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndState {
    /// Segments.
    pub segments: u64,
    /// Their bytes.
    pub reserved: u64,
    /// What the allocator itself counts as allocated.
    pub allocated: u64,
    /// What it counts as allocated or waiting for a stream.
    pub active: u64,
    /// Blocks, by state: in use, waiting for a stream, free.
    pub blocks: [u64; 3],
    /// Bytes of the blocks, by state.
    pub block_bytes: [u64; 3],
    /// What was asked for, of the blocks in use.
    pub requested: u64,
    /// The largest free block.
    pub largest_free: u64,
    /// Free bytes in segments without a block in use.
    pub free_in_free_segments: u64,
    /// Whether the blocks fill every segment exactly.
    pub tiled: bool,
    /// Blocks that are not wholly within their segment.
    pub stray_blocks: u64,
    /// Segments that begin within another.
    pub overlapping_segments: u64,
    /// Streams.
    pub streams: u64,
    /// Expandable segments, each a run of mapped pages.
    pub expandable_segments: u64,
    /// Segments of the small pools.
    pub small_segments: u64,
    /// The same apart for each pool and stream: what is free in one is of no use to another.
    pub holdings: Vec<Holding>,
    /// Pools.
    pub pools: u64,
}

/// What one pool holds for one stream, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holding {
    /// The pool.
    pub pool: PoolId,
    /// Which of its two.
    pub kind: Pool,
    /// The stream.
    pub stream: StreamId,
    /// Segments.
    pub segments: u64,
    /// Their bytes.
    pub reserved: u64,
    /// In use.
    pub allocated: u64,
    /// What was asked for of that.
    pub requested: u64,
    /// Waiting for a stream.
    pub pending: u64,
    /// Free in segments without a block in use.
    pub free_in_free_segments: u64,
    /// Free inside segments that are partly in use.
    pub stuck: u64,
    /// The largest free block.
    pub largest_free: u64,
}

impl EndState {
    /// The end of a device. Sums that pass 64 bits stop there; [`History`](crate::History) refuses such a file.
    pub fn of(snapshot: &Snapshot, device: u32) -> EndState {
        let mut end = EndState { tiled: true, ..EndState::default() };
        let (mut streams, mut pools) = (BTreeSet::new(), BTreeSet::new());
        let mut holdings: BTreeMap<(PoolId, Pool, StreamId), Holding> = BTreeMap::new();
        for segment in snapshot.segments_of(device) {
            streams.insert(segment.stream);
            pools.insert(segment.pool);
            let holding = holdings
                .entry((segment.pool, segment.kind, segment.stream))
                .or_insert_with(|| Holding::empty(segment));
            end.add(snapshot, segment, holding);
        }
        end.overlapping_segments = overlapping(snapshot, device);
        end.streams = streams.len() as u64;
        end.pools = pools.len() as u64;
        end.holdings = holdings.into_values().collect();
        end
    }

    fn add(&mut self, snapshot: &Snapshot, segment: &Segment, holding: &mut Holding) {
        add(&mut self.segments, 1);
        add(&mut self.reserved, segment.size);
        add(&mut self.allocated, segment.allocated);
        add(&mut self.active, segment.active);
        add(&mut self.expandable_segments, u64::from(segment.expandable));
        add(&mut self.small_segments, u64::from(segment.kind == Pool::Small));
        add(&mut holding.segments, 1);
        add(&mut holding.reserved, segment.size);
        let (mut whole, mut free, mut all) = (true, 0, 0);
        for block in snapshot.blocks_of(segment) {
            let state = block.state as usize;
            add(self.blocks.get_mut(state).unwrap_or(&mut 0), 1);
            add(self.block_bytes.get_mut(state).unwrap_or(&mut 0), block.size);
            add(&mut all, block.size);
            let after = segment.address.saturating_add(segment.size);
            let within =
                block.address >= segment.address && block.address.saturating_add(block.size) <= after;
            add(&mut self.stray_blocks, u64::from(!within));
            whole &= !block.state.is_active();
            match block.state {
                BlockState::Allocated => {
                    add(&mut self.requested, block.requested);
                    add(&mut holding.allocated, block.size);
                    add(&mut holding.requested, block.requested);
                }
                BlockState::PendingFree => add(&mut holding.pending, block.size),
                BlockState::Inactive => {
                    add(&mut free, block.size);
                    self.largest_free = self.largest_free.max(block.size);
                    holding.largest_free = holding.largest_free.max(block.size);
                }
            }
        }
        self.tiled &= all == segment.size;
        match whole {
            true => {
                add(&mut self.free_in_free_segments, free);
                add(&mut holding.free_in_free_segments, free);
            }
            false => add(&mut holding.stuck, free),
        }
    }

    fn bytes_of(&self, state: BlockState) -> u64 {
        self.block_bytes.get(state as usize).copied().unwrap_or(0)
    }

    /// Bytes of the blocks in use.
    pub fn allocated_blocks(&self) -> u64 {
        self.bytes_of(BlockState::Allocated)
    }

    /// Bytes of the blocks that wait for a stream.
    pub fn pending(&self) -> u64 {
        self.bytes_of(BlockState::PendingFree)
    }

    /// Bytes of free blocks.
    pub fn inactive(&self) -> u64 {
        self.bytes_of(BlockState::Inactive)
    }

    /// Bytes of the blocks in use beyond what was asked for.
    pub fn rounding_waste(&self) -> u64 {
        self.allocated_blocks().saturating_sub(self.requested)
    }
}

impl Holding {
    fn empty(segment: &Segment) -> Holding {
        Holding {
            pool: segment.pool,
            kind: segment.kind,
            stream: segment.stream,
            segments: 0,
            reserved: 0,
            allocated: 0,
            requested: 0,
            pending: 0,
            free_in_free_segments: 0,
            stuck: 0,
            largest_free: 0,
        }
    }
}

/// How many segments begin within the one before.
fn overlapping(snapshot: &Snapshot, device: u32) -> u64 {
    let mut ends: Vec<(u64, u64)> =
        snapshot.segments_of(device).map(|s| (s.address, s.address.saturating_add(s.size))).collect();
    ends.sort_unstable();
    let pairs = ends.windows(2).filter(|pair| matches!(pair, [(_, end), (start, _)] if start < end));
    pairs.count() as u64
}

fn add(sum: &mut u64, more: u64) {
    *sum = sum.saturating_add(more);
}
