//! What a device's trace says the program asked: the script of a snapshot, with what the device gave for it.

use super::device::{Given, Recorded};
use super::script::{Ask, Script};
use peakledger_allocator::{Held, MempoolId, Piece, Request, Segment, Settings, Stream};
use peakledger_measure::snapshot::{Action, Event, PoolId, Snapshot, StreamId};
use peakledger_measure::{History, OpeningBlock, Run, TooLarge};
use std::collections::{BTreeMap, HashMap, VecDeque};

/// The script of a device, and what is known of the card that it ran on.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    pub(crate) script: Script,
    /// The settings that it was recorded under.
    pub(crate) settings: Settings,
    /// What the device gave, in order.
    given: VecDeque<Given>,
    /// What it was given back, in order.
    back: VecDeque<Given>,
    /// The most that the allocator could have held, if a request failed: what it held then, and what the device had left.
    pub(crate) room: Option<u64>,
    /// How many events there are.
    pub(crate) events: u32,
    /// What the trace says was reserved at most.
    pub(crate) reserved_peak: u64,
    /// Whether the trace starts from an empty allocator.
    pub(crate) from_empty: bool,
}

impl Measured {
    /// The script of one device of a snapshot.
    ///
    /// # Errors
    /// A sum of bytes passes 64 bits.
    pub(crate) fn of(snapshot: &Snapshot, device: u32) -> Result<Measured, TooLarge> {
        let history = History::of(snapshot, device)?;
        let settings = settings(&snapshot.settings);
        let pools = Pools::of(snapshot, &history, device);
        let mut walk = Walk {
            snapshot,
            pools,
            script: Script::default(),
            open: HashMap::new(),
            next: 0,
            given: VecDeque::new(),
            back: VecDeque::new(),
            reserved: i128::from(history.reserved.start),
            room: None,
            frees: None,
        };
        walk.open_with(&history, &settings);
        let events = history.events.clone();
        for (number, event) in (0u32..).zip(snapshot.events.between(events.clone())) {
            walk.follow(number, events.start.saturating_add(number), &event);
        }
        let count = events.end.saturating_sub(events.start);
        let mut script = walk.script;
        script.spans = (0..SPANS.min(count.max(1))).map(|at| at_part(count, at)).collect();
        Ok(Measured {
            script,
            settings,
            given: walk.given,
            back: walk.back,
            room: walk.room.and_then(|room| u64::try_from(room).ok()),
            events: count,
            reserved_peak: history.reserved.peak,
            from_empty: history.opening.segments.is_empty(),
        })
    }

    /// The device that it was recorded on.
    pub(crate) fn device(&self) -> Recorded {
        Recorded::new(self.given.clone(), self.back.clone())
    }
}

/// How many spans of a trace are shown.
const SPANS: u32 = 10;

/// Where a span of so many events begins.
fn at_part(events: u32, part: u32) -> u32 {
    let start = u64::from(events) * u64::from(part) / u64::from(SPANS.min(events.max(1)));
    u32::try_from(start).unwrap_or(events)
}

/// What a snapshot says of the settings.
fn settings(recorded: &peakledger_measure::snapshot::Settings) -> Settings {
    Settings {
        rounding: recorded.rounding,
        cut: recorded.cut,
        non_split_rounding: recorded.non_split_rounding,
        garbage_collection_threshold: recorded.garbage_collection_threshold,
        expandable_segments: recorded.expandable_segments,
        ..Settings::default()
    }
}

/// Which pool an address belongs to, as far as segments say; most events do not.
struct Pools {
    runs: BTreeMap<u64, (u64, PoolId)>,
}

impl Pools {
    fn of(snapshot: &Snapshot, history: &History, device: u32) -> Pools {
        let before = history.opening.segments.iter().map(|run| (run.start, (run.end, run.pool)));
        let after =
            snapshot.segments_of(device).map(|s| (s.address, (s.address.saturating_add(s.size), s.pool)));
        Pools { runs: before.chain(after).filter(|(_, (_, pool))| *pool != PoolId(0)).collect() }
    }

    fn at(&self, address: u64) -> Option<PoolId> {
        let (_, (end, pool)) = self.runs.range(..=address).next_back()?;
        (address < *end).then_some(*pool)
    }
}

struct Walk<'a> {
    snapshot: &'a Snapshot,
    pools: Pools,
    script: Script,
    /// The block at each address.
    open: HashMap<u64, u32>,
    next: u32,
    given: VecDeque<Given>,
    back: VecDeque<Given>,
    reserved: i128,
    room: Option<i128>,
    /// The first of the segment frees that came last, and nothing after them yet.
    frees: Option<u32>,
}

