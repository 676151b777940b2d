//! The answer for each device: peak, who stood there, and the figures of every phase.

use super::balance::{Account, Block, account};
use super::origin::{Origin, origins};
use super::record::{Card, Memory, Names, Recorded};
use super::{Step, phases};
use crate::levels::{Level, Levels};
use peakledger_core::Bytes;
use std::fmt;

/// A device of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TraceDevice {
    /// What it is.
    pub kind: DeviceKind,
    /// Its number; −1 for the CPU.
    pub id: i32,
}

/// What a device is, by torch's numbers (`c10/core/DeviceType.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum DeviceKind {
    Cuda,
    Hip,
    Xpu,
    Mps,
    Hpu,
    /// Torch's word for hardware of other makers.
    PrivateUse1,
    /// A number without a name here.
    Other(u8),
    Cpu,
}

impl DeviceKind {
    pub(super) fn numbered(number: u8) -> DeviceKind {
        match number {
            0 => DeviceKind::Cpu,
            1 => DeviceKind::Cuda,
            6 => DeviceKind::Hip,
            12 => DeviceKind::Xpu,
            13 => DeviceKind::Mps,
            15 => DeviceKind::Hpu,
            20 => DeviceKind::PrivateUse1,
            other => DeviceKind::Other(other),
        }
    }
}

/// As torch writes it: `cuda:0`, `cpu`.
impl fmt::Display for TraceDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = self.id;
        match self.kind {
            DeviceKind::Cpu => write!(f, "cpu"),
            DeviceKind::Cuda => write!(f, "cuda:{id}"),
            DeviceKind::Hip => write!(f, "hip:{id}"),
            DeviceKind::Xpu => write!(f, "xpu:{id}"),
            DeviceKind::Mps => write!(f, "mps:{id}"),
            DeviceKind::Hpu => write!(f, "hpu:{id}"),
            DeviceKind::PrivateUse1 => write!(f, "privateuseone:{id}"),
            DeviceKind::Other(number) => write!(f, "device type {number}:{id}"),
        }
    }
}

/// What a trace tells of one device. All bytes are allocated bytes.
#[derive(Clone, Debug)]
pub struct DeviceTrace {
    /// Which.
    pub device: TraceDevice,
    /// The card, where the trace names it.
    pub card: Option<Card>,
    /// How many memory events it has.
    pub events: usize,
    /// What was there before the first.
    pub opening: Bytes,
    /// Whether torch told so; else it is the least that it can have been.
    pub opening_is_told: bool,
    /// What is there after the last.
    pub end: Bytes,
    /// All that was ever taken, in 128 bits: blocks come and go.
    pub taken: u128,
    /// Where there is most.
    pub peak: TracePeak,
    /// Where the allocator holds most, if the trace tells: the event and the bytes.
    pub peak_reserved: Option<(u32, Bytes)>,
    /// Who stands at the peak, largest first.
    pub contributors: Vec<Contributor>,
    /// What of the peak no event accounts for: positive where torch counts more than the events.
    pub unexplained: i128,
    /// Where memory ran out.
    pub out_of_memory: Vec<TraceOom>,
    /// Each phase of each step: for the spans of [`Trace::steps`](super::Trace::steps), in their order.
    pub phases: Vec<Vec<PhaseFigures>>,
    /// How allocated and reserved bytes ran; moment 0 is before the first memory event.
    pub levels: Levels,
    pub(super) blocks: Vec<Block>,
    pub(super) times: Vec<i64>,
}

impl DeviceTrace {
    /// How many of its memory events are before a time, in nanoseconds as the trace counts.
    pub fn events_before(&self, time: i64) -> usize {
        self.times.partition_point(|event| *event < time)
    }

    /// Whether it is the machine's own memory, which no peak of a card counts.
    pub fn is_cpu(&self) -> bool {
        self.device.kind == DeviceKind::Cpu
    }
}

/// Where a device holds most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracePeak {
    /// The memory event of the device after which it is reached, from 0; none: before the first.
    pub event: Option<u32>,
    /// How long after the device's first memory event, in nanoseconds.
    pub after: i64,
    /// The bytes.
    pub bytes: Bytes,
    /// The step, by its place in [`Trace::steps`](super::Trace::steps), and the phase in it.
    pub at: Option<(usize, usize)>,
}

/// A block that stands at the peak.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contributor {
    /// Its bytes.
    pub bytes: Bytes,
    /// The event that took it; none for what is older than the trace.
    pub event: Option<u32>,
    /// Where it was taken.
    pub name: String,
    /// The op.
    pub op: Option<String>,
    /// The module that was called, or the node of the backward graph.
    pub within: Option<String>,
    /// The innermost function of the user's own: `train.py(12): step`.
    pub user_frame: Option<String>,
    /// The innermost `record_function`.
    pub annotation: Option<String>,
    /// The step and the phase in which it was taken.
    pub born: Option<(usize, usize)>,
}

