//! Which numbers of a model's parameters each rank steps under ZeRO 1 and 2. Parameters lie side by side, and each rank has an
//! equal part of all of it (`deepspeed/runtime/zero/stage_1_and_2.py`, 0.19): what of which parameter that is differs from
//! rank to rank, and so does what a rank keeps of the gradients.

use crate::torch::Dtype;
use peakledger_core::block::BLOCK;
use std::ops::Range;

/// Parameters side by side, cut into equal parts.
#[derive(Clone, Debug)]
pub(crate) struct Parts {
    ranges: Vec<Range<u64>>,
    numbers: u64,
    ranks: u32,
}

/// How a rank keeps whole gradients of all that its part is of, from the first of them on until the update.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keeping {
    /// Whether gradients are shared out as backward makes them (stage 2), the last parameter's first, and not from the first
    /// parameter on.
    pub(crate) last_comes_first: bool,
    /// Bytes of a number.
    pub(crate) width: u64,
}

/// What a rank's part is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Share {
    /// The parameters, and how many numbers of each.
    pub(super) of: Vec<(usize, u64)>,
}

impl Parts {
    /// Parameters of so many numbers each, for so many ranks.
    pub(crate) fn of(sizes: impl IntoIterator<Item = u64>, ranks: u32) -> Parts {
        let mut end = 0u64;
        let range = |size: u64| {
            let start = end;
            end = end.saturating_add(size);
            start..end
        };
        let ranges = sizes.into_iter().map(range).collect();
        // to a multiple of 4 bytes a rank (`nccl_start_alignment_factor`)
        let numbers = end.div_ceil(2 * u64::from(ranks.max(1))).saturating_mul(2);
        Parts { ranges, numbers, ranks }
    }

    /// Numbers of a part.
    pub(super) fn numbers(&self) -> u64 {
        self.numbers
    }

    /// Each parameter's place.
    pub(super) fn all(&self) -> &[Range<u64>] {
        &self.ranges
    }

    /// Each parameter's place, with the numbers of it in a rank's part.
    pub(super) fn places(&self, rank: u32) -> impl Iterator<Item = (Range<u64>, u64)> + '_ {
        let part = self.part(rank);
        self.ranges.iter().map(move |place| (place.clone(), both(place, &part)))
    }

    fn part(&self, rank: u32) -> Range<u64> {
        let start = self.numbers.saturating_mul(rank.into());
        start..start.saturating_add(self.numbers)
    }

    pub(super) fn share(&self, rank: u32) -> Share {
        let part = self.part(rank);
        let first = self.ranges.partition_point(|place| place.end <= part.start);
        let held =
            (first..).zip(self.ranges.iter().skip(first)).take_while(|(_, place)| place.start < part.end);
        Share {
            of: held
                .map(|(index, place)| (index, both(place, &part)))
                .filter(|(_, held)| *held > 0)
                .collect(),
        }
    }

    /// Neighbours that have as much of the same parameters, all ranks in such runs: they do the same.
    pub(crate) fn alike(&self) -> Vec<Range<u32>> {
        let mut runs = Vec::new();
        let mut rank = 0;
        while rank < self.ranks {
            let part = self.part(rank);
            let first = self.ranges.partition_point(|place| place.end <= part.start);
            let end = match self.ranges.get(first) {
                // all within one parameter, as those after it are up to its end
                Some(place) if part.end <= place.end => {
                    u32::try_from(place.end / self.numbers.max(1)).unwrap_or(u32::MAX)
                }
                Some(_) => rank.saturating_add(1),
                None => self.ranks,
            };
            runs.push(rank..end);
            rank = end;
        }
        runs
    }

    /// The first ranks of runs of which no other keeps as much from as early on: first those that keep something first.
    pub(crate) fn that_may_need_most(&self, keeping: Keeping) -> Vec<u32> {
        let mut found: Vec<(u32, [u64; 4])> = Vec::new();
        let mut look = |run: &Range<u32>| {
            let rank = run.start;
            let keeps = self.keeps(&self.share(rank), keeping);
            let is_less = |other: &[u64; 4]| keeps.iter().zip(other).all(|(mine, theirs)| mine <= theirs);
            if !found.iter().any(|(_, other)| is_less(other)) {
                found.push((rank, keeps));
            }
        };
        let runs = self.alike();
        match keeping.last_comes_first {
            true => runs.iter().rev().for_each(&mut look),
            false => runs.iter().for_each(&mut look),
        }
        found.into_iter().map(|(rank, _)| rank).collect()
    }

    /// What a rank keeps, as measures none of which another may exceed that needs no more.
    fn keeps(&self, share: &Share, keeping: Keeping) -> [u64; 4] {
        let size = |index: usize| self.ranges.get(index).map_or(0, |place| place.end - place.start);
        let sum = |numbers: u64, more: u64| numbers.saturating_add(more);
        let whole = share.of.iter().map(|(index, _)| size(*index)).fold(0, sum);
        let held = share.of.iter().map(|(_, held)| *held).fold(0, sum);
        let largest = share.of.iter().map(|(_, held)| *held).max().unwrap_or(0);
        let padding = self.numbers.saturating_sub(held);
        let pieces = u64::try_from(share.of.len()).unwrap_or(u64::MAX);
        // until all is one piece, with a scalar of a block for the norm of each piece, and less than that for all together
        let before = sum(whole, padding)
            .saturating_mul(keeping.width)
            .saturating_add(pieces.saturating_mul(2 * BLOCK));
        // and the largest in fp64
        let in_norm = before.saturating_add(largest.saturating_mul(Dtype::F64.width()));
        [whole, before, in_norm, u64::from(pieces > 1 || padding > 0)]
    }
}

