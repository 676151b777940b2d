//! The free blocks of a list in torch's order, in runs that are short enough to be moved: a block is put in and taken out
//! with every request, and a run is searched faster than a tree of the same keys.

use crate::Stream;
use crate::blocks::{Block, BlockId};
use std::cell::Cell;
use std::cmp::Ordering;

/// A free block as torch sorts them: by stream, then size, then address (`BlockComparatorSize`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Free {
    pub(crate) stream: Stream,
    pub(crate) size: u64,
    pub(crate) address: u64,
    pub(crate) id: Option<BlockId>,
}

impl Free {
    fn of(id: BlockId, block: &Block) -> Free {
        Free { stream: block.stream, size: block.size, address: block.address, id: Some(id) }
    }

    /// Before every block of this stream and size.
    pub(crate) const fn at(stream: Stream, size: u64) -> Free {
        Free { stream, size, address: 0, id: None }
    }

    fn key(&self) -> (Stream, u128) {
        (self.stream, u128::from(self.size) << 64 | u128::from(self.address))
    }

    /// Whether it comes before another one. Every request asks so a dozen times, and what comes of it cannot be foretold, so
    /// there is no branch in it.
    fn is_before(&self, other: &Free) -> bool {
        let ((a, a_key), (b, b_key)) = (self.key(), other.key());
        (a.0 < b.0) | ((a.0 == b.0) & (a_key < b_key))
    }
}

// no two blocks have the same address, so the id decides nothing
impl PartialEq for Free {
    fn eq(&self, other: &Free) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Free {}

impl Ord for Free {
    fn cmp(&self, other: &Free) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl PartialOrd for Free {
    fn partial_cmp(&self, other: &Free) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Blocks in order, in runs of which none is empty.
#[derive(Debug, Default)]
pub(crate) struct FreeBlocks {
    runs: Vec<Vec<Free>>,
    /// The place that was looked for last: what is found is mostly taken out next, and what is left of it, or what it became
    /// a part of, mostly put back there.
    looked_for: Cell<(usize, usize)>,
}

/// A longer run becomes two.
const LONGEST: usize = 64;

impl FreeBlocks {
    pub(crate) fn insert(&mut self, id: BlockId, block: &Block) {
        let free = Free::of(id, block);
        let (at, place) = self.looked_for.get();
        let (at, place) = if self.belongs_at(&free, at, place) { (at, place) } else { self.place(&free) };
        let Some(run) = self.runs.get_mut(at) else {
            self.runs.push(vec![free]);
            return;
        };
        run.insert(place, free);
        if run.len() > LONGEST {
            let upper = run.split_off(LONGEST / 2);
            self.runs.insert(at + 1, upper);
        }
    }

    pub(crate) fn remove(&mut self, id: BlockId, block: &Block) {
        let free = Free::of(id, block);
        let (at, place) = match self.looked_for.get() {
            (at, place) if self.runs.get(at).and_then(|run| run.get(place)) == Some(&free) => (at, place),
            _ => self.place(&free),
        };
        let Some(run) = self.runs.get_mut(at) else { return };
        if run.get(place) == Some(&free) {
            run.remove(place);
        }
        if run.is_empty() {
            self.runs.remove(at);
        }
    }

    /// Whether a block that is put in at a place lies between its neighbours there.
    fn belongs_at(&self, free: &Free, at: usize, place: usize) -> bool {
        let Some(run) = self.runs.get(at).filter(|run| place <= run.len()) else { return false };
        let before = match place.checked_sub(1) {
            Some(before) => run.get(before),
            None => at.checked_sub(1).and_then(|at| self.runs.get(at)).and_then(|run| run.last()),
        };
        let after = run.get(place).or_else(|| self.runs.get(at + 1).and_then(|run| run.first()));
        before.is_none_or(|before| before.is_before(free)) && after.is_none_or(|after| free.is_before(after))
    }

    /// All of them, in order.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &Free> {
        self.runs.iter().flatten()
    }

    /// Those from there on, in order.
    pub(crate) fn from(&self, first: Free) -> impl Iterator<Item = &Free> {
        let (at, place) = self.place(&first);
        let run = self.runs.get(at).and_then(|run| run.get(place..)).unwrap_or_default();
        run.iter().chain(self.runs.iter().skip(at + 1).flatten())
    }

    /// Those before it, in order.
    pub(crate) fn before(&self, end: Free) -> impl DoubleEndedIterator<Item = &Free> {
        let (at, place) = self.place(&end);
        let run = self.runs.get(at).and_then(|run| run.get(..place)).unwrap_or_default();
        self.runs.get(..at).unwrap_or_default().iter().flatten().chain(run)
    }

    /// The run that a block is in, or would be.
    fn run_of(&self, free: &Free) -> usize {
        let after = self.runs.partition_point(|run| run.first().is_some_and(|first| !free.is_before(first)));
        after.saturating_sub(1)
    }

    fn place(&self, free: &Free) -> (usize, usize) {
        let at = self.run_of(free);
        let place = self.runs.get(at).map_or(0, |run| run.partition_point(|other| other.is_before(free)));
        self.looked_for.set((at, place));
        (at, place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::{Blocks, State};
    use crate::lists::ListId;
    use std::collections::BTreeSet;

    /// Whatever is put in and taken out, it is what a set of the same has.
    #[test]
    fn runs_are_as_a_set() {
        let (mut blocks, mut free, mut set) = (Blocks::new(), FreeBlocks::default(), BTreeSet::new());
        let mut random = 1u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        for address in 1..4_000 {
            let (stream, size) = (Stream(next(3)), next(40));
            let block = Block::whole(address, size, stream, ListId::SMALL, State::Free);
            let id = blocks.add(block).unwrap();
            free.insert(id, &block);
            set.insert(Free::of(id, &block));
            // fills at first, and then empties
            while next(4_000) < address && !set.is_empty() {
                let some = next(40);
                let gone =
                    *set.range(Free::at(Stream(next(3)), some)..).next().unwrap_or(set.first().unwrap());
                set.remove(&gone);
                let id = gone.id.unwrap();
                free.remove(id, &blocks[id]);
            }
            let from = Free::at(Stream(next(3)), next(40));
            assert!(free.iter().eq(&set));
            assert!(free.from(from).eq(set.range(from..)));
            assert!(free.before(from).rev().eq(set.range(..from).rev()));
            assert!(free.runs.iter().all(|run| !run.is_empty() && run.len() <= LONGEST));
        }
    }
}