/// An `[OutOfMemory]` event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceOom {
    /// The last memory event before it.
    pub after_event: Option<u32>,
    /// What was asked for, rounded up to 512 bytes.
    pub asked: Bytes,
    /// What was allocated then.
    pub allocated: Option<Bytes>,
    /// What the allocator held.
    pub reserved: Option<Bytes>,
}

/// What a phase holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhaseFigures {
    /// How many memory events fall into it.
    pub events: u32,
    /// The most, its beginning counted in.
    pub peak: Bytes,
    /// What is there when it ends.
    pub end: Bytes,
}

type Answer = (Vec<DeviceTrace>, Vec<Step>, Vec<String>);

/// All devices. An error is the device and the event at which a sum passes 64 bits.
pub(super) fn devices(recorded: &mut Recorded) -> Result<Answer, (TraceDevice, u32)> {
    let mut order: Vec<usize> = (0..recorded.memory.len()).collect();
    let time = |at: &usize| recorded.memory.get(*at).map_or(i64::MAX, |event| event.time);
    order.sort_by_key(time); // stable: as in the file where times are equal
    let (first, last) = (order.first().map_or(0, time), order.last().map_or(0, time));
    let (steps, mut notes) = phases::steps(recorded, first, last.saturating_add(1));
    let origins = origins(recorded, &order);
    let mut kinds: Vec<TraceDevice> = recorded.memory.iter().map(|event| event.device).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let (mut accounts, mut all) = (Vec::new(), Vec::new());
    for device in kinds {
        let events: Vec<(Memory, Origin)> = (order.iter().zip(&origins))
            .filter_map(|(at, origin)| Some((*recorded.memory.get(*at)?, *origin)))
            .filter(|(event, _)| event.device == device)
            .collect();
        let account = account(&events, &mut recorded.faults).map_err(|event| (device, event))?;
        accounts.push((device, account));
        all.push(events);
    }
    notes.extend(account_notes(&accounts));
    let answers = accounts.into_iter().zip(&all);
    let devices = answers
        .map(|((device, account), events)| answer(recorded, device, events, account, &steps))
        .collect();
    notes.extend(recorded.faults.notes());
    Ok((devices, steps, notes))
}

/// What is said of all accounts, each thing once with the devices that it is true of.
fn account_notes(accounts: &[(TraceDevice, Account)]) -> Vec<String> {
    let of = |is: fn(&Account) -> bool| {
        let those = accounts.iter().filter(|(_, account)| is(account));
        those.map(|(device, _)| device.to_string()).collect::<Vec<_>>().join(", ")
    };
    let guessed = of(|account| !account.has_addresses);
    let untold = of(|account| !account.opening_is_told);
    let mut notes = Vec::new();
    if !guessed.is_empty() {
        notes.push(format!(
            "{guessed}: no addresses (torch 1.x), so a free gives back the latest block of its size"
        ));
    }
    if !untold.is_empty() {
        notes.push(format!(
            "{untold}: no totals (torch 1.x), so what never moves in the trace is not counted"
        ));
    }
    for (device, account) in accounts.iter().filter(|(_, account)| account.astray > 0) {
        let times = account.astray;
        notes.push(format!(
            "{device}: torch's own total moves otherwise than the events {times} times; its total is taken"
        ));
    }
    notes
}

