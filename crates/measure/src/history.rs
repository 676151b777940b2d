//! The past of a device, from its events and its state at the end: which blocks were there before the first event, and
//! how the requested bytes rose and fell.
//!
//! A free of a block that no event handed out is one from before, live until then. A block that is in use at the end and
//! that no event handed out is one from before, live throughout. Both together are the opening balance; without it the
//! weights of a model would be missing from every peak.

use crate::cut::Seen;
use crate::mapped::{Mapped, Run};
use crate::notes::Notes;
use crate::snapshot::{Action, BlockState, Event, PoolId, Segment, Snapshot, StackId, StreamId};
use hashbrown::HashMap;
use peakledger_input::Problem;
use std::ops::Range;

/// A block from before the first event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpeningBlock {
    /// Where it lies.
    pub address: u64,
    /// The bytes that were asked for.
    pub requested: u64,
    /// Its bytes, where it survived to the end; else only a lower bound is known, the request rounded.
    pub size: Option<u64>,
    /// Whether its owner had let go of it already.
    pub pending: bool,
    /// Where it was asked for, if the snapshot says so.
    pub stack: StackId,
    /// Its stream.
    pub stream: StreamId,
}

/// What a device held before the first event.
#[derive(Clone, Debug, Default)]
pub struct Opening {
    /// The segments, found by undoing the segment events from the end.
    pub segments: Vec<Run>,
    /// The blocks in use, by address.
    pub blocks: Vec<OpeningBlock>,
}

/// A sum that rises and falls, and where it is largest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Curve {
    /// Before the first event.
    pub start: u64,
    /// The largest.
    pub peak: u64,
    /// The first event after which it is so large; nothing where it is so before the first.
    pub event: Option<u32>,
    /// After the last event.
    pub end: u64,
}

/// The past of one device.
#[derive(Clone, Debug)]
pub struct History {
    /// The device.
    pub device: u32,
    /// Its events, by their numbers in the snapshot.
    pub events: Range<u32>,
    /// How many events there are of each action, in the order of [`Action::ALL`].
    pub actions: [u64; Action::ALL.len()],
    /// What there was before.
    pub opening: Opening,
    /// Requested bytes in use.
    pub requested: Curve,
    /// The same with those that were let go of and wait for a stream.
    pub requested_active: Curve,
    /// Bytes of segments.
    pub reserved: Curve,
    /// How the events and the state at the end agree.
    pub agreement: Agreement,
    /// What was odd about the events.
    pub notes: Notes,
}

/// How well the events lead to the state at the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Agreement {
    /// Blocks from before that are still there.
    pub survivors: u64,
    /// Their requested bytes.
    pub survivors_requested: u64,
    /// Blocks from before that were freed.
    pub freed: u64,
    /// Their requested bytes.
    pub freed_requested: u64,
    /// Blocks that an event handed out and that are there at the end, as large as was asked for.
    pub matched: u64,
    /// The same, but of another size.
    pub mismatched: u64,
    /// Blocks that an event handed out, that none freed, and that are not there.
    pub missing: u64,
    /// Whether the reserved bytes before the first event would be negative.
    pub reserved_negative: bool,
    /// Events that make no sense after those before them.
    pub senseless: u64,
    /// Whether the last events are lost, so that they lead to a state before that at the end.
    pub cut: bool,
    /// Where they are, blocks at the end that no event handed out and that need not have been there before.
    pub left_out: u64,
    /// Their requested bytes.
    pub left_out_requested: u64,
}

/// A block that was handed out and not freed.
#[derive(Clone, Copy)]
struct Open {
    requested: u64,
    from_before: bool,
    pending: bool,
}

/// A sum while it runs, from 0.
#[derive(Clone, Copy, Default)]
struct Running {
    now: i128,
    most: i128,
    event: Option<u32>,
}

impl Running {
    fn change(&mut self, by: i128, event: u32) {
        self.now += by;
        if self.now > self.most {
            self.most = self.now;
            self.event = Some(event);
        }
    }

