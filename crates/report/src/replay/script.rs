//! What a program asks of the caching allocator, in order, and what comes of it under some settings on some card. Plans,
//! snapshots and ledgers become scripts; here is all that knows the allocator.

use super::device::Board;
use peakledger_allocator::{Allocation, Allocator, OutOfMemory, Request, Segment, Settings, Totals};

/// One thing that a program asks. Blocks have numbers: those held before the first ask, then those asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// A new block, under the next number.
    Alloc(Request),
    /// Gives a block back, while other streams may use it.
    FreeRequested(u32),
    /// They no longer do.
    FreeCompleted(u32),
    /// Gives what is cached back to the device.
    EmptyCache,
    /// The allocator gave back what was cached, to make room on the card that it ran on: other cards may have room.
    MadeRoom,
    /// A request that was not served, and that no block came of.
    Failed(Request),
}

/// What a program asks, each with the number of where it stands: an event, a phase.
#[derive(Clone, Debug, Default)]
pub(crate) struct Script {
    /// What the allocator holds before.
    pub(crate) held: Vec<Segment>,
    pub(crate) asks: Vec<(u32, Ask)>,
    /// Where the block of each `Alloc` did lie, where that is known.
    pub(crate) placed: Vec<u64>,
    /// The spans that are shown, by where each begins.
    pub(crate) spans: Vec<u32>,
}

/// What was held after something was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Point {
    /// Where it stands; nothing before the first ask.
    pub(crate) at: Option<u32>,
    pub(crate) totals: Totals,
}

/// The most in a span.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Most {
    pub(crate) reserved: u64,
    pub(crate) allocated: u64,
}

/// What came of a script.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) settings: Settings,
    /// Every change of the reserved bytes, from what was held before.
    pub(crate) reserved: Vec<Point>,
    /// Where most was reserved, and there where most was allocated.
    pub(crate) peak: Point,
    /// Where most was allocated.
    pub(crate) allocated_peak: Point,
    /// The most in each span that was reached.
    pub(crate) spans: Vec<Most>,
    /// After the last ask, or when memory ran out.
    pub(crate) end: Totals,
    /// Where memory ran out, and nothing came after.
    pub(crate) oom: Option<(u32, OutOfMemory)>,
    /// How often everything cached was given back to make room.
    pub(crate) retries: u64,
    /// Of the blocks whose place is known, how many lie there.
    pub(crate) in_place: u64,
}

impl Script {
    /// Runs it, with the device as it is left. Nothing comes of a script whose sums pass 64 bits.
    pub(crate) fn run<D: Board>(&self, settings: Settings, device: D) -> Option<(Outcome, D)> {
        let (allocator, blocks) = Allocator::with_segments(settings, device, &self.held)?;
        let mut run = Run::new(settings, allocator, blocks);
        let mut spans = self.spans.iter().skip(1).peekable();
        let mut placed = self.placed.iter();
        for (at, ask) in &self.asks {
            while spans.next_if(|start| *start <= at).is_some() {
                run.open_span();
            }
            let Some(block) = run.step(*at, *ask) else { break };
            if let Some((block, address)) = block.and_then(|block| Some((block, placed.next()?))) {
                let is = run.allocator.placed(block).map(|placed| placed.address);
                run.outcome.in_place += u64::from(is == Some(*address));
            }
        }
        Some(run.end())
    }
}

/// Runs what is asked of an allocator that holds nothing, without a script of it.
pub(crate) fn run<D: Board>(
    asks: impl Iterator<Item = (u32, Ask)>,
    settings: Settings,
    device: D,
) -> Outcome {
    let mut run = Run::new(settings, Allocator::new(settings, device), Vec::new());
    for (at, ask) in asks {
        if run.step(at, ask).is_none() {
            break;
        }
    }
    run.end().0
}

struct Run<D> {
    allocator: Allocator<D>,
    blocks: Vec<Allocation>,
    outcome: Outcome,
}

impl<D: Board> Run<D> {
    fn new(settings: Settings, allocator: Allocator<D>, blocks: Vec<Allocation>) -> Run<D> {
        let start = Point { at: None, totals: allocator.totals() };
        let outcome = Outcome {
            settings,
            reserved: vec![start],
            peak: start,
            allocated_peak: start,
            spans: Vec::new(),
            end: start.totals,
            oom: None,
            retries: 0,
            in_place: 0,
        };
        let mut run = Run { allocator, blocks, outcome };
        run.open_span();
        run
    }

    /// Asks, and sees what is held then: the block that came of it, if one did; nothing where memory ran out.
    fn step(&mut self, at: u32, ask: Ask) -> Option<Option<Allocation>> {
        match self.ask(ask) {
            Ok(block) => {
                self.see(at);
                Some(block)
            }
            Err(oom) => {
                self.outcome.oom = Some((at, oom));
                None
            }
        }
    }

    /// The block that came of it, if one did.
    fn ask(&mut self, ask: Ask) -> Result<Option<Allocation>, OutOfMemory> {
        let block = |number: u32| self.blocks.get(number as usize).copied();
        match ask {
            Ask::Alloc(request) => {
                let block = self.allocator.alloc(request)?;
                self.blocks.push(block);
                return Ok(Some(block));
            }
            Ask::FreeRequested(number) => {
                block(number).into_iter().for_each(|block| self.allocator.free_requested(block));
            }
            Ask::FreeCompleted(number) => {
                block(number).into_iter().for_each(|block| self.allocator.free_completed(block));
            }
            Ask::EmptyCache => self.allocator.empty_cache(),
            Ask::MadeRoom => {
                if self.allocator.device_mut().is_the_one_recorded() {
                    self.allocator.empty_cache();
                }
            }
            Ask::Failed(request) => {
                self.allocator.device_mut().refuse(true);
                let served = self.allocator.alloc(request);
                self.allocator.device_mut().refuse(false);
                match served {
                    Ok(block) => {
                        self.see_peaks(None);
                        self.allocator.free(block);
                    }
                    Err(_) if self.allocator.device_mut().is_the_one_recorded() => {}
                    Err(oom) => return Err(oom),
                }
            }
        }
        Ok(None)
    }

    fn see(&mut self, at: u32) {
        let now = self.allocator.totals();
        if self.outcome.reserved.last().is_none_or(|last| last.totals.reserved != now.reserved) {
            self.outcome.reserved.push(Point { at: Some(at), totals: now });
        }
        self.see_peaks(Some(at));
    }

    fn see_peaks(&mut self, at: Option<u32>) {
        let totals = self.allocator.totals();
        let (peak, now) = (&mut self.outcome.peak, Point { at, totals });
        if (totals.reserved, totals.allocated) > (peak.totals.reserved, peak.totals.allocated) {
            *peak = now;
        }
        if totals.allocated > self.outcome.allocated_peak.totals.allocated {
            self.outcome.allocated_peak = now;
        }
        if let Some(span) = self.outcome.spans.last_mut() {
            span.reserved = span.reserved.max(totals.reserved);
            span.allocated = span.allocated.max(totals.allocated);
        }
    }

    fn open_span(&mut self) {
        let now = self.allocator.totals();
        self.outcome.spans.push(Most { reserved: now.reserved, allocated: now.allocated });
    }

    fn end(mut self) -> (Outcome, D) {
        self.outcome.end = self.allocator.totals();
        self.outcome.retries = self.allocator.retries();
        (self.outcome, self.allocator.into_device())
    }
}
