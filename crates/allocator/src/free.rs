//! The free blocks of a list in torch's order: by stream, then size, then address (`BlockComparatorSize`).
//!
//! A block is put in and taken out with every request, so that finding its place has to be cheap. Sizes are sorted into bins, 16
//! to each power of two, and a word has a bit for each of 64 bins that holds something: the next larger block is found by bits,
//! and most bins hold few.

use crate::Stream;
use crate::blocks::{Block, BlockId};
use crate::runs::{Free, Runs, key};

/// The free blocks of a list, those of each stream by themselves.
#[derive(Debug, Default)]
pub(crate) struct FreeBlocks {
    streams: Vec<(Stream, BySize)>,
}

impl FreeBlocks {
    pub(crate) fn insert(&mut self, id: BlockId, block: &Block) {
        let there = self.streams.binary_search_by_key(&block.stream, |(stream, _)| *stream);
        let at = there.unwrap_or_else(|at| {
            self.streams.insert(at, (block.stream, BySize::new()));
            at
        });
        if let Some((_, blocks)) = self.streams.get_mut(at) {
            blocks.insert(Free::of(id, block));
        }
    }

    pub(crate) fn remove(&mut self, id: BlockId, block: &Block) {
        let mut streams = self.streams.iter_mut();
        if let Some((_, blocks)) = streams.find(|(stream, _)| *stream == block.stream) {
            blocks.remove(&Free::of(id, block));
        }
    }

    /// All of them, in order.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &Free> {
        self.streams.iter().flat_map(|(_, blocks)| blocks.bins.iter().flat_map(Runs::iter))
    }

    /// The smallest of a stream that has at least this size, the lowest of equally small ones.
    pub(crate) fn first_from(&self, stream: Stream, size: u64) -> Option<&Free> {
        let blocks = self.of(stream)?;
        let bin = bin_of(size);
        let here = blocks.bins.get(bin).and_then(|runs| runs.first_from(key(size, 0)));
        here.or_else(|| blocks.bins.get(blocks.next_in_use(bin + 1)?)?.iter().next())
    }

    /// Those of a stream from this size on, in order.
    pub(crate) fn from(&self, stream: Stream, size: u64) -> impl Iterator<Item = &Free> {
        let bin = bin_of(size);
        let bins = self.of(stream).and_then(|blocks| blocks.bins.get(bin..)).unwrap_or_default();
        let first = bins.first().into_iter().flat_map(move |runs| runs.from(key(size, 0)));
        first.chain(bins.get(1..).unwrap_or_default().iter().flat_map(Runs::iter))
    }

    /// Those of a stream below this size, in order.
    pub(crate) fn below(&self, stream: Stream, size: u64) -> impl DoubleEndedIterator<Item = &Free> {
        let bin = bin_of(size);
        let bins = self.of(stream).and_then(|blocks| blocks.bins.get(..=bin)).unwrap_or_default();
        let last = bins.last().into_iter().flat_map(move |runs| runs.before(key(size, 0)));
        bins.get(..bin).unwrap_or_default().iter().flat_map(Runs::iter).chain(last)
    }

    fn of(&self, stream: Stream) -> Option<&BySize> {
        self.streams.iter().find(|(of, _)| *of == stream).map(|(_, blocks)| blocks)
    }
}

/// Blocks of a stream, by size.
#[derive(Debug)]
struct BySize {
    bins: Vec<Runs>,
    /// Of which bins are not empty, a bit each.
    in_use: [u64; BINS / 64],
}

/// Bits of a size below its highest that choose its bin.
const BITS: u32 = 4;
/// As many as sizes of 64 bits fall into, in whole words.
const BINS: usize = 1024;

/// The bin of a size: larger sizes are in the same or a later one.
fn bin_of(size: u64) -> usize {
    let shift = (u64::BITS - (size >> BITS).leading_zeros()).saturating_sub(1);
    // below 32 a size is its own bin, and each power of two from there on has the next 16
    usize::try_from((size >> shift) + (u64::from(shift) << BITS)).unwrap_or(BINS)
}

