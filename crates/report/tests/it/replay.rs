//! Real traces through the model of the allocator: each block where the trace has it, each segment when it came and went.

use crate::said;
use peakledger_input::{Binary, Input, MEASURED_LIMIT};
use peakledger_measure::snapshot::{self, Options};
use peakledger_report::{Asked, Format, ReplayReport, Replays};
use serde_json::Value;
use std::io::Write as _;
use std::path::PathBuf;

/// Its addresses are made up: they lie in no segment.
const MADE_UP: &str = "33_synthetic_compile.pickle";

#[test]
fn every_real_trace_is_followed_to_the_address() {
    let Some(folder) = snapshots() else { return };
    let truth = std::fs::read_to_string(folder.join("truth.jsonl")).unwrap();
    let (mut devices, mut blocks, mut from_empty) = (0, 0, Vec::new());
    for line in truth.lines().filter(|line| !line.is_empty()) {
        let row: Value = serde_json::from_str(line).unwrap();
        let file = row["file"].as_str().unwrap();
        let mut binary = Binary::open(&Input::of(folder.join(file)), MEASURED_LIMIT).unwrap();
        let snapshot = snapshot::read(&mut binary, Options::default(), &mut |_| {}).unwrap();
        for device in row["per_device"].as_array().unwrap() {
            if device["actions"]["alloc"].as_u64().is_none() {
                continue;
            }
            let asked = Asked {
                device: Some(u32::try_from(device["device"].as_u64().unwrap()).unwrap()),
                ..Asked::default()
            };
            let replays = Replays::of_snapshot(file, &snapshot, &asked).unwrap();
            let report = ReplayReport { name: file, replays: &replays };
            let json: Value = serde_json::from_str(&said(&report, Format::Json)).unwrap();
            let followed = &json["followed"];
            if file == MADE_UP {
                assert_eq!(followed["exact"], false, "{file}");
                assert!(said(&report, Format::Table).contains("the replay puts 0 of 520 blocks"));
                continue;
            }
            assert_eq!(followed["exact"], true, "{file}: {followed}");
            assert_eq!(followed["blocks"], device["actions"]["alloc"], "{file}");
            let actions = ["segment_alloc", "segment_map", "segment_free", "segment_unmap"];
            let segments: u64 = actions.iter().filter_map(|action| device["actions"][action].as_u64()).sum();
            assert_eq!(followed["segments"], segments, "{file}");
            let recorded = &json["runs"][0];
            assert_eq!(recorded["reserved_bytes"], device["peak_reserved"], "{file}");
            assert_eq!(recorded["end"]["reserved_bytes"], device["reserved_end"], "{file}");
            assert_eq!(recorded["end"]["allocated_bytes"], device["allocated_end"], "{file}");
            assert_eq!(recorded["end"]["requested_bytes"], device["alloc_blocks_requested_end"], "{file}");
            assert_eq!(recorded["end"]["pending_bytes"], device["pending_free_bytes_end"], "{file}");
            if json["from_empty"] == true {
                from_empty.push(format!("{} {}", &file[..2], device["device"]));
            }
            devices += 1;
            blocks += followed["blocks"].as_u64().unwrap();
        }
    }
    assert_eq!((devices, blocks), (16, 39_980));
    assert_eq!(from_empty, ["04 0", "04 1", "04 2", "27 0", "42 0"]);
}

fn snapshots() -> Option<PathBuf> {
    let root = std::env::var_os("PEAKLEDGER_SHARED").map(PathBuf::from);
    let root = root.unwrap_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared")));
    let folder = root.join("data/snapshots");
    if !folder.is_dir() {
        let line = format!("SKIPPED: nothing at {}; the allocator's own tests still run\n", folder.display());
        std::io::stderr().write_all(line.as_bytes()).unwrap();
        return None;
    }
    Some(folder)
}
