//! The account of one device: what was there before the trace, what came and went, and what stood at the peak.

use super::origin::Origin;
use super::record::{Faults, Memory};
use std::collections::HashMap;

/// A piece of memory with the events that took it and gave it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    /// The event that takes it; none for what is older than the trace.
    pub(super) born: Option<u32>,
    /// The event that gives it back; none for what outlives the trace.
    pub(super) died: Option<u32>,
    pub(super) bytes: u64,
    pub(super) origin: Origin,
    /// Whether it is not one block but all that is only known as a sum.
    pub(super) is_rest: bool,
}

impl Block {
    /// Whether it is there after an event; with none, before the first.
    pub(super) fn stands(&self, after: Option<u32>) -> bool {
        self.born <= after && self.died.is_none_or(|died| Some(died) > after)
    }
}

/// The account of one device.
#[derive(Debug, Default)]
pub(super) struct Account {
    pub(super) blocks: Vec<Block>,
    /// The bytes after each event.
    pub(super) levels: Vec<u64>,
    /// The bytes before the first.
    pub(super) opening: u64,
    /// Whether torch told the opening; else it is the least that it can have been.
    pub(super) opening_is_told: bool,
    /// All that was ever taken.
    pub(super) taken: u128,
    /// How often torch's own count moves otherwise than the events.
    pub(super) astray: usize,
    /// Whether frees tell which block they give back.
    pub(super) has_addresses: bool,
}

/// Adds the events of a device up, which come in the order of time with their origins.
///
/// # Errors
/// The event after which the sum passes 64 bits.
pub(super) fn account(events: &[(Memory, Origin)], faults: &mut Faults) -> Result<Account, u32> {
    let mut account = Account {
        has_addresses: events.iter().any(|(event, _)| event.address.is_some()),
        ..Account::default()
    };
    account.match_blocks(events, faults);
    account.add_up(events)?;
    Ok(account)
}

impl Account {
    /// Finds for each free what it gives back: by address, or in old traces, which have none, the latest block of its size.
    fn match_blocks(&mut self, events: &[(Memory, Origin)], faults: &mut Faults) {
        let mut live: HashMap<u64, Vec<usize>> = HashMap::new();
        let key = |event: &Memory| {
            if self.has_addresses { event.address.unwrap_or(0) } else { event.bytes.unsigned_abs() }
        };
        for (number, (event, origin)) in (0u32..).zip(events) {
            let there = live.entry(key(event)).or_default();
            let bytes = event.bytes.unsigned_abs();
            if event.bytes >= 0 {
                self.taken += u128::from(bytes);
                if self.has_addresses
                    && let Some(block) = there.pop().and_then(|at| self.blocks.get_mut(at))
                {
                    faults.count("blocks taken where one still was, whose free is not in the trace", || {
                        format!("at memory event {number}")
                    });
                    block.died = Some(number);
                }
                there.push(self.blocks.len());
                self.blocks.push(Block {
                    born: Some(number),
                    died: None,
                    bytes,
                    origin: *origin,
                    is_rest: false,
                });
                continue;
            }
            match there.pop().and_then(|at| self.blocks.get_mut(at)) {
                Some(block) => {
                    block.died = Some(number);
                    if block.bytes != bytes {
                        faults.count("frees of another size than was taken", || {
                            format!("at memory event {number}")
                        });
                    }
                }
                None => self.blocks.push(Block {
                    born: None,
                    died: Some(number),
                    bytes,
                    origin: Origin::default(),
                    is_rest: false,
                }),
            }
        }
    }

    fn add_up(&mut self, events: &[(Memory, Origin)]) -> Result<(), u32> {
        let older: u128 = self
            .blocks
            .iter()
            .filter(|block| block.born.is_none())
            .map(|block| u128::from(block.bytes))
            .sum();
        let mut before = 0i128;
        let told = events.iter().find_map(|(event, _)| {
            before += i128::from(event.bytes);
            event.allocated.map(|allocated| i128::from(allocated) - before)
        });
        let least = u64::try_from(older).map_err(|_| 0u32)?;
        self.opening_is_told = told.is_some();
        self.opening = match told {
            Some(told) => u64::try_from(told.max(0)).map_err(|_| 0u32)?,
            None => least,
        };
        if let Some(rest) = self.opening.checked_sub(least).filter(|rest| *rest > 0) {
            self.blocks.push(Block {
                born: None,
                died: None,
                bytes: rest,
                origin: Origin::default(),
                is_rest: true,
            });
        }
        let mut level = i128::from(self.opening);
        for (number, (event, _)) in (0u32..).zip(events) {
            level += i128::from(event.bytes);
            if let Some(allocated) = event.allocated.map(i128::from).filter(|allocated| *allocated != level) {
                self.astray += 1;
                level = allocated; // torch's own count is what its caller would see
            }
            self.levels.push(u64::try_from(level.max(0)).map_err(|_| number)?);
        }
        Ok(())
    }

    /// The bytes after an event; with none, before the first.
    pub(super) fn level(&self, after: Option<u32>) -> u64 {
        after.and_then(|at| self.levels.get(at as usize)).copied().unwrap_or(self.opening)
    }

    /// The event after which there is most, the earliest of several; none if that is before the first.
    pub(super) fn peak(&self) -> Option<u32> {
        let mut peak = (None, self.opening);
        for (number, level) in (0u32..).zip(&self.levels) {
            if *level > peak.1 {
                peak = (Some(number), *level);
            }
        }
        peak.0
    }

    /// The blocks that stand after an event, largest first, then in the order in which they were taken.
    pub(super) fn standing(&self, after: Option<u32>) -> Vec<&Block> {
        let mut standing: Vec<&Block> = self.blocks.iter().filter(|block| block.stands(after)).collect();
        standing.sort_by_key(|block| (std::cmp::Reverse(block.bytes), block.born, block.died));
        standing
    }
}
