//! Exercise 3, solved.

use super::ex2_summarise::phase_totals;
use crate::{Peak, State};
use std::cmp::Reverse;

/// The earliest of the largest totals, and who is there.
///
/// # Errors
/// A state has faults.
pub fn find_peak(states: &[State]) -> Result<Peak, String> {
    let totals = phase_totals(states)?;
    // max_by_key takes the last of equals: from the end, that is the earliest
    let Some(highest) = totals.into_iter().rev().max_by_key(|total| total.total_mb) else {
        return Err("a step without a phase".to_owned());
    };
    let is_there = |state: &&State| highest.states.contains(&state.name);
    let mut there: Vec<&State> = states.iter().filter(is_there).collect();
    there.sort_by_key(|state| (Reverse(state.size_mb), &state.name));
    Ok(Peak {
        phase: highest.phase,
        total_mb: highest.total_mb,
        contributors: there.into_iter().map(|state| state.name.clone()).collect(),
    })
}
