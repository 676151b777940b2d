//! How PyTorch's CUDA caching allocator sizes what it hands out: the rules that a plan, a snapshot and a replay share.
//!
//! A request is rounded up ([`Rounding`]), taken from one of two [`Pool`]s, and cut from a free block of a segment
//! ([`Cut`]). Source: `c10/cuda/CUDACachingAllocator.cpp` (`round_size`, `get_allocation_size`, `should_split`) and
//! `c10/core/AllocatorConfig.h`.
//!
//! ```
//! use peakledger_core::block::{Cut, MIB, Pool, Rounding};
//!
//! let rounded = Rounding::default().round(3 * MIB + 1).unwrap();
//! assert_eq!(rounded, 3 * MIB + 512);
//! assert_eq!(Pool::of(rounded), Pool::Large);
//! assert_eq!(Cut::default().segment(rounded), Some(20 * MIB));
//! // 1 MiB or less would be left of this free block, so all of it is handed out
//! assert_eq!(Cut::default().handed_out(rounded, rounded + MIB, false), rounded + MIB);
//! ```

/// Every block is a multiple of this (`kMinBlockSize`).
pub const BLOCK: u64 = 512;
/// 2^20 bytes.
pub const MIB: u64 = 1 << 20;
/// The largest request of the small pool (`kSmallSize`).
pub const SMALL: u64 = MIB;
/// A segment of the small pool (`kSmallBuffer`).
pub const SMALL_SEGMENT: u64 = 2 * MIB;
/// A segment for requests between [`SMALL`] and [`OWN_SEGMENT`], unless `large_segment_size_mb` says another (`kLargeBuffer`).
pub const LARGE_SEGMENT: u64 = 20 * MIB;
/// A request of this and more gets a segment of its own (`kMinLargeAlloc`)…
pub const OWN_SEGMENT: u64 = 10 * MIB;
/// …of a multiple of this (`kRoundLarge`).
pub const ROUND_LARGE: u64 = 2 * MIB;
/// How many bytes a block above `max_split_size` may be larger than its request (`max_non_split_rounding_mb`).
pub const NON_SPLIT_ROUNDING: u64 = 20 * MIB;

/// Which of a device's two pools a block belongs to; they never mix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pool {
    /// Requests of [`SMALL`] bytes and less.
    Small,
    /// All others.
    Large,
}

impl Pool {
    /// The pool of a rounded request.
    pub const fn of(rounded: u64) -> Pool {
        if rounded <= SMALL { Pool::Small } else { Pool::Large }
    }
}

/// How a request is rounded up: to 512 bytes, or with `roundup_power2_divisions` to a part of a power of two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rounding {
    /// The divisions of requests of up to 2 MiB, 4 MiB, … and of 32 GiB and more; 0 is off, and so is 1: one part is no
    /// division (before that was said in `round_size`, torch took such a request unrounded).
    pub divisions: [u32; 16],
}

impl Rounding {
    /// The request rounded up, or nothing where it passes 64 bits.
    pub fn round(&self, bytes: u64) -> Option<u64> {
        if bytes < BLOCK {
            return Some(BLOCK);
        }
        let bucket = bytes.ilog2().saturating_sub(20).min(15);
        let divisions = self.divisions.get(bucket as usize).map_or(0, |divisions| u64::from(*divisions));
        if divisions > 1 && bytes > BLOCK.saturating_mul(divisions) {
            return part_of_power(bytes, divisions);
        }
        bytes.checked_next_multiple_of(BLOCK)
    }
}

/// `roundup_power2_next_division`: up to the next of so many parts between two powers of two.
fn part_of_power(bytes: u64, divisions: u64) -> Option<u64> {
    if bytes.is_power_of_two() {
        return Some(bytes);
    }
    let step = (1u64 << bytes.ilog2()) >> divisions.ilog2();
    match step {
        0 => bytes.checked_next_power_of_two(),
        step => bytes.checked_next_multiple_of(step),
    }
}

/// How blocks are cut from segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Blocks of this size and more are never cut (`max_split_size_mb`).
    pub max_split_size: u64,
    /// The segment of middling requests (`large_segment_size_mb`).
    pub large_segment: u64,
}

impl Default for Cut {
    fn default() -> Self {
        Cut { max_split_size: u64::MAX, large_segment: LARGE_SEGMENT }
    }
}

impl Cut {
    /// The segment that a rounded request asks the device for, or nothing where it passes 64 bits.
    pub fn segment(&self, rounded: u64) -> Option<u64> {
        match Pool::of(rounded) {
            Pool::Small => Some(SMALL_SEGMENT),
            Pool::Large if rounded < OWN_SEGMENT => Some(self.large_segment),
            Pool::Large => rounded.checked_next_multiple_of(ROUND_LARGE),
        }
    }

    /// What of a free block is handed out for a rounded request: the request where the rest is worth keeping, else all.
    pub fn handed_out(&self, rounded: u64, free: u64, expandable: bool) -> u64 {
        let rest = free.saturating_sub(rounded);
        let cut = match Pool::of(rounded) {
            Pool::Small => rest >= BLOCK,
            Pool::Large if expandable => rest >= BLOCK,
            Pool::Large => rounded < self.max_split_size && rest > SMALL,
        };
        if cut { rounded } else { free }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_round_to_512_bytes() {
        let round = |bytes| Rounding::default().round(bytes);
        assert_eq!([0, 1, 512, 513].map(round), [Some(512), Some(512), Some(512), Some(1024)]);
        assert_eq!(round(u64::MAX), None);
    }

    #[test]
    fn divisions_of_powers_of_two() {
        // c10/cuda/CUDAAllocatorConfig.h: 1200 with 4 divisions lies between 1024 and 2048, steps of 256
        let four = Rounding { divisions: [4; 16] };
        assert_eq!(four.round(1200 << 10), Some(1280 << 10));
        assert_eq!(four.round(1024 << 10), Some(1024 << 10), "a power of two stays");
        assert_eq!(
            four.round(2048),
            Some(2048),
            "512 bytes a division is not more than 512 bytes a division"
        );
        let mut only_large = Rounding::default();
        only_large.divisions[15] = 2;
        assert_eq!(only_large.round(33 << 30), Some(48 << 30), "the last bucket holds all above");
        assert_eq!(only_large.round((1 << 20) + 1), Some((1 << 20) + 512));
        assert_eq!(Rounding { divisions: [1; 16] }.round(1025), Some(1536), "one division is none");
    }

    #[test]
    fn segments_and_cuts() {
        let cut = Cut::default();
        assert_eq!(
            [512, MIB, MIB + 512, 10 * MIB, 11 * MIB].map(|n| cut.segment(n).map(|n| n / MIB)),
            [Some(2), Some(2), Some(20), Some(10), Some(12)]
        );
        assert_eq!(cut.handed_out(1024, 1536, false), 1024, "a small block is cut where 512 bytes are left");
        assert_eq!(
            cut.handed_out(2 * MIB, 3 * MIB, false),
            3 * MIB,
            "a large one only where more than 1 MiB is left"
        );
        assert_eq!(cut.handed_out(2 * MIB, 3 * MIB, true), 2 * MIB, "an expandable one as a small one");
        let never = Cut { max_split_size: 2 * MIB, ..cut };
        assert_eq!(never.handed_out(2 * MIB, 30 * MIB, false), 30 * MIB);
    }
}