impl BySize {
    fn new() -> BySize {
        BySize { bins: vec![Runs::default(); BINS], in_use: [0; BINS / 64] }
    }

    fn insert(&mut self, free: Free) {
        let bin = bin_of(free.size);
        if let (Some(runs), Some(word)) = (self.bins.get_mut(bin), self.in_use.get_mut(bin / 64)) {
            runs.insert(free);
            *word |= 1 << (bin % 64);
        }
    }

    fn remove(&mut self, free: &Free) {
        let bin = bin_of(free.size);
        if let (Some(runs), Some(word)) = (self.bins.get_mut(bin), self.in_use.get_mut(bin / 64)) {
            runs.remove(free);
            if runs.is_empty() {
                *word &= !(1 << (bin % 64));
            }
        }
    }

    /// The first bin from there on that is not empty.
    fn next_in_use(&self, bin: usize) -> Option<usize> {
        let (first, bit) = (bin / 64, bin % 64);
        let words = self.in_use.get(first..)?;
        let (at, word) = words.iter().enumerate().find_map(|(at, word)| {
            let word = if at == 0 { word & (u64::MAX << bit) } else { *word };
            (word != 0).then_some((first + at, word))
        })?;
        Some(at * 64 + word.trailing_zeros() as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::{Blocks, State};
    use crate::lists::ListId;
    use std::collections::BTreeMap;

    #[test]
    fn bins_are_in_the_order_of_sizes() {
        assert_eq!([0, 15, 16, 17, 31, 32, 33, 34, 64].map(bin_of), [0, 15, 16, 17, 31, 32, 32, 33, 48]);
        assert!(bin_of(u64::MAX) < BINS);
        let sizes = (0..64).flat_map(|bit| [(1u64 << bit) - 1, 1 << bit, (1 << bit) | (1 << bit >> 3)]);
        let mut sizes: Vec<u64> = sizes.collect();
        sizes.sort_unstable();
        assert!(sizes.iter().map(|size| bin_of(*size)).is_sorted());
    }

    /// Whatever is put in and taken out, it is what a sorted map of the same has.
    #[test]
    fn bins_are_as_a_map() {
        let (mut blocks, mut free, mut map) = (Blocks::new(), FreeBlocks::default(), BTreeMap::new());
        let mut random = 1u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        for address in 1..4_000 {
            // mostly of few sizes, so that bins are long
            let size = if next(5) == 0 { next(1 << 20) } else { next(40) };
            let block = Block::whole(address, size, Stream(next(3)), ListId::SMALL, State::Free);
            let id = blocks.add(block).unwrap();
            free.insert(id, &block);
            map.insert((block.stream, block.size, address), id);
            // fills at first, and then empties
            while next(4_000) < address && !map.is_empty() {
                let from = (Stream(next(3)), next(40), 0);
                let gone = map.range(from..).next().or(map.iter().next()).map(|(key, _)| *key).unwrap();
                let id = map.remove(&gone).unwrap();
                free.remove(id, &blocks[id]);
            }
            let (stream, size) = (Stream(next(3)), if next(5) == 0 { next(1 << 20) } else { next(40) });
            let ids = |range: &mut dyn Iterator<Item = (&(Stream, u64, u64), &BlockId)>| -> Vec<BlockId> {
                range.map(|(_, id)| *id).collect()
            };
            let from = ids(&mut map.range((stream, size, 0)..(Stream(stream.0 + 1), 0, 0)));
            let below = ids(&mut map.range((stream, 0, 0)..(stream, size, 0)));
            assert!(free.iter().map(|free| free.id).eq(map.values().copied()));
            assert_eq!(free.first_from(stream, size).map(|free| free.id), from.first().copied());
            assert!(free.from(stream, size).map(|free| free.id).eq(from));
            assert!(free.below(stream, size).rev().map(|free| free.id).eq(below.into_iter().rev()));
            assert!(free.streams.iter().flat_map(|(_, blocks)| &blocks.bins).all(Runs::are_short));
        }
    }
}
