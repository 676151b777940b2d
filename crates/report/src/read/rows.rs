//! What the tables of `read` are made of.

use crate::Look;
use crate::table::{Cell, Column, Table};
use peakledger_core::block::Pool;
use peakledger_core::{Bytes, Category};
use peakledger_measure::snapshot::Snapshot;
use peakledger_measure::{
    Curve, DeviceMeasurement, EndState, Holding, Live, RangeNames, UserLines, by_owner, kinds, spans,
};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// A maker of blocks and what it made.
pub(super) struct Row {
    pub(super) name: String,
    pub(super) bytes: u64,
    pub(super) blocks: u64,
}

/// The blocks by the user's line that asked for them, the largest first.
pub(super) fn makers(live: &[Live], lines: &UserLines<'_>) -> Vec<Row> {
    by_owner(live, lines)
        .into_iter()
        .map(|group| Row { name: lines.name(group.key), bytes: group.requested, blocks: group.blocks })
        .collect()
}

/// The four sums of a device, with their names.
pub(super) fn peaks(device: &DeviceMeasurement) -> [(&'static str, Curve); 4] {
    [
        ("requested", device.requested),
        ("allocated", device.allocated),
        ("active", device.active),
        ("reserved", device.reserved),
    ]
}

/// When something was.
pub(super) fn event_name(event: Option<u32>, events: u32) -> String {
    match (event, events) {
        (None, 0) => "at the end (no event was recorded)".to_owned(),
        (None, _) => "before the first event".to_owned(),
        (Some(event), events) => format!("after event {event} of {events}"),
    }
}

/// What is written under a picture of a device, each with its moment: the phases, or where none is named the events.
pub(super) fn moments(
    snapshot: &Snapshot,
    device: &DeviceMeasurement,
    names: &RangeNames,
) -> Vec<(u32, String)> {
    let window = &device.window;
    let moment = |event: u32| event.saturating_sub(window.start).saturating_add(1);
    let (spans, _) = spans(snapshot, device.history.device, names);
    if spans.len() < 2 {
        let named = |event: u32| (moment(event), format!("event {event}"));
        return vec![named(window.start), named(window.end.saturating_sub(1))];
    }
    let ends = spans.iter().skip(1).map(|span| span.first).chain([device.events()]);
    let shown = spans.iter().zip(ends).filter(|(span, end)| span.first < window.end && *end > window.start);
    shown.map(|(span, _)| (moment(span.first), span.phase.to_string())).collect()
}

/// What reserved bytes are used for; together they are all of them.
pub(super) fn uses(end: &EndState) -> [(&'static str, u64); 6] {
    let stuck = end.inactive().saturating_sub(end.free_in_free_segments);
    let blocks = end.allocated_blocks().saturating_add(end.pending()).saturating_add(end.inactive());
    [
        ("requested, in use", end.requested.min(end.allocated_blocks())),
        ("rounding and tails of blocks in use", end.rounding_waste()),
        ("waiting for a stream (pending free)", end.pending()),
        ("in wholly free segments (empty_cache returns them)", end.free_in_free_segments),
        ("stuck inside segments partly in use", stuck),
        ("in no block", end.reserved.saturating_sub(blocks)),
    ]
}

/// Each pool and stream: what is free in one is of no use to another.
pub(super) fn holdings(snapshot: &Snapshot, end: &EndState, look: &Look) -> Table {
    let mut table = Table::new(vec![
        Column::left("pool").cut(),
        Column::right("stream").optional(),
        Column::right("reserved"),
        Column::right("allocated"),
        Column::right("stuck").optional(),
        Column::right("largest free").optional(),
    ]);
    for holding in &end.holdings {
        let bytes = |bytes: u64| Cell::plain(Bytes::new(bytes).to_string());
        table.row(vec![
            Cell::plain(pool_name(snapshot, holding)),
            Cell::styled(stream_name(snapshot, holding), look.faint()),
            bytes(holding.reserved),
            bytes(holding.allocated),
            bytes(holding.stuck),
            bytes(holding.largest_free),
        ]);
    }
    table
}

/// `small`, `large`, and with the pool's pair where it is not the default one.
pub(super) fn pool_name(snapshot: &Snapshot, holding: &Holding) -> String {
    let kind = match holding.kind {
        Pool::Small => "small",
        Pool::Large => "large",
    };
    match snapshot.pools.get(usize::from(holding.pool.0)) {
        Some((0, 0)) | None => kind.to_owned(),
        Some((0, user)) => format!("{kind}, MemPool {user}"),
        Some((capture, 0)) => format!("{kind}, graph {capture}"),
        Some((first, second)) => format!("{kind}, pool ({first}, {second})"),
    }
}

/// `default`, or the handle.
pub(super) fn stream_name(snapshot: &Snapshot, holding: &Holding) -> String {
    match snapshot.streams.get(usize::from(holding.stream.0)) {
        Some(0) | None => "default".to_owned(),
        Some(handle) => handle.to_string(),
    }
}

/// Requested bytes by category, the largest first; last those of blocks that nothing tells.
pub(super) fn by_category(
    snapshot: &Snapshot,
    device: u32,
    live: &[Live],
    after: Option<u32>,
) -> Vec<(Option<Category>, u64)> {
    let mut sums: BTreeMap<Option<Category>, u64> = BTreeMap::new();
    for (live, kind) in live.iter().zip(kinds(snapshot, device, live, after)) {
        let sum = sums.entry(kind.told.then_some(kind.category)).or_default();
        *sum = sum.saturating_add(live.requested); // part of a total that fits
    }
    let mut sums: Vec<(Option<Category>, u64)> = sums.into_iter().collect();
    sums.sort_by_key(|(category, bytes)| (category.is_none(), Reverse(*bytes)));
    sums
}
