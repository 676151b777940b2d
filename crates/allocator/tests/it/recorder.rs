//! A small card that writes down what it is asked for, and places segments in no order.

use peakledger_allocator::{Card, Device};

/// What a device was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Malloc(u64, u64),
    Free(u64, u64),
    Reserve(u64, u64),
    Map(u64, u64),
    Unmap(u64, u64),
    Release(u64, u64),
}

#[derive(Clone, Debug)]
pub(crate) struct Recorder {
    card: Card,
    scattered: bool,
    count: u64,
    pub(crate) asked: Vec<Asked>,
}

impl Recorder {
    pub(crate) fn new(total: u64, scattered: bool) -> Recorder {
        Recorder { card: Card::of(total, 0), scattered, count: 0, asked: Vec::new() }
    }

    /// Addresses that are far apart, and mostly not the next larger one.
    fn placed(&mut self, address: u64) -> u64 {
        self.count += 1;
        if self.scattered { (self.count * 7919 % 8191 + 1) << 40 } else { address }
    }
}

impl Device for Recorder {
    fn total(&self) -> Option<u64> {
        self.card.total()
    }

    fn unused(&self) -> Option<u64> {
        self.card.unused()
    }

    fn malloc(&mut self, bytes: u64) -> Option<u64> {
        let address = self.card.malloc(bytes)?;
        let address = self.placed(address);
        self.asked.push(Asked::Malloc(address, bytes));
        Some(address)
    }

    fn free(&mut self, address: u64, bytes: u64) {
        self.card.free(address, bytes);
        self.asked.push(Asked::Free(address, bytes));
    }

    fn reserve(&mut self, bytes: u64) -> Option<u64> {
        let address = self.card.reserve(bytes)?;
        let address = self.placed(address);
        self.asked.push(Asked::Reserve(address, bytes));
        Some(address)
    }

    fn map(&mut self, address: u64, bytes: u64) -> bool {
        let mapped = self.card.map(address, bytes);
        if mapped {
            self.asked.push(Asked::Map(address, bytes));
        }
        mapped
    }

    fn unmap(&mut self, address: u64, bytes: u64) {
        self.card.unmap(address, bytes);
        self.asked.push(Asked::Unmap(address, bytes));
    }

    fn release(&mut self, address: u64, bytes: u64) {
        self.card.release(address, bytes);
        self.asked.push(Asked::Release(address, bytes));
    }
}
