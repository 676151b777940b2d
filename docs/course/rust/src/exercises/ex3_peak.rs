//! Exercise 3: where is the peak, and who forms it?

#![allow(unused)] // until it is written

use super::ex2_summarise::phase_totals;
use crate::{Peak, State};

/// The phase with the largest total; of several that are equally large the earliest. The contributors are the states that
/// are there, the largest first, and those of one size by name.
///
/// # Errors
/// A state has faults.
pub fn find_peak(states: &[State]) -> Result<Peak, String> {
    // 1. Ask exercise 2 for the totals.
    // 2. Take the largest. Which of two equals does `max_by_key` return?
    // 3. Sort the states of that phase: a key may be a tuple, and `std::cmp::Reverse` turns an order around.
    todo!("exercise 3 is not done yet: write `find_peak` in src/exercises/ex3_peak.rs")
}
