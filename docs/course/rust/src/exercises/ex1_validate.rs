//! Exercise 1: does the record of a state make sense?

#![allow(unused)] // until it is written

use crate::{CATEGORIES, DEVICES, PHASES, State};

/// The fields that are wrong, in this order; none where all is well.
///
/// - `name`: must not be empty
/// - `category`: one of [`CATEGORIES`]
/// - `size_mb`: 0 or more
/// - `device`: one of [`DEVICES`]
/// - `start_phase`: one of [`PHASES`]
/// - `end_phase`: one of [`PHASES`], and not before `start_phase`: both ends count, so they may be the same
pub fn faults(state: &State) -> Vec<&'static str> {
    // 1. Begin an empty list.
    // 2. Look at each field in turn, and push its name where it is wrong.
    // 3. For end_phase: where is a phase in PHASES? `iter().position(…)` tells, of a phase that is one.
    todo!("exercise 1 is not done yet: write `faults` in src/exercises/ex1_validate.rs")
}
