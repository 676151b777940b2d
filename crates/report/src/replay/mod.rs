//! Replays: what the caching allocator makes of a plan, a snapshot or a ledger. Each becomes a [`script`] of what was asked;
//! a script is run under settings on a [`device`], and what comes of it is told.

mod device;
mod json;
mod ledger;
mod measured;
mod planned;
mod replays;
mod report;
mod script;

pub use planned::{Fits, PlannedOom, Reservation};
pub use replays::{Asked, Replays};
pub use report::ReplayReport;
