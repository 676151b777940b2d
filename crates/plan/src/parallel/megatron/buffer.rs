//! `_ParamAndGradBuffer` (`megatron/core/distributed/param_and_grad_buffer.py`): the gradients of all parameters side by side,
//! and under the distributed optimizer the parameters too, both cut into equal parts for the ranks that share them out.
//!
//! Parameters lie in the reverse of the order in which they were made. Under the distributed optimizer each begins at a multiple
//! of 64 numbers, and the whole is padded to a multiple of 128 that the ranks divide. Without `--overlap-grad-reduce` there is
//! one bucket.

use std::ops::Range;

/// Where parameters lie in a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Buffer {
    /// One a parameter, in the order in which they were made.
    places: Vec<Range<u64>>,
    /// Numbers in the buffer.
    pub(crate) numel: u64,
    ranks: u64,
}

impl Buffer {
    /// A buffer for parameters of so many numbers each; `ranks` share it out, if any do.
    pub(crate) fn new(sizes: &[u64], ranks: Option<u32>) -> Buffer {
        let [start, end] = match ranks {
            None => [1, 1],
            Some(ranks) => [64, least_common_multiple(ranks.into(), 128)],
        };
        let mut next: u64 = 0;
        let place = |size: &u64| {
            let from = next.next_multiple_of(start);
            next = from.saturating_add(*size);
            from..next
        };
        let mut places: Vec<Range<u64>> = sizes.iter().rev().map(place).collect();
        places.reverse();
        let numel = if next > u64::MAX - end { next } else { next.next_multiple_of(end) };
        Buffer { places, numel, ranks: ranks.map_or(1, u64::from) }
    }

    /// Of each parameter, how many numbers lie in a rank's part.
    pub(crate) fn part_of(&self, rank: u32) -> impl Iterator<Item = u64> {
        let part = self.numel / self.ranks;
        let from = part.saturating_mul(rank.into());
        let to = from.saturating_add(part);
        self.places.iter().map(move |place| place.end.min(to).saturating_sub(place.start.max(from)))
    }
}

fn least_common_multiple(a: u64, b: u64) -> u64 {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    (a / x.max(1)).saturating_mul(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By pencil: 10, 100 and 1000 numbers, laid from the last to the first.
    #[test]
    fn parameters_lie_from_last_to_first() {
        let plain = Buffer::new(&[10, 100, 1000], None);
        assert_eq!(plain.places, [1100..1110, 1000..1100, 0..1000]);
        assert_eq!((plain.numel, plain.part_of(0).collect::<Vec<_>>()), (1110, vec![10, 100, 1000]));
        let shared = Buffer::new(&[10, 100, 1000], Some(2));
        assert_eq!(shared.places, [1152..1162, 1024..1124, 0..1000]);
        assert_eq!(shared.numel, 1280, "a multiple of 128, which 2 divides");
        assert_eq!(shared.part_of(0).collect::<Vec<_>>(), [0, 0, 640]);
        assert_eq!(shared.part_of(1).collect::<Vec<_>>(), [10, 100, 360]);
    }

    #[test]
    fn every_number_is_some_ranks() {
        for ranks in [1, 2, 3, 5, 8] {
            let sizes = [7, 129, 4096, 64, 1];
            let buffer = Buffer::new(&sizes, Some(ranks));
            assert_eq!(buffer.numel % u64::from(ranks), 0);
            assert_eq!(buffer.numel % 128, 0);
            let parts = (0..ranks).map(|rank| buffer.part_of(rank).collect::<Vec<_>>());
            let sums = parts.fold(vec![0; sizes.len()], |sums: Vec<u64>, part| {
                sums.iter().zip(part).map(|(sum, part)| sum + part).collect()
            });
            assert_eq!(sums, sizes);
        }
    }
}
