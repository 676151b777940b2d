//! What a program asks of the caching allocator, in order, and what comes of it under some settings on some card. Plans,
//! snapshots and ledgers become scripts; here is all that knows the allocator.

use peakledger_allocator::{Allocation, Allocator, Device, OutOfMemory, Request, Segment, Settings, Totals};

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
    /// A request that was not served, and that no block came of.
    Failed(Request),
}

/// What a program asks, each with a number for where it stands: an event, a phase.
#[derive(Clone, Debug, Default)]
pub(crate) struct Script {
    /// What the allocator holds before.
    pub(crate) held: Vec<Segment>,
    pub(crate) asks: Vec<(u32, Ask)>,
}

/// What was held after something was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Point {
    /// Where it stands; nothing before the first ask.
    pub(crate) at: Option<u32>,
    pub(crate) totals: Totals,
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
    /// After the last ask, or when memory ran out.
    pub(crate) end: Totals,
    /// Where memory ran out, and nothing came after.
    pub(crate) oom: Option<(u32, OutOfMemory)>,
    /// How often everything cached was given back to make room.
    pub(crate) retries: u64,
}

impl Script {
    /// Runs it. Nothing comes of a script whose sums pass 64 bits.
    pub(crate) fn run(&self, settings: Settings, device: impl Device) -> Option<Outcome> {
        let (allocator, held) = Allocator::with_segments(settings, device, &self.held)?;
        let mut run = Run::new(settings, allocator, held, self.asks.len());
        for (at, ask) in &self.asks {
            if let Err(oom) = run.ask(*ask) {
                run.outcome.oom = Some((*at, oom));
                break;
            }
            run.see(Some(*at));
        }
        run.outcome.end = run.allocator.totals();
        run.outcome.retries = run.allocator.retries();
        Some(run.outcome)
    }
}

struct Run<D> {
    allocator: Allocator<D>,
    blocks: Vec<Allocation>,
    outcome: Outcome,
}

impl<D: Device> Run<D> {
    fn new(settings: Settings, allocator: Allocator<D>, held: Vec<Allocation>, asks: usize) -> Run<D> {
        let start = Point { at: None, totals: allocator.totals() };
        let mut blocks = held;
        blocks.reserve(asks / 2);
        let outcome = Outcome {
            settings,
            reserved: vec![start],
            peak: start,
            allocated_peak: start,
            end: start.totals,
            oom: None,
            retries: 0,
        };
        Run { allocator, blocks, outcome }
    }

    fn ask(&mut self, ask: Ask) -> Result<(), OutOfMemory> {
        let block = |number: u32| self.blocks.get(number as usize).copied();
        match ask {
            Ask::Alloc(request) => self.blocks.push(self.allocator.alloc(request)?),
            Ask::FreeRequested(number) => {
                block(number).into_iter().for_each(|block| self.allocator.free_requested(block));
            }
            Ask::FreeCompleted(number) => {
                block(number).into_iter().for_each(|block| self.allocator.free_completed(block));
            }
            Ask::EmptyCache => self.allocator.empty_cache(),
            Ask::Failed(request) => {
                let served = self.allocator.alloc(request)?;
                self.see_peaks(None);
                self.allocator.free(served);
            }
        }
        Ok(())
    }

    fn see(&mut self, at: Option<u32>) {
        let now = self.allocator.totals();
        if self.outcome.reserved.last().is_none_or(|last| last.totals.reserved != now.reserved) {
            self.outcome.reserved.push(Point { at, totals: now });
        }
        self.see_peaks(at);
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
    }
}
