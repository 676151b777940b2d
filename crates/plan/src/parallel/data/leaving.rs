//! Which ranks need most while gradients leave for the host under ZeRO 1: backward has ended, all of them are there, and they go
//! bucket by bucket from the first parameter on. All ranks hold the same then, but for what each makes of its own pieces.

use super::parts::{Parts, Share, are_of_several};
use crate::torch::Dtype;
use crate::torch::tape::rounded;
use peakledger_core::block::BLOCK;

/// How gradients go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leaving {
    /// Numbers of a bucket.
    pub(crate) bucket: u64,
    /// Bytes of a number of the gradients.
    pub(crate) width: u64,
    /// Bytes of a number of the weights that are stepped on the host.
    pub(crate) stepped: u64,
}

impl Leaving {
    /// The ranks of which no other needs as much, neither while gradients go nor for the norms that stay until they are stepped.
    pub(crate) fn that_may_need_most(self, parts: &Parts) -> Vec<u32> {
        let held_by_all = self.held_by_all(parts);
        let mut found: Vec<(u32, [u64; 2])> = Vec::new();
        for rank in parts.alike().into_iter().map(|run| run.start) {
            let share = parts.share(rank);
            let norms = u64::try_from(share.of.len()).unwrap_or(u64::MAX).saturating_mul(BLOCK);
            let needs = [self.peak(&share, &held_by_all), norms];
            let is_less = |other: &[u64; 2]| needs.iter().zip(other).all(|(mine, theirs)| mine <= theirs);
            if !found.iter().any(|(_, other)| is_less(other)) {
                found.push((rank, needs));
            }
        }
        found.into_iter().map(|(rank, _)| rank).collect()
    }

    /// Of each parameter, what every rank holds as its bucket is taken apart: the gradients that are not in a bucket yet, one that
    /// is larger than a bucket, and the bucket side by side once more where it is of several ranks.
    fn held_by_all(self, parts: &Parts) -> Vec<u64> {
        let places = parts.all();
        let sizes: Vec<u64> = places.iter().map(|place| place.end.saturating_sub(place.start)).collect();
        let bytes = |numbers: u64| rounded(numbers.saturating_mul(self.width));
        let mut left = sizes.iter().map(|size| bytes(*size)).fold(0, u64::saturating_add);
        let mut held = Vec::with_capacity(places.len());
        let (mut places, mut sizes) = (places, sizes.as_slice());
        while !places.is_empty() {
            let together = self.in_a_bucket(sizes);
            let ((bucket, places_left), (of_bucket, sizes_left)) =
                (places.split_at(together), sizes.split_at(together));
            let freed = of_bucket.iter().map(|size| bytes(*size)).fold(0, u64::saturating_add);
            let numbers = of_bucket.iter().copied().fold(0, u64::saturating_add);
            let is_large = numbers > self.bucket;
            let of_several = are_of_several(bucket.iter(), parts.numbers(), false);
            let side_by_side = if of_several { bytes(numbers) } else { 0 };
            let now = if is_large { left } else { left.saturating_sub(freed) };
            held.extend(bucket.iter().map(|_| now.saturating_add(side_by_side)));
            left = left.saturating_sub(freed);
            (places, sizes) = (places_left, sizes_left);
        }
        held
    }

    /// How many of the next gradients go together: as many as a bucket has room for, and one at least.
    fn in_a_bucket(self, sizes: &[u64]) -> usize {
        let mut sum = 0u64;
        let fits = |size: &&u64| {
            sum = sum.saturating_add(**size);
            sum <= self.bucket
        };
        sizes.iter().take_while(fits).count().clamp(1, sizes.len().max(1))
    }

    /// The most that a rank holds above what no rank does without: each of its pieces is looked at in fp64, which leaves a norm
    /// behind, and raised to the type in which it is stepped.
    fn peak(self, share: &Share, held_by_all: &[u64]) -> u64 {
        let mut norms = 0u64;
        let mut peak = 0;
        for (index, held) in &share.of {
            let in_fp64 = rounded(held.saturating_mul(Dtype::F64.width()));
            let raised =
                if self.stepped == self.width { 0 } else { rounded(held.saturating_mul(self.stepped)) };
            let of_all = held_by_all.get(*index).copied().unwrap_or_default();
            norms = norms.saturating_add(BLOCK);
            let own = norms.saturating_add(in_fp64.max(raised));
            peak = peak.max(of_all.saturating_add(own));
        }
        peak
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1000 + 300 + 700 numbers of 4 bytes over five ranks are parts of 400. A bucket of 1000 takes the first gradient, then the
    /// two others. Ranks 0 and 1 have 400 numbers of the first, rank 2 has 200 of it and 200 of the second, so one more norm.
    #[test]
    fn who_takes_most_first_needs_most() {
        let parts = Parts::of([1000, 300, 700], 5);
        let leaving = Leaving { bucket: 1000, width: 4, stepped: 4 };
        // 4096 of the first, 1536 and 3072 of the others; the first bucket and the second are of several ranks
        assert_eq!(leaving.held_by_all(&parts), [1536 + 3072 + 4096, 4096, 4096]);
        assert_eq!(leaving.peak(&parts.share(0), &leaving.held_by_all(&parts)), 8704 + 512 + 3584);
        assert_eq!(leaving.that_may_need_most(&parts), [0, 2]);
    }

    /// What no bucket has room for goes by itself, and is there until it has gone: 400, 12000 and 400 bytes in blocks, of which the
    /// second is of both ranks.
    #[test]
    fn a_large_gradient_stays_while_it_goes() {
        let parts = Parts::of([100, 3000, 100], 2);
        let leaving = Leaving { bucket: 1000, width: 4, stepped: 4 };
        assert_eq!(leaving.held_by_all(&parts), [12_288 + 512, 12_288 + 512 + 12_288, 0]);
        assert_eq!(leaving.that_may_need_most(&parts), [0]);
    }
}