fn answer(
    recorded: &Recorded,
    device: TraceDevice,
    events: &[(Memory, Origin)],
    account: Account,
    steps: &[Step],
) -> DeviceTrace {
    let times: Vec<i64> = events.iter().map(|(event, _)| event.time).collect();
    let at_time = |event: Option<u32>| event.and_then(|event| times.get(event as usize)).copied();
    let place = |event: Option<u32>| at_time(event).and_then(|time| place(steps, time));
    let peak = account.peak();
    let contributors: Vec<Contributor> = account
        .standing(peak)
        .into_iter()
        .map(|block| contributor(&recorded.names, block, place(block.born)))
        .collect();
    let known: i128 = contributors.iter().map(|contributor| i128::from(contributor.bytes.get())).sum();
    let oom = |(_, time, oom): &(TraceDevice, i64, TraceOom)| {
        let before = times.partition_point(|known| known <= time).checked_sub(1);
        TraceOom { after_event: before.and_then(|event| u32::try_from(event).ok()), ..*oom }
    };
    // the first of the largest; the CPU has no cache, and says 0
    let reserved = (0u32..).zip(events).filter_map(|(at, (event, _))| Some((at, event.reserved?)));
    let reserved = reserved
        .filter(|(_, bytes)| *bytes > 0)
        .fold(None, |most: Option<(u32, u64)>, now| most.filter(|most| most.1 >= now.1).or(Some(now)));
    DeviceTrace {
        device,
        card: recorded
            .cards
            .iter()
            .find(|(id, _)| device.kind != DeviceKind::Cpu && *id == i128::from(device.id))
            .map(|(_, card)| card.clone()),
        events: events.len(),
        opening: Bytes::new(account.opening),
        opening_is_told: account.opening_is_told,
        end: Bytes::new(account.levels.last().copied().unwrap_or(account.opening)),
        taken: account.taken,
        peak: TracePeak {
            event: peak,
            after: at_time(peak).zip(times.first()).map_or(0, |(time, first)| time - first),
            bytes: Bytes::new(account.level(peak)),
            at: place(peak),
        },
        peak_reserved: reserved.map(|(event, bytes)| (event, Bytes::new(bytes))),
        unexplained: i128::from(account.level(peak)) - known,
        contributors,
        out_of_memory: recorded.ooms.iter().filter(|(of, ..)| *of == device).map(oom).collect(),
        phases: steps.iter().map(|step| phase_figures(step, &times, &account)).collect(),
        levels: levels(events, &account),
        blocks: account.blocks,
        times,
    }
}

/// The bytes before the first event and after each; what is reserved stays what it was told last.
fn levels(events: &[(Memory, Origin)], account: &Account) -> Levels {
    let mut levels = Levels::default();
    let mut reserved = events.iter().find_map(|(event, _)| event.reserved).unwrap_or(0);
    levels.start(Level { allocated: account.opening, reserved });
    for ((event, _), allocated) in events.iter().zip(&account.levels) {
        reserved = event.reserved.unwrap_or(reserved);
        levels.see(Level { allocated: *allocated, reserved });
    }
    levels
}

fn phase_figures(step: &Step, times: &[i64], account: &Account) -> Vec<PhaseFigures> {
    let figures = |span: &super::Span| {
        let from = times.partition_point(|time| *time < span.start);
        let to = times.partition_point(|time| *time < span.end);
        let before = from.checked_sub(1).and_then(|at| u32::try_from(at).ok());
        let levels = account.levels.get(from..to).unwrap_or_default();
        let begins = account.level(before);
        PhaseFigures {
            events: u32::try_from(levels.len()).unwrap_or(u32::MAX),
            peak: Bytes::new(levels.iter().copied().fold(begins, u64::max)),
            end: Bytes::new(levels.last().copied().unwrap_or(begins)),
        }
    };
    step.spans.iter().map(figures).collect()
}

/// The step and the span that a time lies in.
pub(super) fn place(steps: &[Step], time: i64) -> Option<(usize, usize)> {
    let step = steps
        .partition_point(|step| step.spans.first().is_some_and(|span| span.start <= time))
        .checked_sub(1)?;
    let spans = &steps.get(step)?.spans;
    Some((step, spans.partition_point(|span| span.start <= time).checked_sub(1)?))
}

fn contributor(names: &Names, block: &Block, born: Option<(usize, usize)>) -> Contributor {
    let origin = block.origin;
    let text = |name: Option<u32>| name.map(|name| names.get(name).to_owned());
    Contributor {
        bytes: Bytes::new(block.bytes),
        event: block.born,
        name: name(names, block),
        op: text(origin.op),
        within: text(origin.module).or_else(|| origin.node.map(|node| node_name(names, node).to_owned())),
        user_frame: text(origin.function),
        annotation: text(origin.annotation),
        born,
    }
}

/// `nn.Module: Linear_0: aten::addmm`, as near as the trace can tell.
pub(super) fn name(names: &Names, block: &Block) -> String {
    if block.is_rest {
        return "older than the trace, and never given back in it".to_owned();
    }
    if block.born.is_none() {
        return "older than the trace".to_owned();
    }
    let origin = block.origin;
    let within = match (origin.module, origin.node, origin.annotation.or(origin.function)) {
        (Some(module), ..) => names.get(module).strip_prefix("nn.Module: "),
        (None, Some(node), _) => Some(node_name(names, node)),
        (None, None, other) => other.map(|name| names.get(name)),
    };
    match (within, origin.op.map(|op| names.get(op))) {
        (Some(within), Some(op)) if within != op => format!("{within}: {op}"),
        (Some(name), _) | (None, Some(name)) => name.to_owned(),
        (None, None) => "outside of every op".to_owned(),
    }
}

fn node_name(names: &Names, node: u32) -> &str {
    let name = names.get(node);
    name.strip_prefix("autograd::engine::evaluate_function: ").unwrap_or(name)
}
