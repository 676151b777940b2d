//! A replay as JSON: bytes are integers.

use super::replays::Places;
use super::report::ReplayReport;
use super::script::{Outcome, Point};
use peakledger_allocator::Totals;
use serde::Serialize;

#[derive(Serialize)]
pub(super) struct ReplayJson {
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    events: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    phases: Option<Vec<String>>,
    from_empty: bool,
    /// How well the recorded run follows the trace; null for a ledger, which has none.
    followed: Option<FollowedJson>,
    /// What the allocator may hold at most; null where no card is known.
    room_bytes: Option<u64>,
    /// As recorded first, then under other settings.
    runs: Vec<RunJson>,
}

#[derive(Serialize)]
struct FollowedJson {
    exact: bool,
    blocks: u64,
    blocks_in_place: u64,
    segments: u64,
    segments_in_time: u64,
}

#[derive(Serialize)]
struct RunJson {
    settings: String,
    reserved_bytes: u64,
    max_allocated_bytes: u64,
    peak: PointJson,
    end: TotalsJson,
    cache_flushes: u64,
    oom: Option<OomJson>,
    /// Every change of the reserved bytes.
    over_time: Vec<ChangeJson>,
}

/// -1 is before the first event.
#[derive(Serialize)]
struct PointJson {
    at: i64,
    #[serde(flatten)]
    totals: TotalsJson,
}

#[derive(Serialize)]
struct TotalsJson {
    reserved_bytes: u64,
    allocated_bytes: u64,
    active_bytes: u64,
    requested_bytes: u64,
    rounding_bytes: u64,
    tails_bytes: u64,
    pending_bytes: u64,
    returnable_bytes: u64,
    stuck_bytes: u64,
}

#[derive(Serialize)]
struct ChangeJson {
    at: i64,
    reserved_bytes: u64,
    allocated_bytes: u64,
}

#[derive(Serialize)]
struct OomJson {
    at: u32,
    requested_bytes: u64,
    segment_bytes: u64,
    device_free_bytes: Option<u64>,
    reserved_bytes: u64,
    allocated_bytes: u64,
    free_in_pool_bytes: u64,
    largest_free_block_bytes: u64,
    is_fragmentation: bool,
}

impl ReplayJson {
    pub(super) fn of(report: &ReplayReport<'_>) -> ReplayJson {
        let replays = report.replays;
        let (device, events, phases) = match &replays.places {
            Places::Events { device, count, .. } => (Some(*device), Some(*count), None),
            Places::Phases(names) => (None, None, Some(names.clone())),
        };
        let followed = replays.followed.map(|followed| FollowedJson {
            exact: followed.is_exact(),
            blocks: followed.blocks,
            blocks_in_place: followed.in_place,
            segments: followed.given,
            segments_in_time: followed.asked,
        });
        let runs = replays.runs.iter().map(run).collect();
        ReplayJson {
            device,
            events,
            phases,
            from_empty: replays.from_empty,
            followed,
            room_bytes: replays.room,
            runs,
        }
    }
}

fn run(run: &Outcome) -> RunJson {
    let change = |point: &Point| ChangeJson {
        at: place(point.at),
        reserved_bytes: point.totals.reserved,
        allocated_bytes: point.totals.allocated,
    };
    RunJson {
        settings: run.settings.to_string(),
        reserved_bytes: run.peak.totals.reserved,
        max_allocated_bytes: run.allocated_peak.totals.allocated,
        peak: PointJson { at: place(run.peak.at), totals: run.peak.totals.into() },
        end: run.end.into(),
        cache_flushes: run.retries,
        oom: run.oom.map(|(at, oom)| OomJson {
            at,
            requested_bytes: oom.requested,
            segment_bytes: oom.segment,
            device_free_bytes: oom.unused,
            reserved_bytes: oom.totals.reserved,
            allocated_bytes: oom.totals.allocated,
            free_in_pool_bytes: oom.free_in_pool,
            largest_free_block_bytes: oom.largest_free,
            is_fragmentation: oom.is_fragmentation(),
        }),
        over_time: run.reserved.iter().map(change).collect(),
    }
}

fn place(at: Option<u32>) -> i64 {
    at.map_or(-1, i64::from)
}

impl From<Totals> for TotalsJson {
    fn from(totals: Totals) -> TotalsJson {
        TotalsJson {
            reserved_bytes: totals.reserved,
            allocated_bytes: totals.allocated,
            active_bytes: totals.active,
            requested_bytes: totals.requested,
            rounding_bytes: totals.rounding,
            tails_bytes: totals.tails,
            pending_bytes: totals.pending(),
            returnable_bytes: totals.returnable,
            stuck_bytes: totals.stuck(),
        }
    }
}
