//! Every real snapshot gives every figure of its row, to the byte.

use crate::shared;
use peakledger_input::{Binary, Input, MEASURED_LIMIT};
use peakledger_measure::snapshot::{Action, Options, Shape, Snapshot, read};
use peakledger_measure::{Curve, DeviceMeasurement, Live, Replay, UserLines};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::Path;

fn open(path: &Path) -> Snapshot {
    let mut file = Binary::open(&Input::of(path), MEASURED_LIMIT).unwrap();
    read(&mut file, Options::default(), &mut |_| {}).unwrap()
}

#[test]
fn every_figure_of_every_real_snapshot() {
    let Some(folder) = shared::snapshots() else { return };
    let table = std::fs::read_to_string(folder.join("truth.jsonl")).unwrap();
    let (mut files, mut figures, mut wrong) = (0, 0, Vec::new());
    for row in table.lines() {
        let row: Value = serde_json::from_str(row).unwrap();
        let name = row["file"].as_str().unwrap();
        let snapshot = open(&folder.join(name));
        compare(name, &row, &said_of(name, &snapshot), &mut figures, &mut wrong);
        files += 1;
    }
    assert!(wrong.is_empty(), "{} of {figures} figures are wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert!(files >= 23 && figures > 3000, "{files} files, {figures} figures");
    shared::say(&format!("{files} real snapshots, {figures} figures: all equal"));
}

/// Compares each figure of the row with ours, whatever is in the row.
fn compare(place: &str, wanted: &Value, found: &Value, figures: &mut usize, wrong: &mut Vec<String>) {
    match (wanted, found) {
        (Value::Object(wanted), Value::Object(found)) => {
            for (key, value) in wanted {
                let ours = found.get(key).unwrap_or(&Value::Null);
                compare(&format!("{place}.{key}"), value, ours, figures, wrong);
            }
        }
        (Value::Array(wanted), Value::Array(found)) if wanted.len() == found.len() => {
            for (at, (wanted, found)) in wanted.iter().zip(found).enumerate() {
                compare(&format!("{place}[{at}]"), wanted, found, figures, wrong);
            }
        }
        _ => {
            *figures += 1;
            if wanted != found {
                wrong.push(format!("{place}: {found}, not {wanted}"));
            }
        }
    }
}

fn said_of(name: &str, snapshot: &Snapshot) -> Value {
    let kind = match snapshot.shape {
        Shape::Snapshot => "snapshot",
        Shape::SegmentList => "segment_list",
    };
    let per_device: Vec<Value> = (0..snapshot.devices()).map(|device| of_device(snapshot, device)).collect();
    json!({
        "file": name,
        "kind": kind,
        "top_keys": snapshot.keys,
        "devices": snapshot.devices(),
        "annotations": snapshot.annotations.len(),
        "per_device": per_device,
    })
}

fn event(event: Option<u32>) -> i64 {
    event.map_or(-1, i64::from)
}

fn put_curve(map: &mut Map<String, Value>, name: &str, curve: &Curve) {
    map.insert(format!("start_{name}_requested"), curve.start.into());
    map.insert(format!("peak_{name}_requested"), curve.peak.into());
    map.insert(format!("peak_{name}_event"), event(curve.event).into());
    map.insert(format!("end_{name}_requested"), curve.end.into());
}

fn of_device(snapshot: &Snapshot, device: u32) -> Value {
    let measured = DeviceMeasurement::of(snapshot, device, None).unwrap();
    let (history, end) = (&measured.history, &measured.end);
    let agreement = &history.agreement;
    let lines = UserLines::of(snapshot);
    let actions: BTreeMap<&str, u64> = Action::ALL
        .iter()
        .zip(history.actions)
        .filter(|(_, count)| *count > 0)
        .map(|(action, count)| (action.as_str(), count))
        .collect();
    let states: BTreeMap<&str, u64> = ["active_allocated", "active_pending_free", "inactive"]
        .into_iter()
        .zip(end.blocks)
        .filter(|(_, count)| *count > 0)
        .collect();
    let mut map = Map::new();
    let figures = json!({
        "device": device,
        "events": measured.events(),
        "actions": actions,
        "segments": end.segments,
        "blocks": end.blocks.iter().sum::<u64>(),
        "block_states": states,
        "reserved_end": end.reserved,
        "allocated_end": end.allocated,
        "active_end": end.active,
        "alloc_blocks_size_end": end.allocated_blocks(),
        "alloc_blocks_requested_end": end.requested,
        "pending_free_bytes_end": end.pending(),
        "rounding_waste_end": end.rounding_waste(),
        "largest_free_block_end": end.largest_free,
        "inactive_bytes_end": end.inactive(),
        "inactive_in_wholly_free_segments": end.free_in_free_segments,
        "blocks_sum_equals_total": end.tiled,
        "streams": end.streams,
        "pools": end.pools,
        "expandable_segments": end.expandable_segments,
        "seg_small": end.small_segments,
        "baseline_survivor_blocks": agreement.survivors,
        "baseline_survivor_requested": agreement.survivors_requested,
        "baseline_freed_blocks": agreement.freed,
        "baseline_freed_requested": agreement.freed_requested,
        "live_end_matched": agreement.matched,
        "live_end_size_mismatch": agreement.mismatched,
        "open_allocs_not_in_segments": agreement.missing,
        "end_matches_segments": measured.end_difference() == 0,
        "end_diff": i64::try_from(measured.end_difference()).unwrap(),
        "reserved_start": history.reserved.start,
        "peak_reserved": measured.reserved.peak,
        "peak_reserved_event": event(measured.reserved.event),
        "reserved_start_negative": agreement.reserved_negative,
        "live_blocks_at_peak": measured.at_peak.len(),
        "top10_at_peak": measured.at_peak.iter().take(10).map(|live| json!({
            "requested": live.requested,
            "addr": live.address,
            "alloc_event": event(live.event),
            "user_frame": lines.text(live.stack),
        })).collect::<Vec<_>>(),
        "peak_by_user_frame_top5": by_user_frame(&measured.at_peak, &lines),
        "oom": measured.oom.iter().map(|oom| json!({
            "event": oom.event,
            "size": oom.rounded,
            "device_free": oom.device_free,
            "reserved": oom.reserved,
            "allocated_requested": oom.requested,
            "user_frame": lines.text(oom.stack),
        })).collect::<Vec<_>>(),
        "geometry": geometry(snapshot, &measured),
    });
    map.extend(figures.as_object().unwrap().clone());
    put_curve(&mut map, "allocated", &history.requested);
    put_curve(&mut map, "active", &history.requested_active);
    assert_eq!(history.requested, measured.requested, "both walks agree");
    assert_eq!(history.reserved, measured.reserved, "both walks agree");
    Value::Object(map)
}

fn by_user_frame(at_peak: &[Live], lines: &UserLines<'_>) -> Vec<Value> {
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    for live in at_peak {
        *sums.entry(lines.name(lines.owner(live.stack, live.event.is_some()))).or_default() += live.requested;
    }
    let mut sums: Vec<(String, u64)> = sums.into_iter().collect();
    sums.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    sums.into_iter().take(5).map(|(name, bytes)| json!([name, bytes])).collect()
}

fn geometry(snapshot: &Snapshot, measured: &DeviceMeasurement) -> Value {
    let mut checks = Vec::new();
    let mut replay = Replay::new(snapshot, &measured.history);
    while let Some((number, event, _)) = replay.step() {
        if event.action == Action::Snapshot {
            checks.push(json!([number, event.size, u64::try_from(replay.active()).unwrap()]));
        }
    }
    let allocs = measured.history.actions[Action::Alloc as usize];
    let [right, wrong] = measured.exact_blocks;
    json!({
        "allocs": allocs,
        "allocs_outside_known_segments": measured.outside,
        "allocs_not_split_bigger_than_rounded": measured.uncut,
        "active_peak_block_bytes": measured.active.peak,
        "active_peak_event": event(measured.active.event),
        "active_end_block_bytes": measured.active.end,
        "active_end_segments": measured.end.allocated_blocks() + measured.end.pending(),
        "live_end_blocks_ok": right,
        "live_end_blocks_wrong": wrong,
        "snapshot_event_checks": checks,
        "problems": {},
    })
}
