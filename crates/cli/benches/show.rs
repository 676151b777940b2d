//! `cargo bench -p peakledger-cli`: from a ledger file to the answer, and the sums alone, next to the seed's way in Python.
//!
//! Prints a table; each figure is the best of three. Python's time leaves out its start-up, ours counts it. The sums
//! are compared with the seed's summary (it also gathers names and sizes) and with six bare sums.

#![allow(clippy::print_stdout, clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_precision_loss)] // a benchmark prints, and may stop

mod timing;

use peakledger_core::Ledger;
use peakledger_core::sweep::{Stay, sums};
use peakledger_input::Input;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use timing::best;

fn main() {
    let folder = tempfile::tempdir().unwrap();
    println!(
        "{:>8}  {:>9}  {:>30}  {:>30}  {:>30}",
        "states", "file", "file to answer", "sums / seed's summary", "sums / bare sums"
    );
    for states in [1_000, 10_000, 100_000, 1_000_000] {
        let path = folder.path().join(format!("{states}.json"));
        let text = ledger_text(states);
        let size = text.len() as f64 / f64::from(1 << 20);
        std::fs::write(&path, text).unwrap();

        let (_, file) = peakledger_input::open_ledger(&Input::of(path.as_path())).unwrap();
        let answer = best(3, || run_show(&path));
        let summed = best(3, || sum(&file.ledger));
        let python = python(&path, file.ledger.peak().bytes.mib());
        println!(
            "{states:>8}  {size:>5.1} MiB  {:>30}  {:>30}  {:>30}",
            beside(answer, python.map(|[answer, ..]| answer)),
            beside(summed, python.map(|[_, summary, _]| summary)),
            beside(summed, python.map(|[.., sums]| sums)),
        );
    }
}

/// Ours, Python's where there is one, and how many times ours goes into it.
fn beside(ours: Duration, python: Option<Duration>) -> String {
    match python {
        None => format!("{ours:.2?} (no python3 here)"),
        Some(theirs) => {
            format!("{ours:.2?} / {theirs:.2?} = {:.0}×", theirs.as_secs_f64() / ours.as_secs_f64())
        }
    }
}

fn run_show(path: &Path) {
    let run = Command::new(env!("CARGO_BIN_EXE_peakledger")).arg("show").arg(path).output().unwrap();
    assert!(run.status.success());
}

fn sum(ledger: &Ledger) {
    let stays = || ledger.states().iter().flat_map(Stay::all_of);
    std::hint::black_box(sums(ledger.timeline(), stays).unwrap());
}

/// What Python takes for the answer, the summary and the bare sums, if there is a Python; its peak must be ours.
fn python(path: &Path, peak_mb: f64) -> Option<[Duration; 3]> {
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("benches/as_the_seed.py");
    let mut best: Option<[Duration; 3]> = None;
    for _ in 0..3 {
        let run = Command::new("python3").arg(&script).arg(path).output().ok()?;
        let text = String::from_utf8(run.stdout).unwrap();
        let figures: Vec<f64> = text.split_whitespace().map(|figure| figure.parse().unwrap()).collect();
        let [answer, summary, sums, peak] = figures.try_into().unwrap();
        assert!((peak - peak_mb).abs() <= peak_mb * 1e-9, "{peak} and {peak_mb}");
        let times = [answer, summary, sums].map(Duration::from_secs_f64);
        let least = |[a, b, c]: [Duration; 3]| [a.min(times[0]), b.min(times[1]), c.min(times[2])];
        best = Some(best.map_or(times, least));
    }
    best
}

/// A list of so many states, about 190 bytes each, from a small generator with a fixed start.
fn ledger_text(states: usize) -> String {
    const PHASES: [&str; 6] = ["load", "forward", "loss", "backward", "update", "zero_grad"];
    const CATEGORIES: [&str; 4] = ["parameter", "activation", "gradient", "workspace"];
    let mut seed: u64 = 1;
    let mut random = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(seed >> 33).unwrap() % below
    };
    let mut text = String::from("[");
    for index in 0..states {
        let (a, b) = (random(6), random(6));
        let (start, end) = (PHASES.get(a.min(b)).unwrap(), PHASES.get(a.max(b)).unwrap());
        let category = CATEGORIES.get(random(4)).unwrap();
        let size = random(1 << 28) as f64 / f64::from(1 << 20);
        let device = if random(4) == 0 { "cpu" } else { "gpu" };
        let comma = if index == 0 { "" } else { ", " };
        write!(
            text,
            "{comma}{{\"name\": \"model.layers.{}.mlp.tensor_{index}\", \"category\": \"{category}\", \"size_mb\": {size}, \
             \"start_phase\": \"{start}\", \"end_phase\": \"{end}\", \"device\": \"{device}\", \"persistent\": false}}",
            index % 96
        )
        .unwrap();
    }
    text + "]"
}
