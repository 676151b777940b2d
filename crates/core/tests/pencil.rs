//! Little timelines that can be checked with a pencil.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)] // helpers of tests

use peakledger_core::*;

/// A timeline of three phases: forward with two moments, backward with three, update with one.
fn timeline() -> Timeline {
    let mut timeline = Timeline::empty();
    for (phase, moments) in [(Phase::Forward, 2), (Phase::Backward, 3), (Phase::Update, 1)] {
        assert!(timeline.try_push(phase, None, std::num::NonZeroU32::new(moments).unwrap()));
    }
    timeline
}

fn stay(device: Device, start: u32, end: u32) -> Residency {
    Residency { device, start: Moment(start), end: Moment(end) }
}

fn state(name: &str, bytes: u64, stays: &[Residency]) -> State {
    let residencies = match stays {
        [one] => Residencies::One(*one),
        many => Residencies::Many(many.to_vec()),
    };
    State {
        name: name.into(),
        category: Category::Activation,
        detail: None,
        bytes: Bytes::new(bytes),
        persistent: false,
        residencies,
    }
}

fn ledger(states: &[State]) -> Result<Ledger, LedgerError> {
    Ledger::new(timeline(), states.to_vec())
}

use Device::{Cpu, Gpu};

#[test]
fn an_offloaded_state_counts_where_it_is() {
    //           moment  0    1  | 2    3    4  | 5
    // weights   100    100  100 | 100  100  100| 100
    // saved      20     20      |       20  20 |       on the cpu at 1, 2 and 3: copied back at 3
    let ledger = ledger(&[
        state("weights", 100, &[stay(Gpu, 0, 5)]),
        state("saved", 20, &[stay(Gpu, 0, 0), stay(Cpu, 1, 3), stay(Gpu, 3, 4)]),
    ])
    .unwrap();
    assert_eq!(ledger.totals().gpu(), [120, 100, 100, 120, 120, 100]);
    let phases: Vec<(u64, u32, u64, u64)> =
        ledger.phases().map(|(_, p)| (p.total.get(), p.moment.0, p.end.get(), p.cpu.get())).collect();
    assert_eq!(phases, [(120, 0, 100, 20), (120, 3, 120, 20), (100, 5, 100, 0)]);
    assert_eq!(ledger.peak().moment, Moment(0), "ties go to the earliest");
    assert_eq!(ledger.cpu_peak(), Bytes::new(20));
}

#[test]
fn a_ledger_that_cannot_be_says_why() {
    let kind = |states: &[State]| ledger(states).map(|_| ()).unwrap_err().to_string();
    let one = [stay(Gpu, 0, 0)];
    assert_eq!(kind(&[state("", 1, &one)]), "state 0: a state has an empty name");
    assert_eq!(
        kind(&[state("a", 1, &one), state("b", 1, &one), state("a", 1, &one)]),
        "state 2: two states are named `a` (the first is state 0)"
    );
    assert_eq!(kind(&[state("a", 1, &[])]), "state 0: the state has no residency");
    assert_eq!(kind(&[state("a", 1, &[stay(Gpu, 1, 0)])]), "state 0: the residency ends before it starts");
    assert_eq!(
        kind(&[state("a", 1, &[stay(Cpu, 5, 6)])]),
        "state 0: the residency reaches outside the timeline"
    );
    assert_eq!(
        kind(&[state("a", 1, &[stay(Gpu, 3, 4), stay(Cpu, 2, 3), stay(Gpu, 1, 3)])]),
        "state 0: residencies 0 and 2 overlap on one device, which counts the state twice"
    );
    let most = u64::MAX;
    let past = "the sum of the sizes in phase `backward` passes 64 bits";
    assert_eq!(kind(&[state("a", most, &[stay(Gpu, 0, 3)]), state("b", 1, &[stay(Gpu, 2, 5)])]), past);
    assert_eq!(kind(&[state("a", most, &[stay(Cpu, 0, 3)]), state("b", 1, &[stay(Cpu, 2, 5)])]), past);
    let fits = ledger(&[state("a", most, &[stay(Gpu, 0, 1)]), state("b", most, &[stay(Gpu, 2, 5)])]).unwrap();
    assert_eq!(fits.peak().bytes, Bytes::new(most));
    let none = Ledger::new(Timeline::empty(), Vec::new()).unwrap_err();
    assert_eq!(none.to_string(), "the timeline has no phases");
}

#[test]
fn every_way_to_move_has_its_word() {
    let all = [stay(Gpu, 0, 5)];
    let baseline = ledger(&[
        state("gone", 60, &all),
        state("resized", 50, &all),
        state("to cpu", 40, &all),
        state("other time", 30, &all),
        state("stays", 100, &all),
        state("from cpu", 5, &[stay(Cpu, 0, 5)]),
    ])
    .unwrap();
    let candidate = ledger(&[
        state("resized", 25, &all),
        state("to cpu", 40, &[stay(Cpu, 0, 5)]),
        state("other time", 30, &[stay(Gpu, 5, 5)]),
        state("stays", 100, &all),
        state("from cpu", 5, &all),
        state("added", 3, &all),
    ])
    .unwrap();
    let comparison = compare(&baseline, &candidate);
    assert_eq!((baseline.peak().bytes, comparison.peak.bytes), (Bytes::new(280), Bytes::new(163)));
    assert_eq!(comparison.saving, 117);
    let moved: Vec<(&str, u64, u64, &str)> =
        comparison.moved.iter().map(|m| (m.name, m.before.get(), m.after.get(), m.change.as_str())).collect();
    assert_eq!(
        moved,
        [
            ("gone", 60, 0, "gone"),
            ("to cpu", 40, 0, "on the cpu then"),
            ("other time", 30, 0, "not resident then"),
            ("resized", 50, 25, "resized"),
            ("from cpu", 0, 5, "was on the cpu"),
            ("added", 0, 3, "added"),
        ]
    );
}

#[test]
fn micro_batches_answer_to_the_phase_without_a_number() {
    let mut micro = Timeline::empty();
    for index in 0..2 {
        assert!(micro.try_push(Phase::Forward, Some(index), std::num::NonZeroU32::MIN));
    }
    let candidate = Ledger::new(micro, vec![state("w", 7, &[stay(Gpu, 1, 1)])]).unwrap();
    let baseline = ledger(&[state("w", 9, &[stay(Gpu, 0, 1)])]).unwrap();
    let comparison = compare(&baseline, &candidate);
    assert_eq!(comparison.peak.slot.id(), "forward.1");
    let moved = comparison.moved[0];
    assert_eq!((moved.before.get(), moved.after.get()), (9, 7), "held against the last micro-batch");
    assert_eq!(comparison.unaligned, ["backward", "update"]);
}
