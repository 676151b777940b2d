//! Segments and their blocks, as a snapshot lists them: what an allocator holds, and starting from what one already held.

use crate::blocks::{Block, BlockId, State};
use crate::expandable::{Range, RangeId};
use crate::lists::ListId;
use crate::{Allocation, Allocator, Device, MempoolId, Settings, Stream};
use peakledger_core::block::Pool;

/// A segment, or a run of mapped pages of an expandable range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where it starts.
    pub address: u64,
    /// The stream whose blocks it holds.
    pub stream: Stream,
    /// The pool that it belongs to…
    pub owner: MempoolId,
    /// …and which half of it.
    pub pool: Pool,
    /// Whether it is mapped into an expandable range.
    pub expandable: bool,
    /// What it is cut into, in the order of their addresses, without gaps.
    pub pieces: Vec<Piece>,
}

/// A block of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its size.
    pub size: u64,
    /// Who has it.
    pub held: Held,
}

/// Who has a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// Nobody. Free blocks side by side are one.
    Free,
    /// The program, which asked for so many bytes.
    Allocated(u64),
    /// Other streams, after the program gave back what it had asked so many bytes for.
    Pending(u64),
}

/// The last block so far of a range that is being laid out.
struct Tail {
    list: ListId,
    stream: Stream,
    range: RangeId,
    end: BlockId,
}

impl<D: Device> Allocator<D> {
    /// An allocator that holds these segments, with the allocation of every piece that is not free, in the order of the
    /// segments and of their pieces; nothing where they do not fit into 64 bits. The device is taken as holding them
    /// already.
    ///
    /// Runs of mapped pages of one stream and list are taken as parts of one expandable range, as long as their pages and
    /// its size allow that.
    pub fn with_segments(
        settings: Settings,
        device: D,
        segments: &[Segment],
    ) -> Option<(Allocator<D>, Vec<Allocation>)> {
        let mut allocator = Allocator::new(settings, device);
        let holds_something = |segment: &Segment| segment.pieces.iter().any(|piece| piece.size > 0);
        let mut order: Vec<(usize, &Segment)> =
            segments.iter().enumerate().filter(|(_, segment)| holds_something(segment)).collect();
        order.sort_by_key(|(_, segment)| segment.address);
        let mut laid: Vec<Vec<BlockId>> = vec![Vec::new(); segments.len()];
        let mut tails: Vec<Tail> = Vec::new();
        for (index, segment) in order {
            let list = allocator.lists.of(segment.owner, segment.pool)?;
            let blocks = if segment.expandable {
                allocator.lay_run(segment, list, &mut tails)?
            } else {
                allocator.lay(segment, list, None, None)?
            };
            laid.get_mut(index)?.extend(blocks);
        }
        for tail in tails {
            let range = allocator.ranges[tail.range];
            allocator.lay_unmapped(&tail, range.base.saturating_add(range.size))?;
        }
        let mut allocations = Vec::new();
        for id in laid.into_iter().flatten() {
            match allocator.blocks[id].state {
                State::Allocated => allocations.push(allocator.count_in(id)?),
                State::Pending => {
                    let allocation = allocator.count_in(id)?;
                    allocator.blocks[id].state = State::Allocated;
                    allocator.free_requested(allocation);
                    allocations.push(allocation);
                }
                State::Free | State::Unmapped => allocator.put(id),
            }
        }
        Some((allocator, allocations))
    }

    /// What is held, by address: every segment, and every run of mapped pages, with its pieces.
    pub fn segments(&self) -> Vec<Segment> {
        let firsts = self.block_ids().filter(|id| self.blocks[*id].before.is_none());
        let mut segments = Vec::new();
        for first in firsts {
            let mut next = Some(first);
            let mut open: Option<Segment> = None;
            while let Some(block) = next.map(|id| &self.blocks[id]) {
                let held = match block.state {
                    State::Free => Some(Held::Free),
                    State::Allocated => Some(Held::Allocated(block.requested)),
                    State::Pending => Some(Held::Pending(block.requested)),
                    State::Unmapped => None,
                };
                match held {
                    Some(held) => {
                        let segment = open.get_or_insert_with(|| self.segment_at(block));
                        segment.pieces.push(Piece { size: block.size, held });
                    }
                    None => segments.extend(open.take()),
                }
                next = block.after;
            }
            segments.extend(open);
        }
        segments.sort_by_key(|segment| segment.address);
        segments
    }

