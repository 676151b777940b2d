//! How the bytes of a device ran over its events, at their largest in each stretch, in so few stretches that they can be
//! drawn: whatever the length of a recording, it is kept in one pass and in a few kilobytes.

use std::ops::Range;

/// The most stretches; twice as many as a terminal has columns.
const MOST: usize = 256;

/// What was held at the most: each of the two at its own largest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// Allocated bytes: blocks in use.
    pub allocated: u64,
    /// Bytes that the allocator holds from the driver; 0 where that is not told.
    pub reserved: u64,
}

impl Level {
    fn or(self, other: Level) -> Level {
        Level { allocated: self.allocated.max(other.allocated), reserved: self.reserved.max(other.reserved) }
    }
}

/// Levels over moments: moment 0 is before the first event, moment n after n events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Levels {
    stretches: Vec<Level>,
    /// How many moments a stretch has.
    each: u32,
    /// How many moments the last one still takes.
    room: u32,
    moments: u32,
}

impl Levels {
    /// Forgets what it saw, and sees where it starts.
    pub(crate) fn start(&mut self, at: Level) {
        self.stretches.clear();
        (self.each, self.room, self.moments) = (1, 0, 0);
        self.see(at);
    }

    /// Sees the next moment.
    #[inline]
    pub(crate) fn see(&mut self, now: Level) {
        if self.room == 0 {
            if self.stretches.len() == MOST {
                self.halve();
            }
            self.stretches.push(Level::default());
            self.room = self.each;
        }
        if let Some(last) = self.stretches.last_mut() {
            *last = last.or(now);
        }
        self.room -= 1;
        self.moments = self.moments.saturating_add(1);
    }

    /// Puts each two stretches together.
    fn halve(&mut self) {
        let together = |pair: &[Level]| pair.iter().fold(Level::default(), |sum, level| sum.or(*level));
        self.stretches = self.stretches.chunks(2).map(together).collect();
        self.each = self.each.saturating_mul(2);
    }

    /// How many moments there are.
    pub fn moments(&self) -> u32 {
        self.moments
    }

    /// The largest of the stretches that these moments lie in.
    pub fn largest(&self, moments: Range<u32>) -> Level {
        let each = self.each.max(1);
        let (first, end) = (moments.start / each, moments.end.div_ceil(each));
        let wanted = self.stretches.iter().take(end as usize).skip(first as usize);
        wanted.fold(Level::default(), |most, level| most.or(*level))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn seen(of: &[(u64, u64)]) -> Levels {
        let mut levels = Levels::default();
        for (at, (allocated, reserved)) in of.iter().enumerate() {
            let level = Level { allocated: *allocated, reserved: *reserved };
            if at == 0 { levels.start(level) } else { levels.see(level) }
        }
        levels
    }

    proptest! {
        #[test]
        fn nothing_is_lost_between_stretches(of in prop::collection::vec((0u64..99, 0u64..99), 1..3000), cut in 0u32..3000) {
            let levels = seen(&of);
            let all = u32::try_from(of.len()).unwrap();
            prop_assert_eq!(levels.moments(), all);
            prop_assert!(levels.stretches.len() <= MOST);
            let cut = cut.min(all);
            let parts = levels.largest(0..cut).or(levels.largest(cut..all));
            let most = |which: fn(&(u64, u64)) -> u64| of.iter().map(which).max().unwrap_or(0);
            prop_assert_eq!(parts, Level { allocated: most(|l| l.0), reserved: most(|l| l.1) });
        }

        #[test]
        fn few_moments_are_told_apart(of in prop::collection::vec((0u64..99, 0u64..99), 1..256)) {
            let levels = seen(&of);
            for (at, (allocated, reserved)) in (0u32..).zip(&of) {
                prop_assert_eq!(levels.largest(at..at + 1), Level { allocated: *allocated, reserved: *reserved });
            }
        }
    }
}