    fn curve(self, start: i128) -> Result<Curve, TooLarge> {
        let bytes = |sum: i128| u64::try_from(sum).map_err(|_| TooLarge { event: self.event });
        Ok(Curve {
            start: bytes(start.max(0))?,
            peak: bytes((start + self.most).max(0))?,
            event: self.event,
            end: bytes((start + self.now).max(0))?,
        })
    }
}

/// A sum of bytes of a device passes 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge {
    /// The event after which it is largest; nothing where that is before the first.
    pub event: Option<u32>,
}

impl TooLarge {
    /// The problem of that file.
    pub fn problem(self, file: &str, device: u32) -> Problem {
        let when = match self.event {
            Some(event) => format!("at event {event}"),
            None => "before the first event".to_owned(),
        };
        let problem = Problem::in_file(file, format!("a sum exceeds 64 bits {when} (device {device})"));
        problem.mend("check the sizes: no machine holds 2^64 bytes")
    }
}

impl History {
    /// The past of a device of a snapshot.
    ///
    /// # Errors
    /// A sum of bytes passes 64 bits.
    pub fn of(snapshot: &Snapshot, device: u32) -> Result<History, TooLarge> {
        let events = snapshot.trace(device);
        let in_two = snapshot.events.has(events.clone(), Action::FreeRequested);
        let mut walk = Walk { in_two, ..Walk::default() };
        for (number, event) in (0u32..).zip(snapshot.events.between(events.clone())) {
            walk.follow(number, &event);
        }
        let seen = Seen::of(snapshot, device);
        let (mut blocks, agreement) = walk.meet_the_end(snapshot, device, seen.as_ref());
        blocks.sort_by_key(|block| block.address);
        let sum = |blocks: &mut dyn Iterator<Item = &OpeningBlock>| -> i128 {
            blocks.map(|block| i128::from(block.requested)).sum()
        };
        let in_use = sum(&mut blocks.iter().filter(|block| !block.pending));
        let active = sum(&mut blocks.iter());
        let mut mapped = Mapped::of_segments(snapshot.segments_of(device).filter(|segment| match &seen {
            None => true,
            Some(seen) => seen.knows(segment) || has_any(segment, &blocks),
        }));
        for number in events.clone().rev() {
            let Some(event) = snapshot.events.get(number) else { continue };
            mapped.undo(&event, snapshot.events.pool(number).unwrap_or(PoolId(0)));
        }
        let reserved_start = match seen {
            None => {
                let at_the_end: i128 = snapshot.segments_of(device).map(|s| i128::from(s.size)).sum();
                at_the_end - walk.reserved.now
            }
            Some(_) => mapped.runs().map(|run| i128::from(run.bytes())).sum(),
        };
        Ok(History {
            device,
            events,
            actions: walk.actions,
            opening: Opening { segments: mapped.runs().copied().collect(), blocks },
            requested: walk.in_use.curve(in_use)?,
            requested_active: walk.active.curve(active)?,
            reserved: walk.reserved.curve(reserved_start.max(0))?,
            agreement: Agreement { reserved_negative: reserved_start < 0, ..agreement },
            notes: walk.notes,
        })
    }
}

/// One walk over the events. A free that comes in one event is requested and completed at once.
#[derive(Default)]
struct Walk {
    /// Whether frees come in two events, as torch writes them unless it is told to skip some.
    in_two: bool,
    open: HashMap<u64, Open>,
    in_use: Running,
    active: Running,
    reserved: Running,
    freed: Vec<OpeningBlock>,
    actions: [u64; Action::ALL.len()],
    last_time: u64,
    senseless: u64,
    notes: Notes,
}

