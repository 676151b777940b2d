//! Own snapshots give the figures that they were written with, in every shape that torch has written.

use crate::own::*;
use crate::writer::{Py, dict, pickle};
use peakledger_core::{Bytes, Phase};
use peakledger_measure::snapshot::Snapshot;
use peakledger_measure::{
    DeviceMeasurement, Live, MeasuredLedger, RangeNames, ToldBy, UserLines, by_owner, live_after, spans,
};

fn measure(snapshot: &Snapshot) -> DeviceMeasurement {
    DeviceMeasurement::of(snapshot, 0, None).unwrap()
}

#[test]
fn a_step_in_every_protocol() {
    for protocol in 2..=5 {
        let snapshot = open(pickle(&step(), protocol)).unwrap();
        let device = measure(&snapshot);
        assert_eq!(device.events(), 4, "protocol {protocol}");
        assert_eq!(
            (device.requested.start, device.requested.peak, device.requested.event),
            (1000, 6000, Some(1))
        );
        assert_eq!((device.allocated.peak, device.active.end), (1024 + 3072 + 2048, 1024 + 2048));
        assert_eq!((device.reserved.start, device.reserved.peak), (2 << 20, 2 << 20));
        assert_eq!(device.end.rounding_waste(), 24 + 48);
        assert_eq!(device.exact_blocks, [2, 0]);
        assert!(device.complete && device.end.tiled);
        let sizes: Vec<u64> = device.at_peak.iter().map(|live| live.requested).collect();
        assert_eq!(sizes, [3000, 2000, 1000], "the inactive block's stale size counts nowhere");
        let lines = UserLines::of(&snapshot);
        let names: Vec<String> =
            by_owner(&device.at_peak, &lines).iter().map(|group| lines.name(group.key)).collect();
        assert_eq!(names, ["/proj/train.py:1:step", "/proj/train.py:2:step", "<preexisting>"]);
    }
}

#[test]
fn the_live_set_at_any_moment() {
    let snapshot = open_value(&step()).unwrap();
    let at = |event| -> Vec<u64> {
        live_after(&snapshot, 0, event).unwrap().iter().map(|live: &Live| live.requested).collect()
    };
    assert_eq!(at(None), [1000]);
    assert_eq!(at(Some(0)), [3000, 1000]);
    assert_eq!(at(Some(1)), [3000, 2000, 1000]);
    assert_eq!(at(Some(3)), [2000, 1000]);
}

#[test]
fn a_window_of_events_has_its_own_peak() {
    let snapshot = open_value(&step()).unwrap();
    let peak = |window| {
        let device = DeviceMeasurement::of(&snapshot, 0, Some(window)).unwrap();
        (device.requested.start, device.requested.peak, device.requested.event, device.at_peak.len())
    };
    assert_eq!(peak(0..1), (1000, 4000, Some(0), 2));
    assert_eq!(peak(2..4), (6000, 6000, None, 3));
    assert_eq!(peak(3..9), (3000, 3000, None, 2));
}

#[test]
fn the_ledger_has_the_phases_and_the_peak() {
    let snapshot = open_value(&step()).unwrap();
    let (spans, told_by) = spans(&snapshot, 0, &RangeNames::default());
    assert_eq!(told_by, ToldBy::Ranges);
    let phases: Vec<(Phase, u32)> = spans.into_iter().map(|span| (span.phase, span.first)).collect();
    assert_eq!(phases, [(Phase::Forward, 0), (Phase::Backward, 1)]);
    for most in [u64::MAX, 0] {
        let measured = MeasuredLedger::within(&snapshot, 0, &RangeNames::default(), most).unwrap();
        let ledger = &measured.ledger;
        assert_eq!((ledger.peak().bytes, &ledger.peak().slot.phase), (Bytes::new(6144), &Phase::Backward));
        let totals: Vec<u64> = ledger.phases().map(|(_, sums)| sums.total.get()).collect();
        assert_eq!(totals, [1024 + 3072, 6144], "coarse or not, the totals are the same");
        assert_eq!(measured.blocks, [3, 3]);
    }
}

