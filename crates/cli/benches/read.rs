//! `cargo bench -p peakledger-cli --bench read`: from a snapshot to the answer, beside Python's bare `pickle.load` with the
//! collector off, both as whole processes on the same file: processor time, and the most memory that each had.
//!
//! The snapshot has the sharing of real ones (frames of 32 lines, one stack for both events of a free) and 8 MB;
//! `PEAKLEDGER_SNAPSHOT` names another file.

#![allow(clippy::print_stdout, clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_precision_loss)] // a benchmark prints, and may stop

#[path = "../../measure/tests/it/writer.rs"]
#[allow(dead_code)]
mod writer;

use std::path::PathBuf;
use std::process::Command;
use writer::{Py, dict, pickle};

/// Loads as every Python tool does at best, and prints nothing.
const LOAD: &str = "import gc, pickle, sys; gc.disable(); pickle.load(open(sys.argv[1], 'rb'))";
/// Runs a command three times; prints the least processor seconds, and the most memory in KiB.
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
print(least, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
";

fn main() {
    let folder = tempfile::tempdir().unwrap();
    let path = std::env::var_os("PEAKLEDGER_SNAPSHOT").map(PathBuf::from).unwrap_or_else(|| {
        let path = folder.path().join("snapshot.pickle");
        std::fs::write(&path, pickle(&snapshot(60_000), 4)).unwrap();
        path
    });
    let megabytes = std::fs::metadata(&path).unwrap().len() as f64 / 1e6;
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
        println!("  {name:<22} {seconds:>7.2} s {:>7.0} MB {:>8.1} MB", megabytes / seconds, memory / 1e3);
    }
    println!("  {:<22} {:>8.1}× {:>21.1}×", "Python's / ours", theirs / ours, their_memory / our_memory);
    let of_file = our_memory * 1.024 / 1e3 / megabytes;
    println!("  {:<22} {:>20} {:>10.2}×", "memory / file", "", of_file);
}

/// Processor seconds and KiB of a command, if there is a Python to measure them.
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

/// So many events: layers that allocate, and free in the reverse order.
fn snapshot(events: u32) -> Py {
    const BASE: i64 = 0x7f00_0000_0000;
    let frame = |number: u32| {
        let file = format!("/env/lib/python3.12/site-packages/torch/nn/modules/m{}.py", number % 40);
        let frame =
            dict([("name", "forward".into()), ("filename", Py::Str(file)), ("line", Py::Int(number.into()))]);
        Py::Shared(number, Box::new(frame))
    };
    let mut next_list = 1_000_000;
    let mut stack = |site: u32| {
        next_list += 1;
        let frames = (0..32).map(|depth| frame((site * 7 + depth * 31) % 700)).collect();
        Py::Shared(next_list, Box::new(Py::List(frames)))
    };
    let mut trace = Vec::new();
    let mut time: i64 = 1_780_000_000_000_000;
    let mut event = |action: &str, addr: i64, size: i64, stack: Py| {
        time += 7;
        dict([
            ("action", action.into()),
            ("addr", addr.into()),
            ("size", size.into()),
            ("stream", 0.into()),
            ("time_us", time.into()),
            ("compile_context", "N/A".into()),
            ("user_metadata", "".into()),
            ("frames", stack),
        ])
    };
    while trace.len() < events as usize {
        for layer in 0..96 {
            let size = 4_000_000 + i64::from(layer) * 512;
            trace.push(event("alloc", BASE + i64::from(layer) * (8 << 20), size, stack(layer)));
        }
        for layer in (0..96).rev() {
            let (addr, size) = (BASE + i64::from(layer) * (8 << 20), 4_000_000 + i64::from(layer) * 512);
            let freed = stack(layer + 200);
            trace.push(event("free_requested", addr, size, freed.clone()));
            trace.push(event("free_completed", addr, size, freed));
        }
    }
    dict([("segments", Py::List(vec![])), ("device_traces", Py::List(vec![Py::List(trace)]))])
}
