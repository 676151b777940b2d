//! `cargo bench -p peakledger-cli --bench read`: from a snapshot to the answer, beside Python's bare `pickle.load` with the
//! collector off, both as whole processes on the same file: processor time of user and system, and the most memory that
//! each had.
//!
//! The snapshots have the sharing of real ones (frames of 32 lines, one stack for both events of a free): 9 MB, 50 MB and
//! 500 MB. `PEAKLEDGER_SNAPSHOT` names another file instead.

#![allow(clippy::print_stdout, clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_precision_loss)] // a benchmark prints, and may stop

#[path = "../../measure/tests/it/endless.rs"]
#[allow(dead_code)]
mod endless;
#[path = "../../measure/tests/it/writer.rs"]
#[allow(dead_code)]
mod writer;

use endless::{Endless, STEP};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

/// How many events the files have.
const EVENTS: [u64; 3] = [60_000, 350_000, 3_500_000];
/// Loads as every Python tool does at best, and prints nothing.
const LOAD: &str = "import gc, pickle, sys; gc.disable(); pickle.load(open(sys.argv[1], 'rb'))";
/// Runs a command three times; prints the least processor seconds, and the most memory in MB.
const WATCH: &str = "
import os, resource, subprocess, sys
def cpu():
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime
least = None
for _ in range(3):
    before = cpu()
    subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
    spent = cpu() - before
    least = spent if least is None else min(least, spent)
print(least, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e6)
";

fn main() {
    if let Some(path) = std::env::var_os("PEAKLEDGER_SNAPSHOT") {
        return compare(&PathBuf::from(path));
    }
    let folder = tempfile::tempdir().unwrap();
    for events in EVENTS {
        let path = folder.path().join(format!("{events}.pickle"));
        std::io::copy(&mut Endless::new(events / STEP), &mut File::create(&path).unwrap()).unwrap();
        compare(&path);
        std::fs::remove_file(path).unwrap();
    }
}

fn compare(path: &Path) {
    let megabytes = std::fs::metadata(path).unwrap().len() as f64 / 1e6;
    let file = path.to_str().unwrap();
    println!("a snapshot of {megabytes:.1} MB, file to answer");
    let Some([ours, our_memory]) = watched(&[env!("CARGO_BIN_EXE_peakledger"), "read", file]) else {
        println!("SKIPPED: no python3, which measures both");
        return;
    };
    let [theirs, their_memory] = watched(&["python3", "-c", LOAD, file]).unwrap();
    println!("  {:<22} {:>9} {:>10} {:>11}", "", "processor", "per second", "most memory");
    for (name, seconds, memory) in
        [("peakledger read", ours, our_memory), ("python's pickle.load", theirs, their_memory)]
    {
        println!("  {name:<22} {seconds:>7.2} s {:>7.0} MB {:>8.1} MB", megabytes / seconds, memory);
    }
    println!("  {:<22} {:>8.1}× {:>21.1}×", "Python's / ours", theirs / ours, their_memory / our_memory);
    println!("  {:<22} {:>20} {:>10.2}×", "memory / file", "", our_memory / megabytes);
}

/// Processor seconds and megabytes of a command, if there is a Python to measure them.
fn watched(command: &[&str]) -> Option<[f64; 2]> {
    let said = Command::new("python3").args(["-c", WATCH]).args(command).output().ok()?;
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    let text = String::from_utf8(said.stdout).unwrap();
    Some(
        text.split_whitespace()
            .map(|figure| figure.parse().unwrap())
            .collect::<Vec<f64>>()
            .try_into()
            .unwrap(),
    )
}
