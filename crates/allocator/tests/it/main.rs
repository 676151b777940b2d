//! The allocator beside a naive one, and by hand.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)] // tests stop where something is wrong
#![allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)] // as torch computes limits

mod by_hand;
mod naive;
mod properties;
mod recorder;
