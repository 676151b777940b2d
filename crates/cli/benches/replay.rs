//! `cargo bench -p peakledger-cli --bench replay`: what the caching allocator makes of a plan, and how many events a second
//! it serves, beside the same rules in Python where there is one.

#![allow(clippy::print_stdout, clippy::unwrap_used, clippy::cast_precision_loss)] // a benchmark prints, and may stop

mod timing;

use peakledger_allocator::{Allocation, Allocator, Card, Request, Settings};
use peakledger_plan::catalogue::open_model;
use peakledger_plan::config::Architecture;
use peakledger_plan::options::{Options, Precision};
use peakledger_plan::{Plan, Step, plan};
use peakledger_report::Reservation;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use timing::best;

fn main() {
    let plan = planned();
    println!("llama-3.1-8b, bf16: load, first and steady step");
    for step in [Step::First, Step::Steady] {
        let events = plan.traffic(step).len();
        println!("  {events:>6} events of the {} step", step.as_str());
    }
    for text in ["", "expandable_segments:True", "max_split_size_mb:128"] {
        let settings: Settings = text.parse().unwrap();
        let reserve = || {
            std::hint::black_box(Reservation::of(&plan, settings, None, None).unwrap());
        };
        println!("  {:>9.2?}  {settings}", best(50, reserve));
    }
    println!("a training loop of 40 layers and 100 steps, events a second");
    let asked = training(40, 100);
    for text in ["", "expandable_segments:True", "max_split_size_mb:128", "roundup_power2_divisions:4"] {
        let settings: Settings = text.parse().unwrap();
        let mut reserved = 0;
        let time = best(5, || reserved = run(&asked, settings));
        println!("  {:>6.1} M  {settings}", millions(asked.len(), time));
        if text.is_empty() {
            beside_python(&asked, reserved, time);
        }
    }
}

fn planned() -> Plan {
    let llama = open_model("llama-3.1-8b").unwrap();
    let options = Options { precision: Precision::Bf16, ..Options::default() };
    plan(Architecture::read(&llama.config).unwrap(), options).unwrap()
}

/// Bytes to be allocated, or the number of an allocation to be freed.
#[derive(Clone, Copy)]
enum Ask {
    Alloc(u64),
    Free(usize),
}

/// Forward keeps four tensors a layer, each with two temporaries; backward lets go of them; lengths change from step to
/// step, as they do with real batches.
fn training(layers: usize, steps: u64) -> Vec<Ask> {
    let (mut asks, mut count) = (Vec::new(), 0);
    let mut seed: u64 = 1;
    for _ in 0..steps {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let tokens = 1024 + (seed >> 40) % 1024;
        let mut kept = Vec::new();
        let mut alloc = |asks: &mut Vec<Ask>, bytes| {
            asks.push(Ask::Alloc(bytes));
            count += 1;
            count - 1
        };
        for _ in 0..layers {
            for width in [4096, 4096, 14_336, 512] {
                let temporaries = [alloc(&mut asks, tokens * width * 4), alloc(&mut asks, tokens * 4)];
                kept.push(alloc(&mut asks, tokens * width * 2));
                asks.extend(temporaries.map(Ask::Free));
            }
        }
        for number in kept.into_iter().rev() {
            let gradient = alloc(&mut asks, tokens * 4096 * 2);
            asks.extend([Ask::Free(number), Ask::Free(gradient)]);
        }
    }
    asks
}

/// The most bytes reserved.
fn run(asked: &[Ask], settings: Settings) -> u64 {
    let mut allocator = Allocator::new(settings, Card::unlimited());
    let mut served: Vec<Allocation> = Vec::with_capacity(asked.len());
    let mut most = 0;
    for ask in asked {
        match ask {
            Ask::Alloc(bytes) => served.push(allocator.alloc(Request::of(*bytes)).unwrap()),
            Ask::Free(number) => allocator.free(*served.get(*number).unwrap()),
        }
        most = most.max(allocator.totals().reserved);
    }
    most
}

/// The same requests through the same rules in plain Python with bisected lists; it must reserve as much.
fn beside_python(asked: &[Ask], reserved: u64, ours: Duration) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("asks.txt");
    let mut text = std::io::BufWriter::new(std::fs::File::create(&file).unwrap());
    for ask in asked {
        match ask {
            Ask::Alloc(bytes) => writeln!(text, "a {bytes}").unwrap(),
            Ask::Free(number) => writeln!(text, "f {number}").unwrap(),
        }
    }
    text.flush().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/allocator.py");
    let Ok(said) = Command::new("python3").arg(script).arg(&file).output() else {
        println!("  SKIPPED: the same in Python (no python3 here)");
        return;
    };
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    let said = String::from_utf8(said.stdout).unwrap();
    let (seconds, theirs) = said.trim().split_once(' ').unwrap();
    assert_eq!(theirs.parse::<u64>().unwrap(), reserved);
    let python = Duration::from_secs_f64(seconds.parse().unwrap());
    let (rate, ratio) = (millions(asked.len(), python), python.as_secs_f64() / ours.as_secs_f64());
    println!("  {rate:>6.1} M  the same in Python: {ratio:.0}× as long");
}

fn millions(events: usize, time: Duration) -> f64 {
    events as f64 / time.as_secs_f64() / 1e6
}