    fn segment_at(&self, block: &Block) -> Segment {
        let list = &self.lists[block.list];
        Segment {
            address: block.address,
            stream: block.stream,
            owner: list.owner,
            pool: list.pool,
            expandable: block.range.is_some(),
            pieces: Vec::new(),
        }
    }

    /// Lays the pieces of a segment out behind a block, free ones side by side as one.
    fn lay(
        &mut self,
        segment: &Segment,
        list: ListId,
        range: Option<RangeId>,
        mut before: Option<BlockId>,
    ) -> Option<Vec<BlockId>> {
        let mut ids: Vec<BlockId> = Vec::new();
        let mut address = segment.address;
        for piece in segment.pieces.iter().filter(|piece| piece.size > 0) {
            let (state, requested) = match piece.held {
                Held::Free => (State::Free, 0),
                Held::Allocated(bytes) => (State::Allocated, bytes),
                Held::Pending(bytes) => (State::Pending, bytes),
            };
            let last = ids.last().copied().filter(|last| self.blocks[*last].state == State::Free);
            if let (Some(last), State::Free) = (last, state) {
                self.blocks[last].size = self.blocks[last].size.checked_add(piece.size)?;
            } else {
                let whole = Block::whole(address, piece.size, segment.stream, list, state);
                let id = self.blocks.add(Block { requested, range, before, ..whole })?;
                if let Some(before) = before {
                    self.blocks[before].after = Some(id);
                }
                before = Some(id);
                ids.push(id);
            }
            address = address.checked_add(piece.size)?;
            self.totals.reserved = self.totals.reserved.checked_add(piece.size)?;
        }
        Some(ids)
    }

    /// Lays a run of mapped pages out, in the range of the run before it where it can be a part of that.
    fn lay_run(&mut self, run: &Segment, list: ListId, tails: &mut Vec<Tail>) -> Option<Vec<BlockId>> {
        let tail = tails.iter().rposition(|tail| (tail.list, tail.stream) == (list, run.stream));
        let same = tail.and_then(|at| tails.get(at)).filter(|tail| {
            let range = self.ranges[tail.range];
            let offset = run.address.saturating_sub(range.base);
            offset.is_multiple_of(range.page)
                && offset < range.size
                && run.address >= self.blocks[tail.end].end()
        });
        let (range, before) = match same {
            Some(tail) => (tail.range, Some(self.lay_unmapped(tail, run.address)?)),
            None => {
                let page = self.page(list);
                let range = Range { base: run.address, size: self.range_size(page), page };
                (self.ranges.add(range)?, None)
            }
        };
        let ids = self.lay(run, list, Some(range), before)?;
        let end = ids.last().copied()?;
        if before.is_some()
            && let Some(tail) = tail.and_then(|at| tails.get_mut(at))
        {
            tail.end = end;
        } else {
            tails.push(Tail { list, stream: run.stream, range, end });
        }
        Some(ids)
    }

    /// The unmapped addresses of a range from its tail up to here, if there are any: the block that is last then.
    fn lay_unmapped(&mut self, tail: &Tail, until: u64) -> Option<BlockId> {
        let address = self.blocks[tail.end].end();
        let size = until.checked_sub(address).filter(|size| *size > 0);
        let Some(size) = size else { return Some(tail.end) };
        let gap = Block::whole(address, size, tail.stream, tail.list, State::Unmapped);
        let id = self.blocks.add(Block { range: Some(tail.range), before: Some(tail.end), ..gap })?;
        self.blocks[tail.end].after = Some(id);
        self.put(id);
        Some(id)
    }
}
