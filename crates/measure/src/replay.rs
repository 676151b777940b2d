//! The bytes of blocks, which no event has: found by the geometry of addresses.
//!
//! The allocator merges free neighbours at once. So the free block that an allocation was cut from reaches from its
//! address to the next block in use or the end of the segment, and the allocator's own rule ([`Cut`]) says how much of it
//! was handed out. `torch.cuda.memory_allocated` counts these bytes.

use crate::history::{Curve, History, OpeningBlock, TooLarge};
use crate::in_use::InUse;
use crate::mapped::{Mapped, Run};
use crate::notes::Notes;
use crate::snapshot::{Action, Event, PoolId, Settings, Snapshot, StackId, StreamId, TextId};
use peakledger_core::block::Cut;

/// A block in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Live {
    /// Where it lies.
    pub address: u64,
    /// The bytes that were asked for.
    pub requested: u64,
    /// Its bytes.
    pub size: u64,
    /// The event that handed it out; nothing where it is from before the first.
    pub event: Option<u32>,
    /// Where it was asked for.
    pub stack: StackId,
    /// Its stream.
    pub stream: StreamId,
    /// Whether its owner let go of it and a stream still uses it.
    pub pending: bool,
    /// The user's last word on it.
    pub word: Option<TextId>,
}

/// What an event did to the blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A block came into use.
    Allocated(Live),
    /// Its owner let go of a block.
    Freed(Live),
    /// A block that was let go of is free.
    Completed(Live),
    /// None.
    Nothing,
}

/// A device as it was after some event.
#[derive(Clone, Debug)]
pub struct Replay<'a> {
    snapshot: &'a Snapshot,
    cut: Cut,
    live: InUse,
    mapped: Mapped,
    /// The next event, counted from the device's first.
    next: u32,
    first: u32,
    last: u32,
    device: u32,
    requested: u128,
    allocated: u128,
    active: u128,
    reserved: u128,
    /// What was odd.
    pub notes: Notes,
    /// Allocations outside every segment, whose bytes are the request, rounded.
    pub outside: u64,
    /// Allocations of more than the rounded request, since the rest was not worth cutting off.
    pub uncut: u64,
}