#[test]
fn several_devices_and_empty_ones() {
    let other = vec![event("alloc", BASE, 5000, 1, Py::None)];
    let value = dict([
        ("segments", Py::List(vec![])),
        ("device_traces", Py::List(vec![Py::List(vec![]), Py::List(other), Py::List(vec![])])),
    ]);
    let snapshot = open_value(&value).unwrap();
    assert_eq!(snapshot.devices(), 3);
    let device = DeviceMeasurement::of(&snapshot, 1, None).unwrap();
    assert_eq!((device.requested.peak, device.outside), (5000, 1));
    assert_eq!(device.allocated.peak, 5120, "outside every segment: the request, rounded");
    assert!(!device.complete, "the block is not there at the end");
}

#[test]
fn legacy_shapes() {
    let bare = Py::List(segments());
    let snapshot = open_value(&bare).unwrap();
    assert!(snapshot.notes.sentences()[0].contains("legacy shape: no trace"), "{:?}", snapshot.notes);
    assert_eq!(measure(&snapshot).allocated.peak, 1024 + 2048);

    // 1.12 to 2.0: blocks without an address, their past in `history`
    let past = |size: i64| {
        Py::List(vec![dict([("addr", BASE.into()), ("real_size", size.into()), ("frames", stack(5))])])
    };
    let block = |size: i64, state: &str, past: Option<Py>| {
        let mut pairs = vec![("size".into(), size.into()), ("state".into(), state.into())];
        pairs.extend(past.map(|past| ("history".into(), past)));
        Py::Dict(pairs)
    };
    let legacy = dict([(
        "segments",
        Py::List(vec![dict([
            ("device", 0.into()),
            ("address", BASE.into()),
            ("total_size", SMALL.into()),
            (
                "blocks",
                Py::List(vec![
                    block(1024, "active_allocated", Some(past(1000))),
                    block(512, "active_awaiting_free", Some(past(500))),
                    block(SMALL - 1536, "inactive", None),
                ]),
            ),
        ])]),
    )]);
    let snapshot = open_value(&legacy).unwrap();
    let device = measure(&snapshot);
    assert_eq!((device.requested.peak, device.active.peak, device.end.pending()), (1000, 1536, 512));
    let lines = UserLines::of(&snapshot);
    assert_eq!(lines.text(device.at_peak[0].stack).as_deref(), Some("/proj/train.py:5:step"));
}

#[test]
fn an_expandable_segment_grows_and_shrinks() {
    const PAGE: i64 = 20 << 20;
    let large = 12 << 20;
    let trace = vec![
        event("segment_map", BASE, PAGE, 1, Py::None),
        event("alloc", BASE, large, 2, Py::None),
        event("segment_map", BASE + PAGE, PAGE, 3, Py::None),
        event("alloc", BASE + large, large, 4, Py::None),
        event("free_requested", BASE + large, large, 5, Py::None),
        event("free_completed", BASE + large, large, 5, Py::None),
        event("segment_unmap", BASE + PAGE, PAGE, 6, Py::None),
    ];
    let blocks = vec![
        block(BASE, large, large, "active_allocated", Py::None),
        block(BASE + large, PAGE - large, 0, "inactive", Py::None),
    ];
    let mut last = segment(0, BASE, PAGE, blocks);
    if let Py::Dict(pairs) = &mut last {
        pairs.retain(|(key, _)| !matches!(key, Py::Str(key) if key == "is_expandable"));
        pairs.push(("is_expandable".into(), Py::Bool(true)));
    }
    let value =
        dict([("segments", Py::List(vec![last])), ("device_traces", Py::List(vec![Py::List(trace)]))]);
    let device = measure(&open_value(&value).unwrap());
    assert_eq!((device.reserved.start, device.reserved.peak), (0, 40 << 20));
    assert_eq!((device.allocated.peak, device.outside, device.uncut), (24 << 20, 0, 0));
    assert!(device.complete, "{:?}", device.notes);
}

