//! The fields of `read` for programs.

use super::rows::{by_category, pool_name, stream_name};
use super::{At, ReadReport};
use peakledger_measure::snapshot::{Action, Snapshot, StackId};
use peakledger_measure::{DeviceMeasurement, EndState, Holding, Live, Oom, UserLines, by_owner, by_stack};
use serde::Serialize;
use std::collections::BTreeMap;

/// Stacks are long: the largest of them, each up to so many frames.
const MOST_STACKS: usize = 20;
const MOST_FRAMES: usize = 64;

#[derive(Serialize)]
pub(super) struct ReadJson<'a> {
    devices: Vec<DeviceJson>,
    largest_device: Option<u32>,
    at: Option<AtJson>,
    settings: SettingsJson<'a>,
    keys: &'a [String],
    whole: bool,
    incomplete: Option<String>,
    notes: Vec<String>,
}

#[derive(Serialize)]
struct DeviceJson {
    device: u32,
    events: u32,
    actions: BTreeMap<&'static str, u64>,
    segments: u64,
    reserved_end_bytes: u64,
    allocated_end_bytes: u64,
    active_end_bytes: u64,
    peak: PeakJson,
    peak_reserved_bytes: u64,
    peak_reserved_event: i64,
    opening_requested_bytes: u64,
    opening_reserved_bytes: u64,
    rounding_waste_end_bytes: u64,
    largest_free_block_end_bytes: u64,
    pending_free_end_bytes: u64,
    free_segments_end_bytes: u64,
    stuck_end_bytes: u64,
    holdings: Vec<HoldingJson>,
    oom: Vec<OomJson>,
    contributors: Vec<LiveJson>,
    by_user_frame: Vec<LineJson>,
    by_stack: Vec<StackJson>,
    /// Requested bytes at the peak, as far as their category is told.
    by_category: BTreeMap<&'static str, u64>,
    unknown_category_bytes: u64,
    complete: bool,
}

#[derive(Serialize)]
struct PeakJson {
    event: i64,
    requested_bytes: u64,
    allocated_event: i64,
    allocated_bytes: u64,
    active_event: i64,
    active_bytes: u64,
}

#[derive(Serialize)]
struct HoldingJson {
    pool: String,
    stream: String,
    segments: u64,
    reserved_bytes: u64,
    allocated_bytes: u64,
    requested_bytes: u64,
    pending_free_bytes: u64,
    free_segments_bytes: u64,
    stuck_bytes: u64,
    largest_free_block_bytes: u64,
}

#[derive(Serialize)]
struct OomJson {
    event: u32,
    rounded_bytes: u64,
    segment_bytes: u64,
    device_free_bytes: Option<u64>,
    reserved_bytes: u64,
    active_bytes: u64,
    largest_free_block_bytes: u64,
    defragmenting_saves: bool,
    user_frame: Option<String>,
    explanation: String,
}

#[derive(Serialize)]
struct LiveJson {
    requested_bytes: u64,
    size_bytes: u64,
    alloc_event: i64,
    address: u64,
    user_frame: Option<String>,
}

#[derive(Serialize)]
struct LineJson {
    line: String,
    requested_bytes: u64,
    size_bytes: u64,
    blocks: u64,
}

#[derive(Serialize)]
struct StackJson {
    requested_bytes: u64,
    size_bytes: u64,
    blocks: u64,
    depth: usize,
    frames: Vec<String>,
}

#[derive(Serialize)]
struct AtJson {
    event: i64,
    requested_bytes: u64,
    size_bytes: u64,
    contributors: Vec<LiveJson>,
}

#[derive(Serialize)]
struct SettingsJson<'a> {
    recorded: bool,
    alloc_conf: &'a str,
    expandable_segments: bool,
    max_split_size_bytes: Option<u64>,
    garbage_collection_threshold: f64,
    roundup_power2_divisions: [u32; 16],
}

