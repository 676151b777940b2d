//! Plain dicts are read straight from the bytes, and all else opcode by opcode. Protocol 2, with its numbered places of
//! the memo, always goes the second way: both must say the same of any events.

use crate::own::*;
use crate::writer::{Py, dict, pickle};
use peakledger_measure::snapshot::{Event, Snapshot};
use proptest::prelude::*;

/// Lists of frames of all sizes; Python writes them in batches of 1000.
fn any_stack() -> impl Strategy<Value = Py> {
    let length = prop_oneof![0usize..4, Just(999), Just(1000), Just(1001), Just(2001)];
    let stack = (length, 0u32..3).prop_map(|(length, kind)| {
        let one = |at: u32| {
            let frame = frame("/proj/train.py", i128::from(at % 5), "step");
            Py::Shared(at % 5, Box::new(frame))
        };
        let frames: Vec<Py> = (kind..).take(length).map(one).collect();
        Py::Shared(1000 + 10 * u32::try_from(length).unwrap() + kind, Box::new(Py::List(frames)))
    });
    prop_oneof![8 => stack, 1 => Just(Py::None), 1 => Just(Py::List(vec![Py::Int(1), Py::Int(2), Py::Int(3)]))]
}

fn any_number() -> impl Strategy<Value = Py> {
    prop_oneof![
        16 => (0u32..64, any::<u64>()).prop_map(|(bits, number)| Py::Int(i128::from(number >> bits))),
        1 => any::<i64>().prop_map(Py::from),
        1 => Just(Py::Float(512.0)),
        1 => Just(Py::Int(1 << 64)),
        1 => Just(Py::Bool(true)),
    ]
}

fn any_event() -> impl Strategy<Value = Py> {
    let action = proptest::sample::select(vec!["alloc", "free_requested", "free_completed", "oom", "odd"]);
    let word = proptest::sample::select(vec!["", "N/A", "forward", "a word of more than a few letters"]);
    let order = Just((0usize..7).collect::<Vec<_>>()).prop_shuffle();
    let parts = (action, any_number(), any_number(), any_number(), word, any_stack(), order, 1usize..8);
    parts.prop_map(|(action, addr, size, time, word, stack, order, keys)| {
        let pairs = [
            ("action", action.into()),
            ("addr", addr),
            ("size", size),
            ("time_us", time),
            ("user_metadata", word.into()),
            ("frames", stack),
            ("unknown", Py::Tuple(vec![])),
        ];
        let kept = order.into_iter().take(keys).filter_map(|at| pairs.get(at).cloned());
        Py::Dict(kept.map(|(key, value)| (Py::from(key), value)).collect())
    })
}

/// The events with their stacks in words, or the problem without its byte.
fn said(snapshot: Result<Snapshot, peakledger_input::Problem>) -> Result<Vec<(Event, Vec<String>)>, String> {
    let snapshot = snapshot.map_err(|problem| problem.cause)?;
    let events = snapshot.events.between(0..u32::try_from(snapshot.events.len()).unwrap());
    let stack =
        |event: &Event| snapshot.stacks.frames(event.stack).map(|f| f.place(&snapshot.texts)).collect();
    Ok(events.map(|event| (event, stack(&event))).collect())
}

proptest! {
    #[test]
    fn both_ways_say_the_same(events in proptest::collection::vec(any_event(), 1..12)) {
        let value = dict([("device_traces", Py::List(vec![Py::List(events)]))]);
        let [short, long] = [4, 2].map(|protocol| said(open(pickle(&value, protocol))));
        let count = |said: &Result<Vec<_>, String>| said.as_ref().map(Vec::len).map_err(String::clone);
        prop_assert!(short == long, "{:?} and {:?}", count(&short), count(&long));
    }
}