impl Walk<'_> {
    fn stream(&self, stream: StreamId) -> Stream {
        Stream(self.snapshot.streams.get(usize::from(stream.0)).copied().unwrap_or(0))
    }

    fn mempool(&self, pool: PoolId) -> MempoolId {
        let (a, b) = self.snapshot.pools.get(usize::from(pool.0)).copied().unwrap_or((0, 0));
        MempoolId(a, b)
    }

    /// What was there before the first event.
    fn open_with(&mut self, history: &History, settings: &Settings) {
        let blocks = &history.opening.blocks;
        for run in &history.opening.segments {
            let first = blocks.partition_point(|block| block.address < run.start);
            let last = blocks.partition_point(|block| block.address < run.end);
            let inside = blocks.get(first..last).unwrap_or_default();
            let segment = self.segment(run, inside, settings);
            self.script.held.push(segment);
        }
    }

    fn segment(&mut self, run: &Run, blocks: &[OpeningBlock], settings: &Settings) -> Segment {
        let mut pieces = Vec::new();
        let mut at = run.start;
        for (index, block) in blocks.iter().enumerate().filter(|(_, block)| block.requested > 0) {
            let next = blocks.get(index + 1).map_or(run.end, |next| next.address);
            let room = next.saturating_sub(block.address);
            if block.address < at || room == 0 {
                continue;
            }
            if block.address > at {
                pieces.push(Piece { size: block.address - at, held: Held::Free });
            }
            let rounded = settings.rounding.round(block.requested).unwrap_or(room);
            let size = block
                .size
                .unwrap_or_else(|| settings.cut.handed_out(rounded, room, run.expandable))
                .min(room);
            let held = if block.pending { Held::Pending } else { Held::Allocated };
            pieces.push(Piece { size, held: held(block.requested) });
            self.open.insert(block.address, self.next);
            self.next += 1;
            at = block.address.saturating_add(size);
        }
        if run.end > at {
            pieces.push(Piece { size: run.end - at, held: Held::Free });
        }
        Segment {
            address: run.start,
            stream: self.stream(run.stream),
            owner: self.mempool(run.pool),
            pool: run.kind,
            expandable: run.expandable,
            pieces,
        }
    }

    fn ask(&mut self, number: u32, ask: Ask) {
        self.script.asks.push((number, ask));
    }

    fn request(&self, id: u32, event: &Event) -> Request {
        let pool = self.snapshot.events.pool(id).or_else(|| self.pools.at(event.addr));
        Request {
            bytes: event.size,
            stream: self.stream(event.stream),
            pool: self.mempool(pool.unwrap_or(PoolId(0))),
        }
    }

    fn follow(&mut self, number: u32, id: u32, event: &Event) {
        let size = i128::from(event.size);
        match event.action {
            Action::SegmentFree | Action::SegmentUnmap => {
                self.reserved -= size;
                let (address, bytes) = (event.addr, event.size);
                self.back.push_back(match event.action {
                    Action::SegmentFree => Given::Segment { address, bytes },
                    _ => Given::Pages { address, bytes },
                });
                self.frees.get_or_insert(number);
                return;
            }
            Action::SegmentAlloc | Action::SegmentMap => self.after_frees(Ask::MadeRoom),
            Action::Oom => self.frees = None, // the failing request gives back by itself
            Action::Alloc | Action::FreeRequested => self.after_frees(Ask::EmptyCache),
            _ => {}
        }
        match event.action {
            Action::Alloc => {
                self.ask(number, Ask::Alloc(self.request(id, event)));
                self.script.placed.push(event.addr);
                self.open.insert(event.addr, self.next);
                self.next += 1;
            }
            Action::FreeRequested => {
                if let Some(block) = self.open.get(&event.addr) {
                    let block = *block;
                    self.ask(number, Ask::FreeRequested(block));
                }
            }
            Action::FreeCompleted => {
                if let Some(block) = self.open.remove(&event.addr) {
                    self.ask(number, Ask::FreeCompleted(block));
                }
            }
            Action::SegmentAlloc => {
                self.reserved += size;
                self.given.push_back(Given::Segment { address: event.addr, bytes: event.size });
            }
            Action::SegmentMap => {
                self.reserved += size;
                self.given.push_back(Given::Pages { address: event.addr, bytes: event.size });
            }
            Action::Oom => {
                let free = self.snapshot.events.device_free(id).map(|free| self.reserved + i128::from(free));
                self.room = self.room.max(free);
                self.ask(number, Ask::Failed(self.request(id, event)));
            }
            _ => {}
        }
    }

    /// Says what the segment frees before this event were for: the program's own `empty_cache`, or room for a request.
    fn after_frees(&mut self, ask: Ask) {
        if let Some(first) = self.frees.take() {
            self.ask(first, ask);
        }
    }
}