#[test]
fn a_failed_request_is_explained() {
    let gib = 1i64 << 30;
    let blocks = vec![
        block(BASE, gib, gib, "inactive", Py::None),
        block(BASE + gib, gib, gib, "active_allocated", Py::None),
        block(BASE + 2 * gib, gib, gib, "inactive", Py::None),
    ];
    let oom = |size: i64, free: i64| {
        dict([
            ("action", "oom".into()),
            ("size", size.into()),
            ("device_free", free.into()),
            ("stream", 0.into()),
            ("frames", stack(7)),
        ])
    };
    let value = dict([
        ("segments", Py::List(vec![segment(0, BASE, 3 * gib, blocks)])),
        ("device_traces", Py::List(vec![Py::List(vec![oom(2 * gib, 0), oom(2 * gib + 512, 0)])])),
    ]);
    let device = measure(&open_value(&value).unwrap());
    let [saved, not] = &device.oom[..] else { panic!("{:?}", device.oom) };
    assert_eq!((saved.largest_free, saved.cached(), saved.defragmenting_saves), (1 << 30, 2 << 30, true));
    assert!(saved.sentence().contains("fragmentation is the cause"));
    assert!(!not.defragmenting_saves && not.sentence().contains("would not have been enough"));
}

#[test]
fn shared_lists_long_stacks_and_long_traces() {
    // more than a batch of each
    let deep: Vec<Py> = (0..2500).map(|line| frame("/proj/deep.py", line, "f")).collect();
    let deep = Py::Shared(7, Box::new(Py::List(deep)));
    let again = Py::Shared(7, Box::new(Py::None));
    let mut trace = vec![event("alloc", BASE, 512, 0, deep)];
    trace.extend((1..2100).map(|at| event("alloc", BASE + at * 512, 512, at, again.clone())));
    let value = dict([("segments", Py::List(vec![])), ("device_traces", Py::List(vec![Py::List(trace)]))]);
    let snapshot = open_value(&value).unwrap();
    let stack = snapshot.events.get(2099).unwrap().stack;
    assert_eq!(
        (snapshot.events.len(), snapshot.stacks.count()),
        (2100, 3),
        "the empty one, the first batch, the whole"
    );
    assert_eq!(snapshot.stacks.frames(stack).len(), 2500);
    assert_eq!(measure(&snapshot).requested.peak, 2100 * 512);
}

#[test]
fn what_is_sound_of_a_damaged_file_is_a_prefix_of_the_whole() {
    let whole = pickle(&step(), 4);
    let all: Vec<_> = open(whole.clone()).unwrap().events.between(0..4).collect();
    let mut most = 0;
    for end in 0..whole.len() {
        let Ok(part) = salvage(&whole[..end]) else { continue };
        let count = u32::try_from(part.events.len()).unwrap();
        assert!(part.lost.is_some() && count >= most, "{end}: {count}");
        assert!(part.events.between(0..count).eq(all[..count as usize].iter().copied()), "{end}");
        if count > 0 {
            assert_eq!((part.trace(0).len(), part.segments.len()), (count as usize, 1), "{end}");
        }
        most = count;
    }
    assert_eq!(most, 4);
}

#[test]
fn lines_of_64_bits_and_words_that_are_no_text() {
    let one = frame("/proj/a.py", u64::MAX.into(), "f");
    let value = dict([(
        "device_traces",
        Py::List(vec![Py::List(vec![event("alloc", BASE, 512, 1, Py::List(vec![one]))])]),
    )]);
    let snapshot = open_value(&value).unwrap();
    let stack = snapshot.events.get(0).unwrap().stack;
    assert_eq!(snapshot.stacks.frames(stack).next().unwrap().line, Some(u64::MAX));
}
