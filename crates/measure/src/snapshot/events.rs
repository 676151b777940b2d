//! What the allocator did, event by event, in flat columns: 31 bytes an event, whatever its stack.

use super::stacks::StackId;
use super::texts::TextId;
use std::ops::Range;

/// What an event says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// A block was handed out; the size is what was asked for.
    Alloc,
    /// The owner let go of a block; it may be waiting for a stream.
    FreeRequested,
    /// The block is free.
    FreeCompleted,
    /// A segment came from the device (`cudaMalloc`).
    SegmentAlloc,
    /// A segment went back to the device.
    SegmentFree,
    /// Pages of an expandable segment were mapped.
    SegmentMap,
    /// Pages of an expandable segment were unmapped.
    SegmentUnmap,
    /// The state was recorded; the size is the active bytes then.
    Snapshot,
    /// A request failed; the size is the request, rounded.
    Oom,
    /// A live block was given a word of the user's (torch 2.15).
    Annotate,
    /// A word that this version does not know; counted, and without effect.
    Unknown,
}

impl Action {
    /// The actions that have an effect or a meaning.
    pub const ALL: [Action; 10] = [
        Action::Alloc,
        Action::FreeRequested,
        Action::FreeCompleted,
        Action::SegmentAlloc,
        Action::SegmentFree,
        Action::SegmentMap,
        Action::SegmentUnmap,
        Action::Snapshot,
        Action::Oom,
        Action::Annotate,
    ];

    /// The word in files.
    pub const fn as_str(self) -> &'static str {
        match self {
            Action::Alloc => "alloc",
            Action::FreeRequested => "free_requested",
            Action::FreeCompleted => "free_completed",
            Action::SegmentAlloc => "segment_alloc",
            Action::SegmentFree => "segment_free",
            Action::SegmentMap => "segment_map",
            Action::SegmentUnmap => "segment_unmap",
            Action::Snapshot => "snapshot",
            Action::Oom => "oom",
            Action::Annotate => "annotate",
            Action::Unknown => "unknown",
        }
    }

    /// The action of that word; the legacy `free` is a completed one.
    pub fn named(word: &[u8]) -> Action {
        match word {
            b"free" => Action::FreeCompleted,
            word => {
                Action::ALL.into_iter().find(|a| a.as_str().as_bytes() == word).unwrap_or(Action::Unknown)
            }
        }
    }
}

/// A CUDA stream, by the order in which the snapshot names them. Streams never share blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u16);

/// A memory pool, by the order in which the snapshot names them. Pools never share blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolId(pub u16);

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub action: Action,
    /// The address of the block or segment; 0 where there is none.
    pub addr: u64,
    /// The size in bytes: requested for blocks, whole for segments.
    pub size: u64,
    /// The stream.
    pub stream: StreamId,
    /// When, in µs of the wall clock; 0 where it was not recorded (before torch 2.2).
    pub time_us: u64,
    /// Where in the code.
    pub stack: StackId,
}

/// The events of all devices, one device after the other, oldest first.
#[derive(Clone, Debug, Default)]
pub struct Events {
    action: Vec<Action>,
    addr: Vec<u64>,
    size: Vec<u64>,
    stream: Vec<StreamId>,
    time_us: Vec<u64>,
    stack: Vec<StackId>,
    /// What few events have, by event.
    metadata: Vec<(u32, TextId)>,
    pools: Vec<(u32, PoolId)>,
    device_free: Vec<(u32, u64)>,
}

/// What few events have.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rare {
    pub(crate) metadata: Option<TextId>,
    pub(crate) pool: Option<PoolId>,
    pub(crate) device_free: Option<u64>,
}

impl Events {
    pub(crate) fn push(&mut self, event: Event, rare: Rare) -> Option<u32> {
        let id = u32::try_from(self.len()).ok().filter(|id| *id < crate::pickle::MOST_ROWS)?;
        self.action.push(event.action);
        self.addr.push(event.addr);
        self.size.push(event.size);
        self.stream.push(event.stream);
        self.time_us.push(event.time_us);
        self.stack.push(event.stack);
        self.metadata.extend(rare.metadata.map(|text| (id, text)));
        self.pools.extend(rare.pool.map(|pool| (id, pool)));
        self.device_free.extend(rare.device_free.map(|bytes| (id, bytes)));
        Some(id)
    }

    /// How many there are on all devices.
    pub fn len(&self) -> usize {
        self.action.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.action.is_empty()
    }

    /// The event of that number, if there is one.
    pub fn get(&self, id: u32) -> Option<Event> {
        let at = id as usize;
        Some(Event {
            action: *self.action.get(at)?,
            addr: *self.addr.get(at)?,
            size: *self.size.get(at)?,
            stream: *self.stream.get(at)?,
            time_us: *self.time_us.get(at)?,
            stack: *self.stack.get(at)?,
        })
    }

    /// A run of them, in order.
    pub fn between(&self, range: Range<u32>) -> impl Iterator<Item = Event> + '_ {
        let range = range.start as usize..range.end as usize;
        let words = slice(&self.action, &range).iter();
        let numbers = slice(&self.addr, &range).iter();
        let sizes = slice(&self.size, &range).iter();
        let streams = slice(&self.stream, &range).iter();
        let times = slice(&self.time_us, &range).iter();
        let stacks = slice(&self.stack, &range).iter();
        words.zip(numbers).zip(sizes).zip(streams).zip(times).zip(stacks).map(
            |(((((action, addr), size), stream), time_us), stack)| Event {
                action: *action,
                addr: *addr,
                size: *size,
                stream: *stream,
                time_us: *time_us,
                stack: *stack,
            },
        )
    }

    /// Whether an action is among a run of them.
    pub fn has(&self, range: Range<u32>, action: Action) -> bool {
        slice(&self.action, &(range.start as usize..range.end as usize)).contains(&action)
    }

    /// The user's word on an event (torch 2.10+).
    pub fn metadata(&self, id: u32) -> Option<TextId> {
        rare(&self.metadata, id)
    }

    /// The stacks of the events of an action among a run of them, by their place in it.
    pub(crate) fn stacks_of(
        &self,
        action: Action,
        range: Range<u32>,
    ) -> impl Iterator<Item = (u32, StackId)> + '_ {
        let range = range.start as usize..range.end as usize;
        let events = slice(&self.action, &range).iter().zip(slice(&self.stack, &range));
        let those = (0u32..).zip(events).filter(move |(_, (found, _))| **found == action);
        those.map(|(place, (_, stack))| (place, *stack))
    }

    /// The user's words on a run of events, with the events that have one.
    pub(crate) fn words(&self, range: Range<u32>) -> impl Iterator<Item = (u32, TextId)> + '_ {
        let first = self.metadata.partition_point(|(event, _)| *event < range.start);
        let words = self.metadata.get(first..).unwrap_or_default().iter().copied();
        words.take_while(move |(event, _)| *event < range.end)
    }

    /// The pool of an event (torch 2.15).
    pub fn pool(&self, id: u32) -> Option<PoolId> {
        rare(&self.pools, id)
    }

    /// What the device had free when a request failed.
    pub fn device_free(&self, id: u32) -> Option<u64> {
        rare(&self.device_free, id)
    }
}

fn slice<'a, T>(column: &'a [T], range: &Range<usize>) -> &'a [T] {
    column.get(range.clone()).unwrap_or_default()
}

fn rare<T: Copy>(column: &[(u32, T)], id: u32) -> Option<T> {
    let at = column.binary_search_by_key(&id, |(event, _)| *event).ok()?;
    column.get(at).map(|(_, value)| *value)
}
