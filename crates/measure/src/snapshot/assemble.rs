//! From the top of the file to a [`Snapshot`]: which rows are whose.

use super::fold::MOST_DEVICES;
use super::key::Key;
use super::settings::Settings;
use super::tables::Tables;
use super::{Shape, Snapshot, TextId};
use crate::pickle::{Arena, Table, Value, Wrong};
use peakledger_core::block::Rounding;
use std::ops::Range;

/// What to do where the recording was never switched on.
const RECORD: &str = "no trace was recorded: only the final state is known \
     (`torch.cuda.memory._record_memory_history()` before the step records one)";

impl Tables {
    /// The snapshot that the top of the file is, and why it is only a part of one.
    pub(super) fn assemble(self, top: Value, lost: Option<String>, arena: &Arena) -> Result<Snapshot, Wrong> {
        let mut snapshot = Snapshot {
            shape: Shape::Snapshot,
            keys: Vec::new(),
            texts: self.texts,
            stacks: self.stacks,
            events: self.events,
            traces: Vec::new(),
            host_events: None,
            segments: self.segments,
            blocks: self.blocks,
            streams: self.streams.values,
            pools: self.pools.values,
            annotations: self.annotations,
            settings: Settings::default(),
            notes: self.notes,
            lost,
            cut_device: None,
        };
        match top {
            Value::Rows { table: Table::Segment, start, len, .. } => {
                snapshot.shape = Shape::SegmentList;
                snapshot.keep_segments(start, len);
                snapshot.notes.say(format!("a bare list of segments, the legacy shape: {RECORD}"));
            }
            Value::EmptyList(_) => {
                snapshot.shape = Shape::SegmentList;
                snapshot.notes.say("an empty list of segments: the allocator held nothing");
            }
            Value::Dict(dict, _) => snapshot.read_top(arena.dict(dict), arena)?,
            other => {
                let cause =
                    format!("the file holds {}, not a snapshot (a dict with `segments`)", other.kind());
                return Err(Wrong::new(cause));
            }
        }
        Ok(snapshot)
    }
}

impl Snapshot {
    fn read_top(&mut self, pairs: &[(TextId, Value)], arena: &Arena) -> Result<(), Wrong> {
        self.keys = pairs.iter().map(|(key, _)| self.texts.text(*key)).collect();
        let value = |key: Key| pairs.iter().rev().find(|(k, _)| Key::of(*k) == Some(key)).map(|(_, v)| *v);
        let (segments, traces) = (value(Key::Segments), value(Key::DeviceTraces));
        if segments.is_none() && traces.is_none() {
            let most = 8;
            let mut found: Vec<String> = self.keys.iter().take(most).map(|key| format!("`{key}`")).collect();
            if self.keys.len() > most {
                found.push("…".to_owned());
            }
            let found = if found.is_empty() { "nothing".to_owned() } else { found.join(", ") };
            return Err(Wrong::new(format!("neither `segments` nor `device_traces` is in it, but {found}")));
        }
        match segments {
            Some(Value::Rows { table: Table::Segment, start, len, .. }) => self.keep_segments(start, len),
            Some(Value::EmptyList(_)) => self.segments.clear(),
            Some(other) => {
                let cause = format!("`segments` is {}, not a list of segments", other.kind());
                return Err(Wrong::new(cause));
            }
            None => self.notes.say("no `segments`: the state at the end is known from the trace alone"),
        }
        match traces {
            Some(traces) => self.read_traces(traces, arena)?,
            None => self.say_no_trace(),
        }
        if let Some(Value::Dict(settings, _)) = value(Key::AllocatorSettings) {
            self.read_settings(arena.dict(settings), arena);
        }
        match value(Key::ExternalAnnotations) {
            Some(Value::Rows { table: Table::Annotation, start, len, .. }) => {
                self.annotations.truncate(start as usize + len as usize);
                self.annotations.drain(..start as usize);
            }
            _ => self.annotations.clear(),
        }
        if let Some(Value::List(..) | Value::Rows { .. }) = value(Key::HostTraces) {
            self.host_events =
                trace_ranges(value(Key::HostTraces), arena)?.into_iter().find(|r| !r.is_empty());
        }
        if self.host_events.is_some() || matches!(value(Key::HostSegments), Some(Value::Rows { .. })) {
            self.notes.say("pinned host memory is recorded too; it is not counted on any GPU");
        }
        for (key, _) in pairs {
            if Key::of(*key).is_none() {
                self.notes.say(format!("the unknown key `{}` is passed over", self.texts.text(*key)));
            }
        }
        Ok(())
    }

