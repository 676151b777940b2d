//! The blocks in use: found by address in one step, and in the order of addresses where that is asked for.

use crate::replay::Live;
use hashbrown::HashMap;
use std::collections::BTreeSet;
use std::ops::Range;

/// Blocks by address. Most questions are for one address; only what lies next needs the order.
#[derive(Clone, Debug, Default)]
pub(crate) struct InUse {
    blocks: HashMap<u64, Live>,
    addresses: BTreeSet<u64>,
}

impl InUse {
    /// Puts a block there; the one that was there, if one was.
    pub(crate) fn insert(&mut self, live: Live) -> Option<Live> {
        let before = self.blocks.insert(live.address, live);
        if before.is_none() {
            self.addresses.insert(live.address);
        }
        before
    }

    /// Takes the block away that begins there.
    pub(crate) fn remove(&mut self, address: u64) -> Option<Live> {
        let block = self.blocks.remove(&address)?;
        self.addresses.remove(&address);
        Some(block)
    }

    /// The block that begins there.
    pub(crate) fn get(&self, address: u64) -> Option<&Live> {
        self.blocks.get(&address)
    }

    /// The block that begins there.
    pub(crate) fn get_mut(&mut self, address: u64) -> Option<&mut Live> {
        self.blocks.get_mut(&address)
    }

    /// Where the next block after an address begins.
    pub(crate) fn next_after(&self, address: u64) -> Option<u64> {
        self.addresses.range(address.checked_add(1)?..).next().copied()
    }

    /// All of them, by address.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Live> {
        self.addresses.iter().filter_map(|address| self.blocks.get(address))
    }

    /// Those that begin between two addresses, in their order.
    pub(crate) fn between(&self, range: Range<u64>) -> impl Iterator<Item = &Live> {
        self.addresses.range(range).filter_map(|address| self.blocks.get(address))
    }
}
