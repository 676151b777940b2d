//! Replays: what the caching allocator makes of a plan, a snapshot or a ledger.

mod planned;
mod script;

pub use planned::{PlannedOom, Reservation};
