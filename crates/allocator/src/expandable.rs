//! Expandable segments: ranges of addresses into which pages are mapped where they are needed (`ExpandableSegment`).

use crate::blocks::{Block, BlockId, State};
use crate::lists::ListId;
use crate::{Allocator, Device, Stream};
use peakledger_core::block::{Pool, SMALL_SEGMENT};
use std::ops::{Index, Range as Span};

/// A range, by its place in [`Ranges`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RangeId(u32);

/// A range of addresses that belongs to one list and stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    pub(crate) base: u64,
    pub(crate) size: u64,
    pub(crate) page: u64,
}

impl Range {
    /// The addresses of the whole pages inside a block, if there are any.
    pub(crate) fn pages_within(&self, block: &Block) -> Option<Span<u64>> {
        let offset = block.address.checked_sub(self.base)?;
        let start = offset.checked_next_multiple_of(self.page)?;
        let end = (offset.checked_add(block.size)? / self.page).checked_mul(self.page)?;
        (start < end).then_some(self.base + start..self.base + end)
    }
}

/// All ranges there ever were.
#[derive(Debug)]
pub(crate) struct Ranges(Vec<Range>);

impl Ranges {
    pub(crate) fn new() -> Ranges {
        Ranges(Vec::new())
    }

    pub(crate) fn add(&mut self, range: Range) -> Option<RangeId> {
        let id = RangeId(u32::try_from(self.0.len()).ok()?);
        self.0.push(range);
        Some(id)
    }
}

#[allow(clippy::indexing_slicing)] // ids are made here, and name cells that are here
impl Index<RangeId> for Ranges {
    type Output = Range;

    fn index(&self, id: RangeId) -> &Range {
        &self.0[id.0 as usize]
    }
}

/// The card that ranges are made for where none is known.
const LARGE_CARD: u64 = 1 << 40;

impl<D: Device> Allocator<D> {
    /// The pages that a list maps.
    pub(crate) fn page(&self, list: ListId) -> u64 {
        match self.lists[list].pool {
            Pool::Small => SMALL_SEGMENT,
            Pool::Large => self.settings.cut.large_segment,
        }
    }

    /// The addresses of a range: an eighth more than the card has bytes, in whole pages.
    pub(crate) fn range_size(&self, page: u64) -> u64 {
        let total = self.device.total().unwrap_or(LARGE_CARD);
        total.saturating_add(total / 8).checked_next_multiple_of(page).unwrap_or(u64::MAX / page * page)
    }

    /// A block of at least this size, made by mapping pages behind or between free blocks
    /// (`try_allocate_expandable_block`). Where there is no room for all of them, those already mapped stay, as free blocks.
    pub(crate) fn grow_range(&mut self, list: ListId, stream: Stream, rounded: u64) -> Option<BlockId> {
        let mut id = match self.lowest_room(list, stream, rounded) {
            Some(id) => id,
            None => self.new_range(list, stream)?,
        };
        if self.blocks[id].state == State::Unmapped {
            let missing = self.blocks[id].size.min(rounded);
            id = self.map(id, missing)?;
        }
        while self.blocks[id].size < rounded {
            let missing = rounded - self.blocks[id].size;
            let next = self.blocks[id].after?;
            let room = self.blocks[next].size;
            id = self.map(next, missing.min(room))?;
        }
        self.take(id);
        Some(id)
    }

    /// The lowest addresses of the stream's ranges where free and unmapped blocks side by side hold so many bytes
    /// (`find_expandable_block`).
    fn lowest_room(&self, list: ListId, stream: Stream, bytes: u64) -> Option<BlockId> {
        let mut starts = self.lists[list].unmapped_of(stream).map(|id| {
            let before = self.blocks[id].before;
            before.filter(|before| self.blocks[*before].is_unused()).unwrap_or(id)
        });
        starts.find(|start| self.has_room(*start, bytes))
    }

    fn has_room(&self, start: BlockId, bytes: u64) -> bool {
        let (mut room, mut next) = (0u64, Some(start));
        while let Some(id) = next.filter(|id| room < bytes && self.blocks[*id].is_unused()) {
            room = room.saturating_add(self.blocks[id].size);
            next = self.blocks[id].after;
        }
        room >= bytes
    }

    fn new_range(&mut self, list: ListId, stream: Stream) -> Option<BlockId> {
        let page = self.page(list);
        let size = self.range_size(page);
        let base = self.device.reserve(size)?;
        let range = self.ranges.add(Range { base, size, page })?;
        let unmapped = Block::whole(base, size, stream, list, State::Unmapped);
        let id = self.blocks.add(Block { range: Some(range), ..unmapped })?;
        self.put(id);
        Some(id)
    }

    /// Puts pages behind the first `bytes` of an unmapped block and merges what is mapped with its free neighbours
    /// (`map_block`).
    fn map(&mut self, unmapped: BlockId, bytes: u64) -> Option<BlockId> {
        let block = self.blocks[unmapped];
        let page = self.ranges[block.range?].page;
        let bytes = bytes.checked_next_multiple_of(page)?.min(block.size);
        let reserved = self.totals.reserved.checked_add(bytes)?;
        if !self.device.map(block.address, bytes) {
            return None;
        }
        self.take(unmapped);
        let id = if bytes < block.size {
            let front = self.blocks.cut(unmapped, bytes)?;
            self.put(unmapped);
            front
        } else {
            unmapped
        };
        self.totals.reserved = reserved;
        self.blocks[id].state = State::Free;
        self.merge(id);
        self.put(id);
        Some(id)
    }

    /// Takes the whole pages inside a free block away and leaves the rest of it as free blocks before and behind
    /// (`unmap_block`). A range with nothing mapped any more is given back.
    pub(crate) fn unmap(&mut self, free: BlockId) {
        let block = self.blocks[free];
        let Some((range, pages)) = block.range.and_then(|id| {
            let range = self.ranges[id];
            Some((range, range.pages_within(&block)?))
        }) else {
            return;
        };
        self.take(free);
        let mut id = free;
        if pages.start > block.address {
            let Some(before) = self.blocks.cut(id, pages.start - block.address) else { return };
            self.put(before);
        }
        if pages.end < block.end() {
            // the part in the middle is the new one, and the one behind it keeps the id
            let Some(middle) = self.blocks.cut(id, pages.end - pages.start) else { return };
            self.put(id);
            id = middle;
        }
        self.device.unmap(pages.start, pages.end - pages.start);
        self.totals.reserved -= pages.end - pages.start;
        self.blocks[id].state = State::Unmapped;
        self.merge(id);
        if self.blocks[id].is_split() {
            self.put(id);
        } else {
            self.device.release(range.base, range.size);
            self.blocks.remove(id);
        }
    }
}
