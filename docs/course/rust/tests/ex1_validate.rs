//! Exercise 1: does the record of a state make sense?

use peakledger_course::exercises::ex1_validate::faults;
use peakledger_course::tool::peakledger;
use peakledger_course::{State, step};

/// A state with each fault, and the field that is wrong.
fn wrong() -> Vec<(&'static str, State)> {
    let state = || step().remove(2);
    let text = |text: &str| text.to_owned();
    vec![
        ("name", State { name: text(""), ..state() }),
        ("category", State { category: text("weights"), ..state() }),
        ("size_mb", State { size_mb: -1, ..state() }),
        ("device", State { device: text("tpu"), ..state() }),
        ("start_phase", State { start_phase: text("warmup"), ..state() }),
        ("end_phase", State { end_phase: text("cooldown"), ..state() }),
        ("end_phase", State { end_phase: text("load"), ..state() }),
    ]
}

#[test]
fn a_sound_state_has_no_faults() {
    for state in step() {
        assert!(faults(&state).is_empty(), "{state:?}");
    }
}

#[test]
fn each_wrong_field_is_named() {
    for (field, state) in wrong() {
        assert_eq!(faults(&state), [field], "{state:?}");
    }
}

#[test]
fn both_ends_may_be_the_same() {
    let state = State { start_phase: "loss".to_owned(), end_phase: "loss".to_owned(), ..step().remove(2) };
    assert!(faults(&state).is_empty());
}

#[test]
fn all_faults_are_named_in_order() {
    let nothing = String::new;
    let state = State {
        name: nothing(),
        category: nothing(),
        size_mb: i64::MIN,
        device: nothing(),
        start_phase: nothing(),
        end_phase: nothing(),
        persistent: false,
    };
    assert_eq!(faults(&state), ["name", "category", "size_mb", "device", "start_phase", "end_phase"]);
}

#[test]
fn peakledger_refuses_the_same() {
    for state in wrong().into_iter().map(|(_, state)| state).chain(step()) {
        let sound = faults(&state).is_empty();
        let Some(answer) = peakledger(&["check", "ledger.json"], &[("ledger", &[state])]) else { return };
        assert_eq!(answer.is_some(), sound);
    }
}
