//! Which addresses belong to the allocator: the segments, as they come and go.

use crate::snapshot::{Action, Event, PoolId, Segment, StreamId};
use peakledger_core::block::Pool;
use std::collections::BTreeMap;

/// A run of addresses that one segment has; of an expandable segment, a run of mapped pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The first address.
    pub start: u64,
    /// The first address after it.
    pub end: u64,
    /// The stream whose it is.
    pub stream: StreamId,
    /// The pool.
    pub pool: PoolId,
    /// Which of the pool's two.
    pub kind: Pool,
    /// Whether it grows and shrinks by pages.
    pub expandable: bool,
}

impl Run {
    /// Its bytes.
    pub fn bytes(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Whether it and another are pages of one segment.
    fn is_one_with(&self, other: &Run) -> bool {
        self.expandable
            && other.expandable
            && (self.stream, self.kind, self.pool) == (other.stream, other.kind, other.pool)
    }
}

/// All runs, by address.
#[derive(Clone, Debug, Default)]
pub struct Mapped {
    runs: BTreeMap<u64, Run>,
}

impl Mapped {
    /// These segments, as a device held them at the end.
    pub(crate) fn of_segments<'a>(segments: impl Iterator<Item = &'a Segment>) -> Mapped {
        let mut mapped = Mapped::default();
        for segment in segments {
            let Segment { address, size, stream, kind, pool, expandable, .. } = *segment;
            let end = address.saturating_add(size);
            mapped.add(Run { start: address, end, stream, pool, kind, expandable });
        }
        mapped
    }

    /// These runs.
    pub(crate) fn of(runs: &[Run]) -> Mapped {
        Mapped { runs: runs.iter().map(|run| (run.start, *run)).collect() }
    }

    /// The run that an address lies in.
    pub(crate) fn around(&self, address: u64) -> Option<&Run> {
        let (_, run) = self.runs.range(..=address).next_back()?;
        (address < run.end).then_some(run)
    }

    /// All of them, by address.
    pub fn runs(&self) -> impl Iterator<Item = &Run> {
        self.runs.values()
    }

    /// Follows a segment event.
    pub(crate) fn follow(&mut self, event: &Event, pool: PoolId) {
        match event.action {
            Action::SegmentAlloc | Action::SegmentMap => self.add(run_of(event, pool)),
            Action::SegmentFree | Action::SegmentUnmap => {
                self.remove(event.addr, event.addr.saturating_add(event.size));
            }
            _ => {}
        }
    }

    /// Goes back before a segment event.
    pub(crate) fn undo(&mut self, event: &Event, pool: PoolId) {
        match event.action {
            Action::SegmentAlloc | Action::SegmentMap => {
                self.remove(event.addr, event.addr.saturating_add(event.size));
            }
            Action::SegmentFree | Action::SegmentUnmap => self.add(run_of(event, pool)),
            _ => {}
        }
    }

    fn add(&mut self, mut run: Run) {
        if run.start >= run.end {
            return;
        }
        if let Some((_, before)) = self.runs.range(..run.start).next_back()
            && before.end == run.start
            && before.is_one_with(&run)
        {
            run.start = before.start;
        }
        if let Some(after) = self.runs.get(&run.end)
            && after.is_one_with(&run)
        {
            let end = after.end;
            self.runs.remove(&run.end);
            run.end = end;
        }
        self.runs.insert(run.start, run);
    }

    /// Takes addresses away, from the middle of a run too.
    fn remove(&mut self, start: u64, end: u64) {
        let Some(run) = self.around(start).copied() else { return };
        self.runs.remove(&run.start);
        if run.start < start {
            self.runs.insert(run.start, Run { end: start, ..run });
        }
        if end < run.end && run.expandable {
            self.runs.insert(end, Run { start: end, ..run });
        }
    }
}

fn run_of(event: &Event, pool: PoolId) -> Run {
    let expandable = matches!(event.action, Action::SegmentMap | Action::SegmentUnmap);
    let kind = match expandable {
        true => kind_of_pages(event.size),
        false => Segment::kind_of(event.size),
    };
    let end = event.addr.saturating_add(event.size);
    Run { start: event.addr, end, stream: event.stream, pool, kind, expandable }
}

/// Small pages are of 2 MiB, large ones of 20.
fn kind_of_pages(bytes: u64) -> Pool {
    match bytes % (20 << 20) {
        0 => Pool::Large,
        _ => Pool::Small,
    }
}
