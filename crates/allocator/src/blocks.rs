//! Blocks: the pieces that segments are cut into, in one flat array, each knowing its neighbours.

use crate::Stream;
use crate::expandable::RangeId;
use crate::lists::ListId;
use std::num::NonZeroU32;
use std::ops::{Index, IndexMut};

/// A block, by its place in [`Blocks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BlockId(NonZeroU32);

/// What a block is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Cached, in the list of its pool.
    Free,
    /// Handed out.
    Allocated,
    /// Given back, but other streams may still use it.
    Pending,
    /// Addresses of an expandable range with no memory behind them.
    Unmapped,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    pub(crate) address: u64,
    pub(crate) size: u64,
    /// What was asked for, while it is handed out.
    pub(crate) requested: u64,
    pub(crate) stream: Stream,
    pub(crate) list: ListId,
    /// The expandable range that it is a part of; none if its segment comes from `cudaMalloc`.
    pub(crate) range: Option<RangeId>,
    pub(crate) state: State,
    /// The neighbours in its segment.
    pub(crate) before: Option<BlockId>,
    pub(crate) after: Option<BlockId>,
    /// How often its pool had been searched when it became free: its age is what has been added since.
    pub(crate) free_since: u64,
}

impl Block {
    /// A block of its own: a whole segment.
    pub(crate) fn whole(address: u64, size: u64, stream: Stream, list: ListId, state: State) -> Block {
        let (before, after) = (None, None);
        Block { address, size, requested: 0, stream, list, range: None, state, before, after, free_since: 0 }
    }

    /// Whether its segment is cut: it has a neighbour.
    pub(crate) const fn is_split(&self) -> bool {
        self.before.is_some() || self.after.is_some()
    }

    /// Whether nobody uses it, be there memory behind it or not.
    pub(crate) const fn is_unused(&self) -> bool {
        matches!(self.state, State::Free | State::Unmapped)
    }

    pub(crate) const fn end(&self) -> u64 {
        self.address.saturating_add(self.size)
    }
}

/// All blocks there are.
#[derive(Debug)]
pub(crate) struct Blocks {
    cells: Vec<Block>,
    spare: Vec<BlockId>,
}

impl Blocks {
    pub(crate) fn new() -> Blocks {
        // the first cell is no block: ids start from 1, so that none costs nothing
        let nobody = Block::whole(0, 0, Stream::DEFAULT, ListId::SMALL, State::Unmapped);
        Blocks { cells: vec![nobody], spare: Vec::new() }
    }

    /// Adds a block; none where there are too many to be numbered.
    pub(crate) fn add(&mut self, block: Block) -> Option<BlockId> {
        if let Some(id) = self.spare.pop() {
            self[id] = block;
            return Some(id);
        }
        let id = u32::try_from(self.cells.len()).ok().and_then(NonZeroU32::new)?;
        self.cells.push(block);
        Some(BlockId(id))
    }

    /// Cuts a block in two: what is left keeps the id and the higher addresses, and the new block before it has the lower
    /// ones, `size` bytes.
    pub(crate) fn cut(&mut self, id: BlockId, size: u64) -> Option<BlockId> {
        let whole = self[id];
        let front = self.add(Block { size, after: Some(id), ..whole })?;
        if let Some(before) = whole.before {
            self[before].after = Some(front);
        }
        let rest = &mut self[id];
        rest.address = rest.address.saturating_add(size);
        rest.size = rest.size.saturating_sub(size);
        rest.before = Some(front);
        Some(front)
    }

    /// Makes a block and the one after it one, under the id of the first or, with `keep_second`, of the second.
    pub(crate) fn join(&mut self, first: BlockId, second: BlockId, keep_second: bool) {
        let (a, b) = (self[first], self[second]);
        let (kept, gone) = if keep_second { (second, first) } else { (first, second) };
        let joined = &mut self[kept];
        joined.address = a.address;
        joined.size = a.size.saturating_add(b.size);
        (joined.before, joined.after) = (a.before, b.after);
        if let Some(before) = a.before {
            self[before].after = Some(kept);
        }
        if let Some(after) = b.after {
            self[after].before = Some(kept);
        }
        self.remove(gone);
    }

    /// Forgets a block that is in no list and no segment.
    pub(crate) fn remove(&mut self, id: BlockId) {
        self.spare.push(id);
    }
}

#[allow(clippy::indexing_slicing)] // ids are made here, and name cells that are here
impl Index<BlockId> for Blocks {
    type Output = Block;

    fn index(&self, id: BlockId) -> &Block {
        &self.cells[id.0.get() as usize]
    }
}

#[allow(clippy::indexing_slicing)] // as above
impl IndexMut<BlockId> for Blocks {
    fn index_mut(&mut self, id: BlockId) -> &mut Block {
        &mut self.cells[id.0.get() as usize]
    }
}