impl<'a> Replay<'a> {
    /// Before the first event.
    pub fn new(snapshot: &'a Snapshot, history: &History) -> Replay<'a> {
        let settings = &snapshot.settings;
        let mut replay = Replay {
            snapshot,
            cut: settings.cut,
            live: InUse::default(),
            mapped: Mapped::of(&history.opening.segments),
            next: 0,
            first: history.events.start,
            last: history.events.end.saturating_sub(history.events.start),
            device: history.device,
            requested: 0,
            allocated: 0,
            active: 0,
            reserved: u128::from(history.reserved.start),
            notes: Notes::default(),
            outside: 0,
            uncut: 0,
        };
        for block in &history.opening.blocks {
            replay.open(block, settings);
        }
        replay
    }

    fn open(&mut self, block: &OpeningBlock, settings: &Settings) {
        let size = block.size.unwrap_or_else(|| rounded(settings, block.requested));
        let OpeningBlock { address, requested, pending, stack, stream, .. } = *block;
        let live = Live { address, requested, size, event: None, stack, stream, pending, word: None };
        self.enter(live);
    }

    fn enter(&mut self, live: Live) {
        if let Some(over) = self.live.insert(live) {
            self.leave(&over);
        }
        self.active += u128::from(live.size);
        if !live.pending {
            self.allocated += u128::from(live.size);
            self.requested += u128::from(live.requested);
        }
    }

    fn leave(&mut self, live: &Live) {
        self.active -= u128::from(live.size);
        if !live.pending {
            self.allocated -= u128::from(live.size);
            self.requested -= u128::from(live.requested);
        }
    }

    /// Follows the next event.
    pub fn step(&mut self) -> Option<(u32, Event, Change)> {
        if self.next >= self.last {
            return None;
        }
        let number = self.next;
        let event = self.snapshot.events.get(self.first + number)?;
        self.next += 1;
        Some((number, event, self.follow(number, &event)))
    }

    fn follow(&mut self, number: u32, event: &Event) -> Change {
        match event.action {
            Action::Alloc => {
                let live = Live {
                    address: event.addr,
                    requested: event.size,
                    size: self.handed_out(event),
                    event: Some(number),
                    stack: event.stack,
                    stream: event.stream,
                    pending: false,
                    word: self.word(number),
                };
                self.enter(live);
                Change::Allocated(live)
            }
            Action::FreeRequested => match self.live.get_mut(event.addr) {
                Some(live) if !live.pending => {
                    live.pending = true;
                    self.allocated -= u128::from(live.size);
                    self.requested -= u128::from(live.requested);
                    Change::Freed(*live)
                }
                _ => Change::Nothing,
            },
            Action::FreeCompleted => match self.live.remove(event.addr) {
                Some(live) => {
                    self.leave(&live);
                    Change::Completed(live)
                }
                None => Change::Nothing,
            },
            Action::SegmentAlloc | Action::SegmentMap => {
                self.reserved += u128::from(event.size);
                self.mapped.follow(event, self.pool(number));
                Change::Nothing
            }
            Action::SegmentFree | Action::SegmentUnmap => {
                self.reserved = self.reserved.saturating_sub(u128::from(event.size));
                self.mapped.follow(event, self.pool(number));
                Change::Nothing
            }
            Action::Snapshot => {
                if u128::from(event.size) != self.active {
                    self.notes
                        .add("the allocator's own count of active bytes differs from the replay", || {
                            format!("at event {number}: {} and {}", event.size, self.active)
                        });
                }
                Change::Nothing
            }
            Action::Annotate => {
                if let word @ Some(_) = self.word(number)
                    && let Some(live) = self.live.get_mut(event.addr)
                {
                    live.word = word;
                }
                Change::Nothing
            }
            Action::Oom | Action::Unknown => Change::Nothing,
        }
    }

    fn pool(&self, number: u32) -> PoolId {
        self.snapshot.events.pool(self.first + number).unwrap_or(PoolId(0))
    }

    fn word(&self, number: u32) -> Option<TextId> {
        self.snapshot.events.metadata(self.first + number)
    }

    /// The bytes of the block that an allocation got.
    fn handed_out(&mut self, event: &Event) -> u64 {
        let rounded = rounded(&self.snapshot.settings, event.size);
        let Some(run) = self.mapped.around(event.addr).copied() else {
            self.outside += 1;
            return rounded;
        };
        let end = self.live.next_after(event.addr).map_or(run.end, |next| run.end.min(next));
        let free = end.saturating_sub(event.addr);
        if free < rounded {
            self.notes.add("an allocation is larger than the segment it lies in or the gap", || {
                format!("at address {:#x}", event.addr)
            });
            return rounded;
        }
        let size = self.cut.handed_out(rounded, free, run.expandable);
        self.uncut += u64::from(size > rounded);
        size
    }

    /// The device.
    pub fn device(&self) -> u32 {
        self.device
    }

    /// The event that is followed next.
    pub fn next_event(&self) -> u32 {
        self.next
    }

    /// What was asked for of the blocks whose owners hold them.
    pub fn requested(&self) -> u128 {
        self.requested
    }

    /// Block bytes whose owners hold them.
    pub fn allocated(&self) -> u128 {
        self.allocated
    }

    /// The same with those that wait for a stream.
    pub fn active(&self) -> u128 {
        self.active
    }

    /// Bytes of segments.
    pub fn reserved(&self) -> u128 {
        self.reserved
    }

    /// The blocks in use, by address.
    pub fn live(&self) -> impl Iterator<Item = &Live> {
        self.live.iter()
    }

    /// The block in use that begins at an address.
    pub fn at(&self, address: u64) -> Option<&Live> {
        self.live.get(address)
    }

    /// The segments.
    pub fn segments(&self) -> impl Iterator<Item = &Run> {
        self.mapped.runs()
    }

    /// The free gaps, by address: the segment that each lies in, where it begins, and its bytes.
    pub fn gaps(&self) -> Vec<(Run, u64, u64)> {
        let mut gaps = Vec::new();
        for run in self.mapped.runs() {
            let mut at = run.start;
            for live in self.live.between(run.start..run.end) {
                if live.address > at {
                    gaps.push((*run, at, live.address - at));
                }
                at = at.max(live.address.saturating_add(live.size));
            }
            if at < run.end {
                gaps.push((*run, at, run.end - at));
            }
        }
        gaps
    }
}

/// A request rounded up; one that passes 64 bits stays what it is, and no segment holds it.
pub(crate) fn rounded(settings: &Settings, requested: u64) -> u64 {
    settings.rounding.round(requested).unwrap_or(requested)
}

/// A sum that rises and falls, watched from its start on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watched {
    start: u128,
    peak: u128,
    event: Option<u32>,
    now: u128,
}

impl Watched {
    pub(crate) fn from(start: u128) -> Watched {
        Watched { start, peak: start, event: None, now: start }
    }

    #[inline]
    pub(crate) fn see(&mut self, now: u128, event: u32) {
        self.now = now;
        if now > self.peak {
            self.peak = now;
            self.event = Some(event);
        }
    }

    pub(crate) fn curve(self) -> Result<Curve, TooLarge> {
        let bytes = |sum: u128| u64::try_from(sum).map_err(|_| TooLarge { event: self.event });
        Ok(Curve {
            start: bytes(self.start)?,
            peak: bytes(self.peak)?,
            event: self.event,
            end: bytes(self.now)?,
        })
    }
}
