//! Exercise 2: who is on the GPU in each phase, and how much is that together?

use peakledger_course::exercises::ex2_summarise::phase_totals;
use peakledger_course::tool::{peakledger, some_ledgers};
use peakledger_course::{PHASES, State, step};

fn totals(states: &[State]) -> Vec<i64> {
    phase_totals(states).unwrap().iter().map(|total| total.total_mb).collect()
}

#[test]
fn the_totals_of_a_step() {
    assert_eq!(totals(&step()), [1400, 1900, 1700, 2200, 1800, 1400]);
}

#[test]
fn phases_come_in_order() {
    let phases: Vec<&str> = phase_totals(&step()).unwrap().iter().map(|total| total.phase).collect();
    assert_eq!(phases, PHASES);
}

#[test]
fn the_states_of_a_phase_are_in_the_order_of_the_ledger() {
    assert_eq!(phase_totals(&step()).unwrap()[4].states, ["parameters", "optimizer_state", "gradients"]);
}

#[test]
fn both_ends_count() {
    let state = State { start_phase: "loss".to_owned(), end_phase: "update".to_owned(), ..step().remove(3) };
    assert_eq!(totals(&[state]), [0, 0, 400, 400, 400, 0]);
}

#[test]
fn what_is_on_the_cpu_is_in_no_total() {
    let away: Vec<State> =
        step().into_iter().map(|state| State { device: "cpu".to_owned(), ..state }).collect();
    assert_eq!(totals(&away), [0; 6]);
}

#[test]
fn no_state_is_a_ledger_too() {
    assert_eq!(totals(&[]), [0; 6]);
}

#[test]
fn a_state_with_faults_is_refused_by_name() {
    let state = State { size_mb: -400, ..step().remove(3) };
    assert!(phase_totals(&[state]).unwrap_err().contains("gradients"));
}

#[test]
fn peakledger_has_the_same_totals() {
    for states in some_ledgers(20) {
        let own = totals(&states);
        let Some(answer) = peakledger(&["show", "ledger.json"], &[("ledger", &states)]) else { return };
        // phase, micro_batch, total_bytes, …
        let told: Vec<i64> = answer.unwrap().iter().map(|row| row[2].parse::<i64>().unwrap() >> 20).collect();
        assert_eq!(own, told, "{states:?}");
    }
}
