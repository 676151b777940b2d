//! The devices that scripts run on: a card of which the size is known, and the one that a trace was recorded on.

use peakledger_allocator::{Card, Device};
use std::collections::VecDeque;

/// A device that a script runs on.
pub(crate) trait Board: Device {
    /// Whether it is the one that the script was recorded on, so that it has room where that one had and no other.
    fn is_the_one_recorded(&self) -> bool {
        false
    }

    /// What comes next did find no room where it was recorded; or that is over.
    fn refuse(&mut self, _refuse: bool) {}
}

impl Board for Card {}

/// What a device gave, as its trace has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Given {
    /// A segment (`segment_alloc`).
    Segment { address: u64, bytes: u64 },
    /// Pages (`segment_map`).
    Pages { address: u64, bytes: u64 },
}

/// The device that a trace was recorded on: it gives what it gave then. Where it is asked for anything else, the replay has
/// left the trace, and it gives something of its own and counts that.
#[derive(Clone, Debug)]
pub(crate) struct Recorded {
    given: VecDeque<Given>,
    /// What it was given back.
    back: VecDeque<Given>,
    /// How often it gave, or was given back, what the trace has.
    pub(crate) matched: u64,
    /// How often it was asked for something else.
    pub(crate) strayed: u64,
    refuses: bool,
    own: Card,
}

impl Recorded {
    pub(crate) fn new(given: VecDeque<Given>, back: VecDeque<Given>) -> Recorded {
        Recorded { given, back, matched: 0, strayed: 0, refuses: false, own: Card::unlimited().holding(0) }
    }

    /// What the trace has and the replay never asked for.
    pub(crate) fn left_over(&self) -> usize {
        self.given.len() + self.back.len()
    }

    fn take_back(&mut self, given: Given) {
        if self.back.front() == Some(&given) {
            self.back.pop_front();
            self.matched += 1;
        } else {
            self.strayed += 1;
        }
    }
}

impl Device for Recorded {
    fn total(&self) -> Option<u64> {
        None
    }

    fn unused(&self) -> Option<u64> {
        None
    }

    fn malloc(&mut self, asked: u64) -> Option<u64> {
        if self.refuses {
            return None;
        }
        match self.given.front() {
            Some(Given::Segment { address, bytes }) if *bytes == asked => {
                let address = *address;
                self.given.pop_front();
                self.matched += 1;
                Some(address)
            }
            _ => {
                self.strayed += 1;
                self.own.malloc(asked)
            }
        }
    }

    fn free(&mut self, address: u64, bytes: u64) {
        self.take_back(Given::Segment { address, bytes });
    }

    fn reserve(&mut self, bytes: u64) -> Option<u64> {
        match self.given.front() {
            // the first pages of a range are mapped at its start
            Some(Given::Pages { address, .. }) if !self.refuses => Some(*address),
            _ => self.own.reserve(bytes),
        }
    }

    fn map(&mut self, at: u64, asked: u64) -> bool {
        if self.given.front() == Some(&Given::Pages { address: at, bytes: asked }) {
            self.given.pop_front();
            self.matched += 1;
            return true;
        }
        self.strayed += u64::from(!self.refuses);
        !self.refuses
    }

    fn unmap(&mut self, address: u64, bytes: u64) {
        self.take_back(Given::Pages { address, bytes });
    }

    fn release(&mut self, _address: u64, _bytes: u64) {}
}

impl Board for Recorded {
    fn is_the_one_recorded(&self) -> bool {
        true
    }

    fn refuse(&mut self, refuse: bool) {
        self.refuses = refuse;
    }
}
