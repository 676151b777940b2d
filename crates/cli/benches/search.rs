//! `cargo bench -p peakledger-cli --bench search`: a search over 1,000, 3,000 and 10,000 configurations as a whole process, each
//! of which can be, no two alike; fewer of pipelines, which take longer; and the usual values on 8 GPUs, most of which cannot be.

#![allow(clippy::print_stdout, clippy::unwrap_used, clippy::indexing_slicing)] // a benchmark prints, and may stop

use std::process::Command;
use std::time::{Duration, Instant};

/// 2 × 2 × 3 × 2 × 2 configurations of each length, on 8 GPUs.
const AMONG: [&str; 5] = [
    "tp=1,2",
    "fsdp=none,full_shard",
    "recompute=none,selective,full",
    "batch=1,2",
    "optimizer-impl=foreach,fused",
];
const OF_A_LENGTH: u32 = 48;

/// Pipelines: 2 × 2 × 3 × 2 of each length.
const PIPELINES: [&str; 4] = ["tp=1,2", "pp=2,4", "recompute=none,selective,full", "zero=0,1"];
const PIPELINES_OF_A_LENGTH: u32 = 24;

fn main() {
    let threads = std::thread::available_parallelism().unwrap();
    println!("fit --among, llama-3.1-8b on 8 GPUs, {threads} threads");
    linear([1_000, 3_000, 10_000], &AMONG, OF_A_LENGTH, "--global-batch-size=16");
    println!("the same of pipelines");
    linear([100, 300, 1_000], &PIPELINES, PIPELINES_OF_A_LENGTH, "--global-batch-size=64");
    println!("fit --search, llama-3.1-70b");
    let (time, answer) = run(&["llama-3.1-70b", "--gpus", "8", "--search", "--global-batch-size=256"]);
    let (tried, possible) = (answer["tried"].as_u64().unwrap(), answer["possible"].as_u64().unwrap());
    println!("  8 GPUs: {tried} combinations, {possible} can be  {time:>9.2?}");
}

fn linear(counts: [u32; 3], among: &[&str], of_a_length: u32, batch: &str) {
    for wanted in counts {
        let lengths: Vec<String> =
            (0..wanted.div_ceil(of_a_length)).map(|at| (512 + 8 * at).to_string()).collect();
        let lengths = format!("seq-len={}", lengths.join(","));
        let among = among.iter().copied().chain([lengths.as_str()]).flat_map(|values| ["--among", values]);
        let arguments: Vec<&str> = ["llama-3.1-8b", "--gpus", "8", batch].into_iter().chain(among).collect();
        let (time, answer) = run(&arguments);
        let count = u32::try_from(answer["possible"].as_u64().unwrap()).unwrap();
        assert_eq!(answer["possible"], answer["tried"], "each of them can be");
        println!("  {count:>6} configurations {time:>9.2?}  {:>9.2?} each", time / count);
    }
}

fn run(arguments: &[&str]) -> (Duration, serde_json::Value) {
    let began = Instant::now();
    let mut command = Command::new(env!("CARGO_BIN_EXE_peakledger"));
    let out =
        command.arg("fit").args(arguments).args(["--gpu", "h100-80gb", "--format", "json"]).output().unwrap();
    let time = began.elapsed();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    (time, serde_json::from_slice(&out.stdout).unwrap())
}
