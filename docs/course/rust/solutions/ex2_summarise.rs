//! Exercise 2, solved.

use super::ex1_validate::{faults, place};
use crate::{PHASES, PhaseTotal, State};

/// A total for each phase.
///
/// # Errors
/// A state has faults; the message has its name.
pub fn phase_totals(states: &[State]) -> Result<Vec<PhaseTotal>, String> {
    for state in states {
        let wrong = faults(state);
        if !wrong.is_empty() {
            return Err(format!("{}: {}", state.name, wrong.join(", ")));
        }
    }
    let total = |phase: &&'static str| {
        let there: Vec<&State> = states.iter().filter(|state| is_there(state, phase)).collect();
        PhaseTotal {
            phase,
            total_mb: there.iter().map(|state| state.size_mb).sum(),
            states: there.iter().map(|state| state.name.clone()).collect(),
        }
    };
    Ok(PHASES.iter().map(total).collect())
}

/// Whether a state is on the gpu in a phase.
fn is_there(state: &State, phase: &str) -> bool {
    let stay = place(&state.start_phase)..=place(&state.end_phase);
    state.device == "gpu" && stay.contains(&place(phase))
}
