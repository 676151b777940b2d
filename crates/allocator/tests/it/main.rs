//! The allocator beside a naive one, and by hand.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)] // tests stop where something is wrong

mod by_hand;
mod naive;
mod properties;
mod recorder;
