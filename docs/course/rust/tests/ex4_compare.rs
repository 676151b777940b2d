//! Exercise 4: what would other ledgers save?

use peakledger_course::exercises::ex4_compare::compare;
use peakledger_course::tool::{peakledger, some_ledgers};
use peakledger_course::{Saving, State, step};

/// The step, changed in one state.
fn changed(name: &str, change: impl Fn(&mut State)) -> Vec<State> {
    let mut states = step();
    states.iter_mut().filter(|state| state.name == name).for_each(change);
    states
}

fn larger() -> Vec<State> {
    changed("gradients", |state| state.size_mb = 500)
}

fn offloaded() -> Vec<State> {
    changed("activations", |state| state.device = "cpu".to_owned())
}

fn one(states: Vec<State>) -> (&'static str, i64, i64) {
    let [saving] = compare(&step(), &[("one", states)]).unwrap().try_into().unwrap();
    (saving.phase, saving.total_mb, saving.saves_mb)
}

#[test]
fn a_candidate_that_saves() {
    let checkpoint = changed("activations", |state| state.end_phase = "forward".to_owned());
    let saving = Saving { name: "checkpoint".to_owned(), phase: "forward", total_mb: 1900, saves_mb: 300 };
    assert_eq!(compare(&step(), &[("checkpoint", checkpoint)]), Ok(vec![saving]));
}

#[test]
fn the_peak_may_stay_where_it_is() {
    assert_eq!(one(offloaded()), ("backward", 1900, 300));
}

#[test]
fn what_is_not_at_the_peak_saves_nothing() {
    assert_eq!(one(changed("forward_workspace", |state| state.size_mb = 0)), ("backward", 2200, 0));
}

#[test]
fn a_candidate_may_need_more() {
    assert_eq!(one(larger()), ("backward", 2300, -100));
}

#[test]
fn candidates_do_not_touch_each_other() {
    let both = compare(&step(), &[("offloaded", offloaded()), ("larger", larger())]).unwrap();
    let alone = [("offloaded", offloaded()), ("larger", larger())]
        .map(|candidate| compare(&step(), &[candidate]).unwrap().remove(0));
    assert_eq!(both, alone);
}

#[test]
fn a_candidate_has_a_name() {
    assert!(compare(&step(), &[("", step())]).is_err());
}

#[test]
fn peakledger_saves_the_same() {
    let ledgers = some_ledgers(40);
    for (before, after) in ledgers.iter().zip(ledgers.iter().rev()).take(20) {
        let own = compare(before, &[("after", after.clone())]).unwrap().remove(0);
        let words = ["compare", "before.json", "after=after.json"];
        let Some(answer) = peakledger(&words, &[("before", before), ("after", after)]) else { return };
        // kind, name, peak_phase, micro_batch, peak_bytes, peak_mb, memory_saving_bytes, …
        let told = answer.unwrap().remove(1);
        let mib = |cell: &str| cell.parse::<i64>().unwrap() / (1 << 20);
        assert_eq!((own.phase, own.total_mb, own.saves_mb), (told[2].as_str(), mib(&told[4]), mib(&told[6])));
    }
}
