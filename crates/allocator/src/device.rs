//! What the allocator asks the driver for: whole segments and pages, at addresses that the driver chooses.

/// The driver's side of a GPU. Addresses are bytes; sizes are multiples of 2 MiB.
pub trait Device {
    /// All the memory that the card has (`totalGlobalMem`), where it is known: memory fractions are parts of it.
    fn total(&self) -> Option<u64>;

    /// What is free on the card, where it is known (`cudaMemGetInfo`).
    fn unused(&self) -> Option<u64>;

    /// A segment (`cudaMalloc`): its address, or nothing where there is no room.
    fn malloc(&mut self, bytes: u64) -> Option<u64>;

    /// Gives a segment back (`cudaFree`).
    fn free(&mut self, address: u64, bytes: u64);

    /// A range of addresses with nothing behind them (`cuMemAddressReserve`).
    fn reserve(&mut self, bytes: u64) -> u64;

    /// Puts memory behind a part of a range (`cuMemCreate`, `cuMemMap`); false where there is no room, and then nothing
    /// is changed.
    fn map(&mut self, address: u64, bytes: u64) -> bool;

    /// Takes it away again (`cuMemUnmap`, `cuMemRelease`).
    fn unmap(&mut self, address: u64, bytes: u64);

    /// Gives a range of addresses back (`cuMemAddressFree`).
    fn release(&mut self, address: u64, bytes: u64);
}

/// A card whose addresses only ever grow: what a driver does from an empty card on, until memory is given back.
#[derive(Clone, Debug)]
pub struct Card {
    total: Option<u64>,
    outside: u64,
    used: u64,
    next: u64,
}

/// Where the first segment lies: low enough that no address is ever the last, and never null.
const FIRST: u64 = 1 << 32;

impl Card {
    /// A card that never runs out.
    pub const fn unlimited() -> Card {
        Card { total: None, outside: 0, used: 0, next: FIRST }
    }

    /// A card of so many bytes, of which some are taken by what no caching allocator hands out (the CUDA context, other
    /// processes).
    pub const fn of(total: u64, outside: u64) -> Card {
        Card { total: Some(total), outside, used: 0, next: FIRST }
    }

    /// The same card with segments on it that lie below `end`, `used` bytes in all.
    #[must_use]
    pub const fn holding(mut self, used: u64, end: u64) -> Card {
        self.used = used;
        self.next = if end > self.next { end } else { self.next };
        self
    }

    fn take(&mut self, bytes: u64) -> Option<()> {
        if self.unused().is_some_and(|unused| bytes > unused) {
            return None;
        }
        self.used = self.used.checked_add(bytes)?;
        Some(())
    }

    fn give(&mut self, bytes: u64) {
        self.used = self.used.saturating_sub(bytes);
    }

    fn address(&mut self, bytes: u64) -> u64 {
        let address = self.next;
        self.next = self.next.saturating_add(bytes);
        address
    }
}

impl Device for Card {
    fn total(&self) -> Option<u64> {
        self.total
    }

    fn unused(&self) -> Option<u64> {
        self.total.map(|total| total.saturating_sub(self.outside).saturating_sub(self.used))
    }

    fn malloc(&mut self, bytes: u64) -> Option<u64> {
        self.take(bytes)?;
        Some(self.address(bytes))
    }

    fn free(&mut self, _address: u64, bytes: u64) {
        self.give(bytes);
    }

    fn reserve(&mut self, bytes: u64) -> u64 {
        self.address(bytes)
    }

    fn map(&mut self, _address: u64, bytes: u64) -> bool {
        self.take(bytes).is_some()
    }

    fn unmap(&mut self, _address: u64, bytes: u64) {
        self.give(bytes);
    }

    fn release(&mut self, _address: u64, _bytes: u64) {}
}
