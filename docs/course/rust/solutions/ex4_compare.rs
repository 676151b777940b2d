//! Exercise 4, solved.

use super::ex3_peak::find_peak;
use crate::{Saving, State};

/// The peak of each candidate, and what it saves.
///
/// # Errors
/// A candidate has no name, or a state has faults.
pub fn compare(baseline: &[State], candidates: &[(&str, Vec<State>)]) -> Result<Vec<Saving>, String> {
    let before = find_peak(baseline)?.total_mb;
    let saving = |(name, states): &(&str, Vec<State>)| {
        if name.is_empty() {
            return Err("a candidate without a name".to_owned());
        }
        let peak = find_peak(states)?;
        let saves_mb = before - peak.total_mb;
        Ok(Saving { name: (*name).to_owned(), phase: peak.phase, total_mb: peak.total_mb, saves_mb })
    };
    candidates.iter().map(saving).collect()
}
