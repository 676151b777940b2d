//! However many events there are, a snapshot takes the memory that is promised for it and no more. Alone in its process,
//! so that the memory is its own; the file is written while it is read, and lies nowhere.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)] // helpers of tests

#[path = "it/endless.rs"]
mod endless;
#[path = "it/writer.rs"]
#[allow(dead_code)]
mod writer;

use endless::{Endless, STEP, peak};
use peakledger_input::Binary;
use peakledger_measure::snapshot::{Options, read};
use peakledger_measure::{Measurement, Scope};
use std::io::{self, Write};

/// Reads and measures so many events. The file's bytes.
fn measured(events: u64) -> u64 {
    let steps = events.div_ceil(STEP);
    let mut file = Binary::from_reader("many.pickle", Endless::new(steps)).unwrap();
    let snapshot = read(&mut file, Options::default(), &mut |_| {}).unwrap();
    let measurement = Measurement::of(file.name(), &snapshot, &Scope::default()).unwrap();
    let device = measurement.largest().unwrap();
    assert_eq!(u64::from(device.events()), steps * STEP);
    assert_eq!((device.requested.peak, device.requested.event), (peak(), Some(95)));
    assert_eq!((device.requested.end, device.at_peak.len(), snapshot.stacks.count()), (0, 96, 193));
    assert!(device.complete);
    file.consumed()
}

/// The most memory that this process ever had, where the system says so.
fn most_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}

/// What is promised: three tenths of the file, and 16 MiB.
fn within_the_promise(events: u64) {
    let file = measured(events);
    let Some(most) = most_memory() else {
        let _closed = writeln!(io::stderr(), "SKIPPED: this system does not say how much memory was taken");
        return;
    };
    let _closed = writeln!(
        io::stderr(),
        "{events} events in {} MB: {} MB of memory, {} hundredths of the file",
        file / 1_000_000,
        most / 1_000_000,
        100 * most / file
    );
    assert!(most < file / 10 * 3 + (16 << 20), "{most} bytes of memory for {file} of the file");
}

#[test]
fn a_million_events() {
    within_the_promise(1_000_000);
}

/// 14 GB of a file, 4 GB of memory and some minutes: `cargo test --release -p peakledger-measure --test many_events --
/// --ignored`.
#[test]
#[ignore = "4 GB of memory and some minutes"]
fn a_hundred_million_events() {
    within_the_promise(100_000_000);
}
