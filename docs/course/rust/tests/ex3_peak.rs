//! Exercise 3: where is the peak, and who forms it?

use peakledger_course::exercises::ex3_peak::find_peak;
use peakledger_course::tool::{peakledger, some_ledgers};
use peakledger_course::{Peak, State, step};

#[test]
fn the_peak_of_a_step() {
    let peak = find_peak(&step()).unwrap();
    assert_eq!((peak.phase, peak.total_mb), ("backward", 2200));
}

#[test]
fn the_largest_contributor_is_first() {
    let contributors = ["parameters", "optimizer_state", "gradients", "activations", "collective_buffer"];
    assert_eq!(find_peak(&step()).unwrap().contributors, contributors);
}

#[test]
fn of_one_size_the_order_is_that_of_the_names() {
    let named = |name: &str| State { name: name.to_owned(), ..step().remove(0) };
    assert_eq!(find_peak(&["b", "c", "a"].map(named)).unwrap().contributors, ["a", "b", "c"]);
}

#[test]
fn a_tie_goes_to_the_earliest_phase() {
    assert_eq!(find_peak(&step()[..1]).unwrap().phase, "load");
    assert_eq!(find_peak(&step()[2..3]).unwrap().phase, "forward");
}

#[test]
fn nothing_has_its_peak_in_the_first_phase() {
    assert_eq!(find_peak(&[]), Ok(Peak { phase: "load", total_mb: 0, contributors: Vec::new() }));
}

#[test]
fn peakledger_finds_the_same() {
    for states in some_ledgers(40) {
        let own = find_peak(&states).unwrap();
        let Some(answer) = peakledger(&["show", "ledger.json"], &[("ledger", &states)]) else { return };
        // phase, micro_batch, total_bytes, …, is_peak, peak_op
        let rows = answer.unwrap();
        let peak = rows.iter().find(|row| row[row.len() - 2] == "true").unwrap();
        assert_eq!(
            (own.phase, own.total_mb),
            (peak[0].as_str(), peak[2].parse::<i64>().unwrap() >> 20),
            "{states:?}"
        );
    }
}
