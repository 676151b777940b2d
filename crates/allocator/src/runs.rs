//! Blocks in order, in runs that are short enough to be moved.

use crate::blocks::{Block, BlockId};

/// A free block as torch sorts those of a stream: by size, then address (`BlockComparatorSize`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Free {
    pub(crate) size: u64,
    pub(crate) address: u64,
    pub(crate) id: BlockId,
}

impl Free {
    pub(crate) fn of(id: BlockId, block: &Block) -> Free {
        Free { size: block.size, address: block.address, id }
    }

    /// No two blocks have the same. As one number it is compared without a branch: what comes of it cannot be foretold.
    pub(crate) fn key(&self) -> u128 {
        key(self.size, self.address)
    }
}

/// What blocks are sorted by.
pub(crate) fn key(size: u64, address: u64) -> u128 {
    u128::from(size) << 64 | u128::from(address)
}

/// Blocks in order, in runs of which none is empty but one that is alone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Runs(Vec<Vec<Free>>);

/// A longer run becomes two.
const LONGEST: usize = 64;

impl Runs {
    pub(crate) fn insert(&mut self, free: Free) {
        let (at, place) = self.place(free.key());
        let Some(run) = self.0.get_mut(at) else {
            self.0.push(vec![free]);
            return;
        };
        run.insert(place, free);
        if run.len() > LONGEST {
            let upper = run.split_off(LONGEST / 2);
            self.0.insert(at + 1, upper);
        }
    }

    /// Takes a block out. The last run stays, empty: a list that has had blocks will have more.
    pub(crate) fn remove(&mut self, free: &Free) {
        let (at, place) = self.place(free.key());
        let several = self.0.len() > 1;
        let Some(run) = self.0.get_mut(at) else { return };
        if run.get(place).is_some_and(|there| there.key() == free.key()) {
            run.remove(place);
        }
        if several && run.is_empty() {
            self.0.remove(at);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.first().is_none_or(Vec::is_empty)
    }

    /// The first block from there on.
    pub(crate) fn first_from(&self, key: u128) -> Option<&Free> {
        let (at, place) = self.place(key);
        let next = || self.0.get(at + 1).and_then(|run| run.first());
        self.0.get(at).and_then(|run| run.get(place)).or_else(next)
    }

    /// All of them, in order.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &Free> {
        self.0.iter().flatten()
    }

    /// Those from there on, in order.
    pub(crate) fn from(&self, key: u128) -> impl DoubleEndedIterator<Item = &Free> {
        let (at, place) = self.place(key);
        let run = self.0.get(at).and_then(|run| run.get(place..)).unwrap_or_default();
        run.iter().chain(self.0.get(at + 1..).unwrap_or_default().iter().flatten())
    }

    /// Those before it, in order.
    pub(crate) fn before(&self, key: u128) -> impl DoubleEndedIterator<Item = &Free> {
        let (at, place) = self.place(key);
        let run = self.0.get(at).and_then(|run| run.get(..place)).unwrap_or_default();
        self.0.get(..at).unwrap_or_default().iter().flatten().chain(run)
    }

    /// The run that a block is in, or would be, and its place there.
    fn place(&self, key: u128) -> (usize, usize) {
        let at = match self.0.len() {
            0 | 1 => 0,
            _ => {
                let after = |run: &Vec<Free>| run.first().is_some_and(|first| first.key() <= key);
                self.0.partition_point(after).saturating_sub(1)
            }
        };
        (at, self.0.get(at).map_or(0, |run| run.partition_point(|other| other.key() < key)))
    }

    #[cfg(test)]
    pub(crate) fn are_short(&self) -> bool {
        self.0.iter().all(|run| run.len() <= LONGEST && (self.0.len() == 1 || !run.is_empty()))
    }
}