/// Whether several ranks have something of these places, with parts of so many numbers; or one has, of several places, where
/// that counts too.
pub(super) fn are_of_several<'a>(
    places: impl Iterator<Item = &'a Range<u64>>,
    numbers: u64,
    counts_pieces: bool,
) -> bool {
    let numbers = numbers.max(1);
    let mut ranks = places.flat_map(|place| {
        let last = place.end.saturating_sub(1).max(place.start);
        place.start / numbers..(last / numbers).saturating_add(1)
    });
    ranks.next().is_some_and(|first| ranks.any(|rank| counts_pieces || rank != first))
}

/// How many numbers are in both.
fn both(place: &Range<u64>, part: &Range<u64>) -> u64 {
    place.end.min(part.end).saturating_sub(place.start.max(part.start))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 10 + 3 + 7 numbers over five ranks are parts of 4: of the first parameter alone, twice; of its end and of the second; of
    /// the second's end and of the third; of the third alone.
    #[test]
    fn ranks_whose_parts_lie_in_the_same_parameters_are_alike() {
        let parts = Parts::of([10, 3, 7], 5);
        let held = |rank| parts.places(rank).map(|(_, held)| held).collect::<Vec<_>>();
        assert_eq!((parts.numbers(), held(2), held(3)), (4, vec![2, 2, 0], vec![0, 1, 3]));
        assert_eq!(parts.alike(), [0..2, 2..3, 3..4, 4..5]);
    }

    /// Whole gradients of 10, 10, 13, 10 and 7 numbers are kept: backward makes those of the fifth, of the fourth and of the
    /// third first, each larger than those before; the others are smaller and later. From the first parameter on, the fourth keeps
    /// less than the third, but a larger piece than it.
    #[test]
    fn who_keeps_less_and_later_needs_less() {
        let parts = Parts::of([10, 3, 7], 5);
        let of = |last_comes_first| Keeping { last_comes_first, width: 2 };
        assert_eq!(parts.that_may_need_most(of(true)), [4, 3, 2]);
        assert_eq!(parts.that_may_need_most(of(false)), [0, 2, 3]);
    }

    #[test]
    fn what_is_past_the_parameters_is_padding() {
        let parts = Parts::of([3], 4);
        assert_eq!(parts.numbers(), 2);
        assert_eq!(parts.alike(), [0..1, 1..2, 2..4]);
        assert_eq!(Parts::of([], 3).alike(), std::slice::from_ref(&(0..3)));
    }

    /// Runs are found by their ends; each rank's share says the same one by one.
    #[test]
    fn runs_are_what_each_share_says() {
        let sizes: [&[u64]; 5] = [&[100], &[1; 30], &[0, 7, 0, 64, 0, 0, 9], &[33, 1, 33], &[0, 0]];
        for (sizes, ranks) in sizes.iter().flat_map(|sizes| (1..40).map(move |ranks| (sizes, ranks))) {
            let parts = Parts::of(sizes.iter().copied(), ranks);
            let mut by_rank: Vec<Range<u32>> = Vec::new();
            for rank in 0..ranks {
                match by_rank.last_mut().filter(|run| parts.share(run.start) == parts.share(rank)) {
                    Some(run) => run.end = rank + 1,
                    None => by_rank.push(rank..rank + 1),
                }
            }
            assert_eq!(parts.alike(), by_rank, "{sizes:?} over {ranks}");
        }
    }
}