impl<'a> ReadJson<'a> {
    pub(super) fn of(report: &ReadReport<'a>) -> ReadJson<'a> {
        let (snapshot, lines) = (report.snapshot, report.lines());
        let settings = &snapshot.settings;
        let split = settings.cut.max_split_size;
        ReadJson {
            devices: report.measurement.devices.iter().map(|d| device(snapshot, d, &lines)).collect(),
            largest_device: report.measurement.largest().map(|device| device.history.device),
            at: report.at.as_ref().map(|at| at_json(at, &lines)),
            settings: SettingsJson {
                recorded: settings.recorded,
                alloc_conf: &settings.alloc_conf,
                expandable_segments: settings.expandable_segments,
                max_split_size_bytes: (split != u64::MAX).then_some(split),
                garbage_collection_threshold: settings.garbage_collection_threshold,
                roundup_power2_divisions: settings.rounding.divisions,
            },
            keys: &snapshot.keys,
            whole: snapshot.lost.is_none(),
            incomplete: report.measurement.incomplete(snapshot),
            notes: report.measurement.notes(snapshot),
        }
    }
}

fn event(event: Option<u32>) -> i64 {
    event.map_or(-1, i64::from)
}

fn device(snapshot: &Snapshot, device: &DeviceMeasurement, lines: &UserLines<'_>) -> DeviceJson {
    let end: &EndState = &device.end;
    let categories = by_category(snapshot, device.history.device, &device.at_peak, device.requested.event);
    let unknown = categories.iter().filter(|(category, _)| category.is_none());
    let actions = Action::ALL.iter().zip(device.history.actions).filter(|(_, count)| *count > 0);
    DeviceJson {
        device: device.history.device,
        events: device.events(),
        actions: actions.map(|(action, count)| (action.as_str(), count)).collect(),
        segments: end.segments,
        reserved_end_bytes: end.reserved,
        allocated_end_bytes: end.allocated,
        active_end_bytes: end.active,
        peak: PeakJson {
            event: event(device.requested.event),
            requested_bytes: device.requested.peak,
            allocated_event: event(device.allocated.event),
            allocated_bytes: device.allocated.peak,
            active_event: event(device.active.event),
            active_bytes: device.active.peak,
        },
        peak_reserved_bytes: device.reserved.peak,
        peak_reserved_event: event(device.reserved.event),
        opening_requested_bytes: device.history.requested.start,
        opening_reserved_bytes: device.history.reserved.start,
        rounding_waste_end_bytes: end.rounding_waste(),
        largest_free_block_end_bytes: end.largest_free,
        pending_free_end_bytes: end.pending(),
        free_segments_end_bytes: end.free_in_free_segments,
        stuck_end_bytes: end.inactive().saturating_sub(end.free_in_free_segments),
        holdings: end.holdings.iter().map(|holding| holding_json(snapshot, holding)).collect(),
        oom: device.oom.iter().map(|oom| oom_json(oom, lines)).collect(),
        contributors: device.at_peak.iter().map(|live| live_json(live, lines)).collect(),
        by_user_frame: by_owner(&device.at_peak, lines)
            .into_iter()
            .map(|group| LineJson {
                line: lines.name(group.key),
                requested_bytes: group.requested,
                size_bytes: group.size,
                blocks: group.blocks,
            })
            .collect(),
        by_stack: by_stack(&device.at_peak)
            .into_iter()
            .take(MOST_STACKS)
            .map(|group| StackJson {
                requested_bytes: group.requested,
                size_bytes: group.size,
                blocks: group.blocks,
                depth: snapshot.stacks.frames(group.key).len(),
                frames: frames(snapshot, group.key),
            })
            .collect(),
        unknown_category_bytes: unknown.map(|(_, bytes)| bytes).sum(),
        by_category: categories
            .iter()
            .filter_map(|(category, bytes)| Some(((*category)?.as_str(), *bytes)))
            .collect(),
        complete: device.complete,
    }
}

fn frames(snapshot: &Snapshot, stack: StackId) -> Vec<String> {
    snapshot.stacks.frames(stack).take(MOST_FRAMES).map(|frame| frame.place(&snapshot.texts)).collect()
}

fn holding_json(snapshot: &Snapshot, holding: &Holding) -> HoldingJson {
    HoldingJson {
        pool: pool_name(snapshot, holding),
        stream: stream_name(snapshot, holding),
        segments: holding.segments,
        reserved_bytes: holding.reserved,
        allocated_bytes: holding.allocated,
        requested_bytes: holding.requested,
        pending_free_bytes: holding.pending,
        free_segments_bytes: holding.free_in_free_segments,
        stuck_bytes: holding.stuck,
        largest_free_block_bytes: holding.largest_free,
    }
}

fn oom_json(oom: &Oom, lines: &UserLines<'_>) -> OomJson {
    OomJson {
        event: oom.event,
        rounded_bytes: oom.rounded,
        segment_bytes: oom.segment,
        device_free_bytes: oom.device_free,
        reserved_bytes: oom.reserved,
        active_bytes: oom.active,
        largest_free_block_bytes: oom.largest_free,
        defragmenting_saves: oom.defragmenting_saves,
        user_frame: lines.text(oom.stack),
        explanation: oom.sentence(),
    }
}

fn live_json(live: &Live, lines: &UserLines<'_>) -> LiveJson {
    LiveJson {
        requested_bytes: live.requested,
        size_bytes: live.size,
        alloc_event: event(live.event),
        address: live.address,
        user_frame: lines.text(live.stack),
    }
}

fn at_json(at: &At, lines: &UserLines<'_>) -> AtJson {
    AtJson {
        event: event(at.event),
        requested_bytes: at.live.iter().map(|live| live.requested).sum(),
        size_bytes: at.live.iter().map(|live| live.size).sum(),
        contributors: at.live.iter().map(|live| live_json(live, lines)).collect(),
    }
}
