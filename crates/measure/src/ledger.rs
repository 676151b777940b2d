//! A measured device as a ledger, so that `show` and `compare` work on it as on a plan.
//!
//! A block is a state of its own bytes, on the gpu from the event that handed it out to the last before its owner let go
//! of it: the sums are those of `torch.cuda.memory_allocated`. A moment is an event, and moment 0 is before the first.
//! Of a recording of more than [`MOST_BLOCKS`] blocks, each phase is one moment, that of its largest sum, and only the
//! blocks there are states: the totals and the peak are the same, and the ledger stays as small as the live set.

use crate::category::{Categories, Kind};
use crate::history::{History, TooLarge};
use crate::names::RangeNames;
use crate::phases::{Span, ToldBy, spans};
use crate::replay::{Change, Live, Replay};
use crate::snapshot::Snapshot;
use crate::user::{Owner, UserLines};
use peakledger_core::{
    Bytes, Device, Ledger, LedgerError, Moment, Residencies, Residency, State, StateId, Timeline,
};
use std::collections::BTreeMap;
use std::num::NonZeroU32;

/// The most blocks that become a state each.
pub const MOST_BLOCKS: u64 = 100_000;

/// A measured ledger.
#[derive(Clone, Debug)]
pub struct MeasuredLedger {
    /// The ledger.
    pub ledger: Ledger,
    /// How many blocks are in it, and how many the recording had.
    pub blocks: [u64; 2],
    /// What tells the phases.
    pub phases_by: ToldBy,
    /// The bytes at the peak whose category something tells, and all of them.
    pub told: [u64; 2],
    /// The line that asked for the last block before each phase's largest moment.
    pub peak_lines: Vec<Option<String>>,
}

/// Why there is no ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoLedger {
    /// A sum of bytes passes 64 bits.
    TooLarge(TooLarge),
    /// It breaks a rule of ledgers.
    Rule(LedgerError),
}

impl From<TooLarge> for NoLedger {
    fn from(too_large: TooLarge) -> NoLedger {
        NoLedger::TooLarge(too_large)
    }
}

impl MeasuredLedger {
    /// The ledger of a device.
    ///
    /// # Errors
    /// A sum passes 64 bits.
    pub fn of(snapshot: &Snapshot, device: u32, names: &RangeNames) -> Result<MeasuredLedger, NoLedger> {
        MeasuredLedger::within(snapshot, device, names, MOST_BLOCKS)
    }

    /// The same, with so many blocks as states each.
    ///
    /// # Errors
    /// A sum passes 64 bits.
    pub fn within(
        snapshot: &Snapshot,
        device: u32,
        names: &RangeNames,
        most: u64,
    ) -> Result<MeasuredLedger, NoLedger> {
        let history = History::of(snapshot, device)?;
        let (spans, phases_by) = spans(snapshot, device, names);
        let peaks = peaks(snapshot, &history, &spans);
        let allocs = history.actions.first().copied().unwrap_or(0);
        let blocks = allocs.saturating_add(history.opening.blocks.len() as u64);
        let last = history.events.end - history.events.start;
        let axis = match blocks <= most {
            true => Axis::Events,
            false => Axis::Peaks(peaks.iter().map(|peak| peak.moment).collect()),
        };
        let timeline = timeline(&spans, last, &axis);
        let mut states = States::new(snapshot, device, axis);
        let mut replay = Replay::new(snapshot, &history);
        let mut open: BTreeMap<u64, (u32, Live)> =
            replay.live().map(|live| (live.address, (0, *live))).collect();
        open.retain(|_, (_, live)| !live.pending);
        while let Some((number, _, change)) = replay.step() {
            let closed = match change {
                Change::Allocated(live) => open.insert(live.address, (number + 1, live)),
                Change::Freed(live) => open.remove(&live.address).map(|(start, _)| (start, live)),
                // a free in one event; of one in two, nothing is left to be closed
                Change::Completed(live) if !live.pending => {
                    open.remove(&live.address).map(|(start, _)| (start, live))
                }
                _ => None,
            };
            if let Some((start, live)) = closed {
                states.add(&live, start, number, Some(number));
            }
        }
        for (start, live) in open.into_values() {
            let live = replay.at(live.address).copied().unwrap_or(live);
            states.add(&live, start, last, None);
        }
        let lines = UserLines::of(snapshot);
        let peak_lines = peaks.iter().map(|peak| peak.by.and_then(|live| lines.text(live.stack))).collect();
        let kept = states.states.len() as u64;
        let ledger = Ledger::new(timeline, states.states).map_err(NoLedger::Rule)?;
        let told = told(&ledger, &states.told);
        Ok(MeasuredLedger { ledger, blocks: [kept, blocks], phases_by, told, peak_lines })
    }
}

