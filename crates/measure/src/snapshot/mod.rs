//! A memory snapshot of torch (2.0 … 2.15) in flat columns: events, stacks, segments, blocks.
//!
//! Dicts of the file become rows as soon as they are complete (`fold`), so that a file of a gigabyte never stands as a
//! tree. Words, frames and stacks are kept once.

mod assemble;
mod events;
mod fold;
mod key;
mod read;
mod segments;
mod settings;
mod stacks;
mod tables;
mod texts;
mod values;

pub use events::{Action, Event, Events, PoolId, StreamId};
pub use read::{Options, Progress, read};
pub use segments::{Block, BlockState, Segment};
pub use settings::Settings;
pub use stacks::{Frame, FrameId, StackId, Stacks};
pub use texts::{TextId, Texts};

pub(crate) use tables::Tables;

use crate::notes::Notes;
use std::ops::Range;

/// A range of the program that the user or torch named (`external_annotations`, torch 2.5+).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Annotation {
    /// Whether it begins here; else it ends.
    pub start: bool,
    /// Its name.
    pub name: TextId,
    /// The device whose trace it was recorded beside.
    pub device: u32,
    /// When, in µs of the wall clock.
    pub time_us: u64,
}

/// What the file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// What `_dump_snapshot` writes: segments, traces and more.
    Snapshot,
    /// A bare list of segments, as `torch.cuda.memory_snapshot()` returns.
    SegmentList,
}

/// A snapshot: what was recorded, and the allocator's state when it was taken.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// What the file is.
    pub shape: Shape,
    /// The keys of the file's top, in its order.
    pub keys: Vec<String>,
    /// Every word.
    pub texts: Texts,
    /// Every stack.
    pub stacks: Stacks,
    /// The events of all devices.
    pub events: Events,
    /// The events of each device, by device.
    pub traces: Vec<Range<u32>>,
    /// Where the events of the host's allocator are, if there are any (torch 2.13+).
    pub host_events: Option<Range<u32>>,
    /// The segments of all devices, in the order of the file.
    pub segments: Vec<Segment>,
    /// The blocks of all segments.
    pub blocks: Vec<Block>,
    /// The streams by their handles; the first that the file names is the first here.
    pub streams: Vec<u64>,
    /// The pools by torch's pairs: (0, 0) is the default, (0, n) a `MemPool`, (n, 0) a graph capture's.
    pub pools: Vec<(u64, u64)>,
    /// Named ranges of the program.
    pub annotations: Vec<Annotation>,
    /// How the allocator was configured.
    pub settings: Settings,
    /// What is to be said of the file.
    pub notes: Notes,
    /// Why only a part of a damaged file was read, and up to where; nothing of a whole one.
    pub lost: Option<String>,
    /// The device whose last events are lost with the rest of such a file.
    pub cut_device: Option<u32>,
}

impl Snapshot {
    /// How many devices there are: those with a trace, and those with segments.
    pub fn devices(&self) -> u32 {
        let traced = u32::try_from(self.traces.len()).unwrap_or(u32::MAX);
        let held = self.segments.iter().map(|segment| segment.device.saturating_add(1)).max();
        traced.max(held.unwrap_or(0))
    }

    /// The events of a device, by their numbers in [`events`](Snapshot::events).
    pub fn trace(&self, device: u32) -> Range<u32> {
        self.traces.get(device as usize).cloned().unwrap_or(0..0)
    }

    /// The segments of a device.
    pub fn segments_of(&self, device: u32) -> impl Iterator<Item = &Segment> {
        self.segments.iter().filter(move |segment| segment.device == device)
    }

    /// The blocks of a segment.
    pub fn blocks_of(&self, segment: &Segment) -> &[Block] {
        let range = segment.blocks.start as usize..segment.blocks.end as usize;
        self.blocks.get(range).unwrap_or_default()
    }
}
