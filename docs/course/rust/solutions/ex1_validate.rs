//! Exercise 1, solved.

use crate::{CATEGORIES, DEVICES, PHASES, State};

/// The fields that are wrong.
pub fn faults(state: &State) -> Vec<&'static str> {
    let (start, end) = (place(&state.start_phase), place(&state.end_phase));
    // an end can only be compared with a start that is a phase
    let in_order = end.is_some() && start.is_none_or(|start| Some(start) <= end);
    let sound = [
        ("name", !state.name.is_empty()),
        ("category", CATEGORIES.contains(&state.category.as_str())),
        ("size_mb", state.size_mb >= 0),
        ("device", DEVICES.contains(&state.device.as_str())),
        ("start_phase", start.is_some()),
        ("end_phase", in_order),
    ];
    sound.into_iter().filter(|(_, is_sound)| !is_sound).map(|(field, _)| field).collect()
}

/// Where a phase is in the order of a step.
pub fn place(phase: &str) -> Option<usize> {
    PHASES.iter().position(|known| *known == phase)
}