/// The bytes at the peak of the states that are told, and of all.
fn told(ledger: &Ledger, told: &[bool]) -> [u64; 2] {
    let mut bytes = [0u64; 2];
    for (StateId(id), state) in ledger.resident(Device::Gpu, ledger.peak().moment) {
        let is_told = told.get(id as usize).copied().unwrap_or(false);
        let [of_told, all] = &mut bytes;
        *all = all.saturating_add(state.bytes.get());
        *of_told = of_told.saturating_add(if is_told { state.bytes.get() } else { 0 });
    }
    bytes
}

/// Where a phase is largest.
struct PhasePeak {
    moment: u32,
    bytes: u128,
    by: Option<Live>,
}

fn peaks(snapshot: &Snapshot, history: &History, spans: &[Span]) -> Vec<PhasePeak> {
    let mut replay = Replay::new(snapshot, history);
    let mut peaks: Vec<PhasePeak> = Vec::with_capacity(spans.len());
    let mut starts = spans.iter().map(|span| span.first).peekable();
    starts.next();
    peaks.push(PhasePeak { moment: 0, bytes: replay.allocated(), by: None });
    let mut by = None;
    while let Some((number, _, change)) = replay.step() {
        if let Change::Allocated(live) = change {
            by = Some(live);
        }
        let (moment, bytes) = (number + 1, replay.allocated());
        let begins = starts.next_if(|first| *first <= number).is_some();
        match peaks.last_mut() {
            Some(peak) if !begins => {
                if bytes > peak.bytes {
                    *peak = PhasePeak { moment, bytes, by };
                }
            }
            _ => peaks.push(PhasePeak { moment, bytes, by }),
        }
    }
    peaks
}

/// What the moments of the timeline are.
enum Axis {
    /// Every event.
    Events,
    /// The largest moment of each phase.
    Peaks(Vec<u32>),
}

impl Axis {
    /// The moments of the timeline that a stay from one moment of events to another has.
    fn stay(&self, start: u32, end: u32) -> Option<(Moment, Moment)> {
        match self {
            Axis::Events => Some((Moment(start), Moment(end))),
            Axis::Peaks(peaks) => {
                let first = peaks.partition_point(|peak| *peak < start);
                let after = peaks.partition_point(|peak| *peak <= end);
                let moment = |at: usize| u32::try_from(at).ok().map(Moment);
                (first < after).then_some((moment(first)?, moment(after.checked_sub(1)?)?))
            }
        }
    }
}

/// The phases with their moments; the first begins before the first event.
fn timeline(spans: &[Span], last: u32, axis: &Axis) -> Timeline {
    let mut timeline = Timeline::empty();
    let ends = spans.iter().skip(1).map(|span| span.first).chain([last]);
    for ((at, span), end) in spans.iter().enumerate().zip(ends) {
        let events = end.saturating_sub(span.first);
        let moments = match axis {
            Axis::Events => events.saturating_add(u32::from(at == 0)),
            Axis::Peaks(_) => 1,
        };
        let moments = NonZeroU32::new(moments).unwrap_or(NonZeroU32::MIN);
        let _room = timeline.try_push(span.phase.clone(), span.number, moments);
    }
    timeline
}

/// The states so far, with names that are given once.
struct States<'a> {
    categories: Categories<'a>,
    lines: UserLines<'a>,
    axis: Axis,
    given: BTreeMap<Owner, u32>,
    states: Vec<State>,
    /// Whether the category of each is told.
    told: Vec<bool>,
}

impl<'a> States<'a> {
    fn new(snapshot: &'a Snapshot, device: u32, axis: Axis) -> States<'a> {
        let categories = Categories::of(snapshot, device);
        let lines = UserLines::of(snapshot);
        States { categories, lines, axis, given: BTreeMap::new(), states: Vec::new(), told: Vec::new() }
    }

    /// A block that is freed by an event, or kept to the end.
    fn add(&mut self, live: &Live, start: u32, end: u32, died: Option<u32>) {
        let throughout = died.is_none() && start == 0;
        let Some((start, end)) = self.axis.stay(start, end) else { return };
        let Kind { category, detail, told } = self.categories.kind(live, died);
        let name = self.name(live).into();
        self.told.push(told);
        self.states.push(State {
            name,
            category,
            detail,
            bytes: Bytes::new(live.size),
            persistent: throughout,
            residencies: Residencies::One(Residency { device: Device::Gpu, start, end }),
        });
    }

    fn name(&mut self, live: &Live) -> String {
        let owner = self.lines.owner(live.stack, live.event.is_some());
        let given = self.given.entry(owner).or_insert(0);
        *given += 1;
        let number = *given;
        let name = match owner {
            Owner::Preexisting => "before the recording".to_owned(),
            Owner::NoUserFrame => "no user frame".to_owned(),
            Owner::NoStack => "no stack".to_owned(),
            Owner::Line(line) => self.lines.place(line),
        };
        match number {
            1 => name,
            number => format!("{name} #{number}"),
        }
    }
}
