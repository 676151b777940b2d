//! Snapshots whose last events are lost: what is left says no more than the whole, and as much where stacks tell what came
//! later.

use crate::own::{BASE, SMALL, block, event, open, salvage, segment, stack};
use crate::writer::{Py, dict, pickle};
use peakledger_measure::snapshot::Snapshot;
use peakledger_measure::{Agreement, History, Measurement, Scope, live_after};

const RECORDED: &[u8] = include_bytes!("../../../../examples/step.pickle");

/// The blocks in use after an event, by address and bytes.
fn live(snapshot: &Snapshot, event: Option<u32>) -> Vec<(u64, u64, u64)> {
    let live = live_after(snapshot, 0, event).unwrap();
    let mut blocks: Vec<_> = live.iter().map(|live| (live.address, live.requested, live.size)).collect();
    blocks.sort_unstable();
    blocks
}

fn reserved_after(snapshot: &Snapshot, events: usize) -> u64 {
    let history = History::of(snapshot, 0).unwrap();
    let mut replay = peakledger_measure::Replay::new(snapshot, &history);
    for _ in 0..events {
        replay.step();
    }
    replay.reserved() as u64
}

#[test]
fn every_prefix_has_what_the_whole_has_after_its_events() {
    let whole = open(RECORDED).unwrap();
    let mut cuts = 0;
    for end in 0..RECORDED.len() {
        let Ok(part) = salvage(&RECORDED[..end]) else { continue };
        let events = part.trace(0).len();
        if events == 0 {
            continue;
        }
        // the settings come after the events
        let is_cut = events < whole.trace(0).len();
        assert!(part.cut_device == Some(0) || !is_cut, "{end}");
        cuts += usize::from(is_cut);
        for event in (0..events as u32).map(Some) {
            assert_eq!(live(&part, event), live(&whole, event), "{end}: {event:?}");
        }
        assert!(reserved_after(&part, events) <= reserved_after(&whole, events), "{end}");
        let measurement = Measurement::of("x", &part, &Scope::default()).unwrap();
        assert!(measurement.incomplete(&part).is_some() && !measurement.devices[0].complete, "{end}");
    }
    assert!(cuts > 100, "{cuts}");
}

/// Weights from before, and a state that the second event hands out; both are there at the end.
fn recorded(weights: Py, state: Py, later: Py) -> Vec<u8> {
    let blocks = vec![
        block(BASE, 1024, 1000, "active_allocated", weights),
        block(BASE + 1024, 3072, 3000, "active_allocated", state.clone()),
        block(BASE + 4096, 2048, 2000, "active_allocated", later.clone()),
        block(BASE + 6144, SMALL - 6144, 0, "inactive", Py::List(Vec::new())),
    ];
    let events =
        vec![event("alloc", BASE + 1024, 3000, 10, state), event("alloc", BASE + 4096, 2000, 20, later)];
    let value = dict([
        ("segments", Py::List(vec![segment(0, BASE, SMALL, blocks)])),
        ("device_traces", Py::List(vec![Py::List(events)])),
    ]);
    pickle(&value, 4)
}

/// What is said where only the first event is left.
fn first_event_alone(whole: &[u8]) -> (Snapshot, Agreement) {
    let one = |end: &usize| salvage(&whole[..*end]).is_ok_and(|part| part.trace(0).len() == 1);
    let part = salvage(&whole[..(0..whole.len()).find(one).unwrap()]).unwrap();
    let agreement = History::of(&part, 0).unwrap().agreement;
    (part, agreement)
}

#[test]
fn a_block_without_a_stack_was_there_before_where_all_others_have_one() {
    let whole = recorded(Py::List(Vec::new()), stack(1), stack(2));
    let (part, agreement) = first_event_alone(&whole);
    assert_eq!(live(&part, Some(0)).iter().map(|block| block.1).collect::<Vec<_>>(), [1000, 3000]);
    assert_eq!((agreement.survivors, agreement.left_out, agreement.left_out_requested), (1, 1, 2000));
    let measurement = Measurement::of("x", &part, &Scope::default()).unwrap();
    let said = measurement.incomplete(&part).unwrap();
    assert!(said.contains("1 block of 1.95 KiB that is there at the end"), "{said}");
    // what follows from it is no fault of its own
    assert!(
        measurement.notes(&part).iter().all(|note| !note.contains("differ")),
        "{:?}",
        measurement.notes(&part)
    );
}

#[test]
fn where_stacks_do_not_tell_nothing_is_counted_that_need_not_have_been_there() {
    let none = || Py::List(Vec::new());
    let (part, agreement) = first_event_alone(&recorded(none(), none(), none()));
    assert_eq!(live(&part, Some(0)).iter().map(|block| block.1).collect::<Vec<_>>(), [3000]);
    assert_eq!((agreement.survivors, agreement.left_out, agreement.left_out_requested), (0, 2, 3000));
}

#[test]
fn addresses_that_an_event_had_to_do_with_held_no_block_from_before() {
    // the first event's block is gone at the end, and one without a stack lies where it was
    let blocks = vec![
        block(BASE + 1024, 1024, 1000, "active_allocated", Py::List(Vec::new())),
        block(BASE + 2048, 1024, 1000, "active_allocated", Py::List(Vec::new())),
    ];
    let events = vec![
        event("alloc", BASE + 1024, 2000, 10, stack(1)),
        event("free_completed", BASE + 1024, 2000, 20, stack(1)),
        event("alloc", BASE + 1024, 1000, 30, stack(1)),
        event("alloc", BASE + 2048, 1000, 40, stack(1)),
    ];
    let value = dict([
        ("segments", Py::List(vec![segment(0, BASE, SMALL, blocks)])),
        ("device_traces", Py::List(vec![Py::List(events)])),
    ]);
    let (part, agreement) = first_event_alone(&pickle(&value, 4));
    // the first lies where the event's block does and is taken for it
    assert_eq!((agreement.survivors, agreement.left_out), (0, 1));
    assert_eq!(live(&part, Some(0)).len(), 1);
}