    fn keep_segments(&mut self, start: u32, len: u32) {
        self.segments.truncate(start as usize + len as usize);
        self.segments.drain(..start as usize);
    }

    fn read_traces(&mut self, traces: Value, arena: &Arena) -> Result<(), Wrong> {
        self.traces = trace_ranges(Some(traces), arena)?;
        if self.traces.iter().all(Range::is_empty) {
            self.say_no_trace();
        }
        Ok(())
    }

    /// What there is where there are no events.
    fn say_no_trace(&mut self) {
        match self.lost {
            None => self.notes.say(RECORD),
            Some(_) => {
                self.notes.say("no events are left: only the final state is known, as far as it was read");
            }
        }
    }

    fn read_settings(&mut self, pairs: &[(TextId, Value)], arena: &Arena) {
        let settings = &mut self.settings;
        settings.recorded = true;
        for (key, value) in pairs {
            match (Key::of(*key), *value) {
                (Some(Key::AllocConf), Value::Text(text)) => settings.read_alloc_conf(self.texts.text(text)),
                (Some(Key::MaxSplitSize), Value::Int(bytes)) => {
                    settings.cut.max_split_size = u64::try_from(bytes).unwrap_or(u64::MAX); // −1 is none
                }
                (Some(Key::GarbageCollectionThreshold), Value::Float(share)) => {
                    settings.garbage_collection_threshold = share;
                }
                (Some(Key::ExpandableSegments), Value::Bool(on)) => settings.expandable_segments = on,
                (Some(Key::RoundupPower2Divisions), Value::Dict(divisions, _)) => {
                    settings.rounding = rounding(arena.dict(divisions), |key| self.texts.text(key));
                }
                _ => {}
            }
        }
    }
}

/// `roundup_power2_divisions`: keys are MiB in words, "1" to "32768".
fn rounding(pairs: &[(TextId, Value)], text: impl Fn(TextId) -> String) -> Rounding {
    let mut rounding = Rounding::default();
    for (key, value) in pairs {
        let bucket = text(*key).parse::<u64>().ok().and_then(u64::checked_ilog2);
        let divisions = match value {
            Value::Int(divisions) => u32::try_from(*divisions).ok(),
            _ => None,
        };
        if let (Some(bucket), Some(divisions)) = (bucket, divisions)
            && let Some(place) = rounding.divisions.get_mut(bucket as usize)
        {
            *place = divisions;
        }
    }
    rounding
}

/// The events of each device.
fn trace_ranges(traces: Option<Value>, arena: &Arena) -> Result<Vec<Range<u32>>, Wrong> {
    let of = |value: &Value| match *value {
        Value::Rows { table: Table::Event, start, len, .. } => Some(start..start + len),
        Value::EmptyList(_) => Some(0..0),
        _ => None,
    };
    let ranges = match traces {
        None | Some(Value::EmptyList(_)) => Some(Vec::new()),
        Some(Value::List(list, _)) => arena.list(list).iter().map(of).collect(),
        // one flat list is the trace of one device
        Some(one @ Value::Rows { .. }) => of(&one).map(|range| vec![range]),
        Some(_) => None,
    };
    let ranges = ranges.ok_or_else(|| Wrong::new("`device_traces` is no list of lists of events"))?;
    if ranges.len() as u64 > MOST_DEVICES {
        return Err(Wrong::new(format!("traces of more than {MOST_DEVICES} devices")));
    }
    Ok(ranges)
}