impl Walk {
    fn follow(&mut self, number: u32, event: &Event) {
        if let Some(count) = self.actions.get_mut(event.action as usize) {
            *count += 1;
        }
        if event.time_us < self.last_time {
            self.notes.add("the order of the list wins where the clock runs backwards", || at(number));
        }
        self.last_time = event.time_us;
        let size = i128::from(event.size);
        match event.action {
            Action::Alloc => {
                if event.size == 0 {
                    self.notes.add("an allocation of no bytes", || at(number));
                }
                let open = Open { requested: event.size, from_before: false, pending: false };
                if let Some(over) = self.open.insert(event.addr, open) {
                    self.senseless += 1;
                    self.notes.add(
                        "a block is handed out over one that is in use, which is taken to be freed,",
                        || at(number),
                    );
                    let over_size = i128::from(over.requested);
                    if !over.pending {
                        self.in_use.now -= over_size;
                    }
                    self.active.now -= over_size;
                }
                self.in_use.change(size, number);
                self.active.change(size, number);
            }
            Action::FreeRequested => match self.open.get_mut(&event.addr) {
                Some(open) if open.pending => {
                    self.senseless += 1;
                    self.notes.add("a block is freed twice; the second free is passed over,", || at(number));
                }
                Some(open) => {
                    open.pending = true;
                    self.in_use.change(-i128::from(open.requested), number);
                }
                None => {
                    self.freed_from_before(event, false);
                    self.in_use.change(-size, number);
                    let open = Open { requested: event.size, from_before: true, pending: true };
                    self.open.insert(event.addr, open);
                }
            },
            Action::FreeCompleted => match self.open.remove(&event.addr) {
                Some(open) => {
                    let size = i128::from(open.requested);
                    if !open.pending {
                        self.in_use.change(-size, number);
                    }
                    self.active.change(-size, number);
                }
                None => {
                    // its free was requested before the first event, unless this trace has only the one kind
                    self.freed_from_before(event, self.in_two);
                    if !self.in_two {
                        self.in_use.change(-size, number);
                    }
                    self.active.change(-size, number);
                }
            },
            Action::SegmentAlloc | Action::SegmentMap => self.reserved.change(size, number),
            Action::SegmentFree | Action::SegmentUnmap => self.reserved.change(-size, number),
            Action::Snapshot | Action::Oom | Action::Annotate | Action::Unknown => {}
        }
    }

    fn freed_from_before(&mut self, event: &Event, pending: bool) {
        self.freed.push(OpeningBlock {
            address: event.addr,
            requested: event.size,
            size: None,
            pending,
            stack: StackId::NONE, // the event's is where it was freed
            stream: event.stream,
        });
    }

    /// What is in use at the end beside what the events left open.
    fn meet_the_end(
        &mut self,
        snapshot: &Snapshot,
        device: u32,
        seen: Option<&Seen>,
    ) -> (Vec<OpeningBlock>, Agreement) {
        let mut agreement =
            Agreement { senseless: self.senseless, cut: seen.is_some(), ..Agreement::default() };
        let mut blocks = std::mem::take(&mut self.freed);
        for block in &blocks {
            agreement.freed += 1;
            agreement.freed_requested = agreement.freed_requested.saturating_add(block.requested);
        }
        for segment in snapshot.segments_of(device) {
            for block in snapshot.blocks_of(segment).iter().filter(|block| block.state.is_active()) {
                match self.open.remove(&block.address) {
                    Some(open) if open.requested == block.requested => agreement.matched += 1,
                    Some(_) => agreement.mismatched += 1,
                    None if seen.is_some_and(|seen| !seen.was_before(block)) => {
                        agreement.left_out += 1;
                        agreement.left_out_requested =
                            agreement.left_out_requested.saturating_add(block.requested);
                    }
                    None => {
                        agreement.survivors += 1;
                        agreement.survivors_requested =
                            agreement.survivors_requested.saturating_add(block.requested);
                        blocks.push(OpeningBlock {
                            address: block.address,
                            requested: block.requested,
                            size: Some(block.size),
                            pending: block.state == BlockState::PendingFree,
                            stack: block.stack,
                            stream: segment.stream,
                        });
                    }
                }
            }
        }
        let missing = self.open.values().filter(|open| !open.from_before).count();
        agreement.missing = u64::try_from(missing).unwrap_or(u64::MAX);
        (blocks, agreement)
    }
}

/// Whether one of these blocks, in order of their addresses, lies in a segment.
fn has_any(segment: &Segment, blocks: &[OpeningBlock]) -> bool {
    let first = blocks.partition_point(|block| block.address < segment.address);
    let end = segment.address.saturating_add(segment.size);
    blocks.get(first).is_some_and(|block| block.address < end)
}

fn at(event: u32) -> String {
    format!("at event {event}")
}
