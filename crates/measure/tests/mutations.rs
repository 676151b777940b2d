//! Every prefix and every one-byte change of a small valid snapshot ends in an answer or an error: never in a panic, a
//! hang, a deep stack or much memory. Alone in its process, so that the memory is its own.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)] // helpers of tests

#[path = "it/writer.rs"]
#[allow(dead_code)]
mod writer;

use peakledger_core::Moment;
use peakledger_input::Binary;
use peakledger_measure::snapshot::{Options, Snapshot, read};
use peakledger_measure::{MeasuredLedger, Measurement, RangeNames, Scope, content};
use proptest::prelude::*;
use std::time::{Duration, Instant};
use writer::{Py, dict, pickle};

const NAME: &str = "x.pickle";

/// One of each thing that a snapshot has, in few bytes.
fn small() -> Py {
    let frame = dict([("name", "f".into()), ("filename", "/p/a.py".into()), ("line", 7.into())]);
    let stack = Py::Shared(1, Box::new(Py::List(vec![frame])));
    let event = |action: &str, addr: i64, size: i64| {
        dict([
            ("action", action.into()),
            ("addr", addr.into()),
            ("size", size.into()),
            ("time_us", 9.into()),
            ("frames", stack.clone()),
        ])
    };
    let block = |address: i64, size: i64, state: &str| {
        dict([
            ("address", address.into()),
            ("size", size.into()),
            ("requested_size", 300.into()),
            ("state", state.into()),
        ])
    };
    dict([
        (
            "segments",
            Py::List(vec![dict([
                ("device", 0.into()),
                ("address", 512.into()),
                ("total_size", 2048.into()),
                ("segment_pool_id", Py::Tuple(vec![0.into(), 0.into()])),
                (
                    "blocks",
                    Py::List(vec![block(512, 512, "active_allocated"), block(1024, 1536, "inactive")]),
                ),
            ])]),
        ),
        (
            "device_traces",
            Py::List(vec![Py::List(vec![
                event("alloc", 1024, 600),
                event("free_requested", 1024, 600),
                event("free_completed", 1024, 600),
                event("oom", 0, 4096),
            ])]),
        ),
        (
            "external_annotations",
            Py::List(vec![dict([
                ("stage", "START".into()),
                ("name", "forward".into()),
                ("time_us", 8.into()),
            ])]),
        ),
    ])
}

/// Everything that is done with a file. Whether there was an answer.
fn answer(bytes: &[u8], salvage: bool) -> Option<u64> {
    let mut file = Binary::from_bytes(NAME, bytes).ok()?;
    content(&file).ok()?;
    let snapshot = read(&mut file, Options { salvage }, &mut |_| {}).map_err(|problem| {
        let said = problem.to_string();
        assert!(said.starts_with(NAME) && said.contains("\n  help: "), "{said}");
    });
    measure(&snapshot.ok()?, salvage)
}

fn measure(snapshot: &Snapshot, salvage: bool) -> Option<u64> {
    let scope = Scope { salvage, ..Scope::default() };
    let measurement = Measurement::of(NAME, snapshot, &scope).ok()?;
    let _said = measurement.notes(snapshot);
    for device in &measurement.devices {
        if let Ok(measured) = MeasuredLedger::of(snapshot, device.history.device, &RangeNames::default()) {
            assert_eq!(
                measured.ledger.peak().bytes.get(),
                device.allocated.peak,
                "the ledger has the same peak"
            );
            assert!(measured.ledger.peak().moment >= Moment(0));
        }
    }
    Some(measurement.largest().map_or(0, |device| device.requested.peak))
}

/// Runs in a thread of a small stack: what recursed as deep as a file says would overflow it.
fn in_a_small_stack(run: impl FnOnce() + Send + 'static) {
    std::thread::Builder::new().stack_size(256 << 10).spawn(run).unwrap().join().unwrap();
}

/// The most memory that this process ever had, where the system says so.
fn most_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}

#[test]
fn every_prefix_and_every_change_of_one_byte() {
    in_a_small_stack(|| {
        let began = Instant::now();
        for protocol in [2, 4] {
            let whole = pickle(&small(), protocol);
            assert_eq!(answer(&whole, false), Some(900), "before, and the one of the trace");
            let mut file = Binary::from_bytes(NAME, whole.as_slice()).unwrap();
            let snapshot = read(&mut file, Options::default(), &mut |_| {}).unwrap();
            MeasuredLedger::of(&snapshot, 0, &RangeNames::default()).expect("its ledger is compared too");
            for end in 0..whole.len() {
                assert_eq!(answer(&whole[..end], false), None, "a prefix is no whole file");
                let salvaged = answer(&whole[..end], true);
                assert!(salvaged.is_none_or(|peak| peak <= 900), "{end}: {salvaged:?}");
            }
        }
        let whole = pickle(&small(), 4);
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            for byte in 0..=255 {
                changed[at] = byte;
                let _either = answer(&changed, byte % 2 == 0);
            }
        }
        assert!(began.elapsed() < Duration::from_secs(300), "{:?}", began.elapsed());
    });
    if let Some(most) = most_memory() {
        assert!(most < 64 << 20, "{most} bytes");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_bytes_after_a_header(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _either = answer(&[&[0x80, 4], bytes.as_slice()].concat(), true);
    }

    #[test]
    fn any_opcodes_of_data(opcodes in proptest::collection::vec(proptest::sample::select(OPCODES.to_vec()), 0..120)) {
        let file = [&[0x80, 4][..], &opcodes.concat(), b"."].concat();
        let _either = answer(&file, true);
    }
}

/// Opcodes that are read, with small operands.
const OPCODES: &[&[u8]] = &[
    b"(",
    b"]",
    b"}",
    b")",
    b"a",
    b"e",
    b"s",
    b"u",
    b"t",
    b"\x85",
    b"\x86",
    b"\x87",
    b"N",
    b"\x88",
    b"\x94",
    b"K\x01",
    b"h\x00",
    b"h\x01",
    b"h\x02",
    b"h\x03",
    b"q\x00",
    b"q\x01",
    b"\x8c\x08segments",
    b"\x8c\x06action",
    b"\x8c\x05alloc",
    b"\x8c\x04addr",
    b"\x8c\x04size",
    b"\x8c\x06frames",
    b"\x8c\x04line",
    b"\x8c\x08filename",
    b"\x8c\x0ddevice_traces",
    b"\x8c\x05state",
    b"\x8c\x08inactive",
    b"\x8c\x06blocks",
    b"\x8c\x0atotal_size",
    b"\x8c\x05stage",
    b"\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00",
];
