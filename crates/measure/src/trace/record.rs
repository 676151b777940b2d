//! The events of a trace as columns: what memory was taken and given back, and the ranges that ran meanwhile.

use super::loose::Loose;
use super::{DeviceKind, TraceDevice, TraceOom};
use crate::elements::Elements;
use crate::names::RangeNames;
use peakledger_core::{Bytes, Phase};
use peakledger_input::Problem;
use serde::Deserialize;
use std::collections::HashMap;
use std::fmt::Write;

/// All that is kept of a file.
#[derive(Default)]
pub(super) struct Recorded {
    pub(super) memory: Vec<Memory>,
    pub(super) ooms: Vec<(TraceDevice, i64, TraceOom)>,
    pub(super) ranges: Vec<Range>,
    pub(super) names: Names,
    pub(super) cards: Vec<(i128, Card)>,
    pub(super) events: usize,
    pub(super) faults: Faults,
    profile_memory: bool,
    threads: HashMap<Box<str>, u32>,
    key: String,
}

/// A card of `deviceProperties`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    /// What the driver calls it.
    pub name: String,
    /// Its memory.
    pub total: Bytes,
}

/// A `[memory]` event.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memory {
    pub(super) time: i64,
    pub(super) bytes: i64,
    pub(super) address: Option<u64>,
    /// What torch itself counts after it.
    pub(super) allocated: Option<u64>,
    pub(super) reserved: Option<u64>,
    pub(super) device: TraceDevice,
    pub(super) thread: u32,
}

/// Something that ran from one time to another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    pub(super) start: i64,
    pub(super) end: i64,
    pub(super) thread: u32,
    pub(super) name: u32,
    pub(super) kind: Kind,
}

/// What a range is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// An op of the dispatcher.
    Op,
    /// A node of the backward graph.
    Node,
    /// `record_function`.
    Annotation,
    /// The call of an `nn.Module`.
    Module,
    /// Another Python function.
    Function,
}

/// A name and what it stands for.
#[derive(Clone, Debug)]
struct Name {
    text: Box<str>,
    kind: Kind,
    phase: Option<Phase>,
    is_step: bool,
}

/// Texts, each kept once.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    all: Vec<Name>,
    /// The numbers of the names of ops and annotations, and of Python functions, which may have the same.
    ops: HashMap<Box<str>, u32>,
    functions: HashMap<Box<str>, u32>,
}

impl Names {
    pub(super) fn get(&self, name: u32) -> &str {
        self.all.get(name as usize).map_or("", |name| &*name.text)
    }

    pub(super) fn phase(&self, name: u32) -> Option<&Phase> {
        self.all.get(name as usize)?.phase.as_ref()
    }

    pub(super) fn is_step(&self, name: u32) -> bool {
        self.all.get(name as usize).is_some_and(|name| name.is_step)
    }

    /// The number of a name and the kind of what has it.
    fn of(&mut self, text: &str, python: bool, category: &str, phases: &RangeNames) -> Option<(u32, Kind)> {
        let known = if python { &mut self.functions } else { &mut self.ops };
        if let Some(id) = known.get(text) {
            return self.all.get(*id as usize).map(|name| (*id, name.kind));
        }
        let kind = match category {
            "python_function" if text.starts_with("nn.Module: ") => Kind::Module,
            "python_function" => Kind::Function,
            "user_annotation" => Kind::Annotation,
            _ if text.starts_with("autograd::engine::evaluate_function: ") => Kind::Node,
            _ => Kind::Op,
        };
        let id = u32::try_from(self.all.len()).ok()?;
        let (phase, is_step) = (phases.phase(text), phases.is_step(text));
        self.all.push(Name { text: text.into(), kind, phase, is_step });
        known.insert(text.into(), id);
        Some((id, kind))
    }
}

/// What was wrong in the file and passed over: how often, and where first.
#[derive(Default)]
pub(super) struct Faults(Vec<(&'static str, usize, String)>);

impl Faults {
    pub(super) fn count(&mut self, what: &'static str, place: impl FnOnce() -> String) {
        match self.0.iter_mut().find(|(known, ..)| *known == what) {
            Some((_, times, _)) => *times += 1,
            None => self.0.push((what, 1, place())),
        }
    }

    pub(super) fn notes(&self) -> impl Iterator<Item = String> + '_ {
        self.0.iter().map(|(what, times, place)| format!("{what}: {times}, first {place}"))
    }
}

const NO_EVENT: &str = "events that are no objects, or say a thing twice";

/// What an event says, but for its arguments.
#[derive(Deserialize)]
struct Event<'a> {
    #[serde(borrow, default)]
    ph: Loose<'a>,
    #[serde(borrow, default)]
    cat: Loose<'a>,
    #[serde(borrow, default)]
    name: Loose<'a>,
    #[serde(borrow, default)]
    pid: Loose<'a>,
    #[serde(borrow, default)]
    tid: Loose<'a>,
    #[serde(borrow, default)]
    ts: Loose<'a>,
    #[serde(borrow, default)]
    dur: Loose<'a>,
}

#[derive(Deserialize)]
struct MemoryEvent<'a> {
    #[serde(borrow)]
    args: MemoryArgs<'a>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct MemoryArgs<'a> {
    #[serde(borrow, rename = "Device Type")]
    device_type: Loose<'a>,
    #[serde(borrow, rename = "Device Id")]
    device_id: Loose<'a>,
    #[serde(borrow, rename = "Addr")]
    address: Loose<'a>,
    #[serde(borrow, rename = "Bytes")]
    bytes: Loose<'a>,
    #[serde(borrow, rename = "Total Allocated")]
    allocated: Loose<'a>,
    #[serde(borrow, rename = "Total Reserved")]
    reserved: Loose<'a>,
}

#[derive(Deserialize)]
struct CardProperties<'a> {
    #[serde(borrow, default)]
    id: Loose<'a>,
    #[serde(borrow, default)]
    name: Loose<'a>,
    #[serde(borrow, rename = "totalGlobalMem", default)]
    total: Loose<'a>,
}

impl Recorded {
    /// Reads a file to its end. What was read before a problem is in `self` all the same.
    pub(super) fn read(&mut self, file: &mut Elements<'_>, phases: &RangeNames) -> Result<(), Problem> {
        match file.peek()? {
            Some(b'[') => self.events(file, phases, "")?,
            Some(b'{') => {
                file.enter()?;
                let (mut first, mut found) = (true, false);
                while let Some(key) = file.next_key(first)? {
                    first = false;
                    match &*key {
                        "traceEvents" if file.peek()? == Some(b'[') => {
                            found = true;
                            self.events(file, phases, "/traceEvents")?;
                        }
                        "deviceProperties" => self.cards(file)?,
                        "profile_memory" => {
                            file.hold()?;
                            self.profile_memory = file.held() == b"1" || file.held() == b"true";
                        }
                        _ => file.skip()?,
                    }
                }
                if !found {
                    let problem = file.file().problem("no list `traceEvents` in it: not a profiler trace");
                    return Err(problem.mend("write one with `torch.profiler.profile(profile_memory=True)` and `export_chrome_trace`"));
                }
            }
            _ => {
                file.hold()?;
                return Err(file.faulty(""));
            }
        }
        file.end()
    }

    /// The trace has no memory in it.
    pub(super) fn nothing(&self, file: &Elements<'_>) -> Problem {
        let cause = match self.profile_memory {
            true => "recorded with `profile_memory`, yet without a single memory event",
            false => "no memory events in it: it was recorded without `profile_memory=True`",
        };
        let mend = match self.profile_memory {
            true => "record steps that allocate, on the thread that the profiler was started on",
            false => "record again with `torch.profiler.profile(profile_memory=True, …)`",
        };
        file.file().problem(cause).mend(mend)
    }

    fn events(&mut self, file: &mut Elements<'_>, phases: &RangeNames, pointer: &str) -> Result<(), Problem> {
        file.enter()?;
        let mut number = 0usize;
        while file.next_in_list(number == 0)? {
            file.hold()?;
            let place = || format!("at {pointer}/{number}");
            let is_object = file.held().starts_with(b"{");
            match serde_json::from_slice::<Event<'_>>(file.held()) {
                Ok(event) if is_object => self.event(&event, file.held(), phases, place),
                Ok(_) => self.faults.count(NO_EVENT, place),
                Err(error) if error.is_data() => self.faults.count(NO_EVENT, place),
                Err(_) => return Err(file.faulty(&format!("{pointer}/{number}"))),
            }
            number += 1;
        }
        self.events += number;
        Ok(())
    }

    fn event(&mut self, event: &Event<'_>, text: &[u8], phases: &RangeNames, place: impl FnOnce() -> String) {
        let name = event.name.text().unwrap_or_default();
        match (event.ph.text(), name) {
            (_, "[memory]") => self.memory(event, text, place),
            (_, "[OutOfMemory]") => self.out_of_memory(event, text, place),
            (Some("X"), _) => self.range(event, name, phases, place),
            _ => {}
        }
    }

    fn range(&mut self, event: &Event<'_>, name: &str, phases: &RangeNames, place: impl FnOnce() -> String) {
        let category = event.cat.text().unwrap_or_default();
        if !matches!(category, "cpu_op" | "user_annotation" | "python_function" | "Operator" | "operator") {
            return;
        }
        let times = event.ts.nanoseconds().zip(event.dur.nanoseconds());
        let Some((start, end)) =
            times.and_then(|(start, took)| Some((start, start.checked_add(took.max(0))?)))
        else {
            return self.faults.count("ranges without a time", place);
        };
        let thread = self.thread(event);
        if let Some((name, kind)) = self.names.of(name, category == "python_function", category, phases) {
            self.ranges.push(Range { start, end, thread, name, kind });
        }
    }

    fn memory(&mut self, event: &Event<'_>, text: &[u8], place: impl FnOnce() -> String) {
        let args = serde_json::from_slice(text).map(|MemoryEvent { args }| args).unwrap_or_default();
        let (Some(time), Some(device)) = (event.ts.nanoseconds(), device(&args)) else {
            return self.faults.count("memory events without a time or a device", place);
        };
        let Some(bytes) = args.bytes.whole().and_then(|bytes| i64::try_from(bytes).ok()) else {
            return self.faults.count("memory events whose `Bytes` is no whole number of 64 bits", place);
        };
        let whole = |value: &Loose<'_>| value.whole().and_then(|number| u64::try_from(number).ok());
        let [address, allocated, reserved] = [&args.address, &args.allocated, &args.reserved].map(whole);
        let thread = self.thread(event);
        self.memory.push(Memory { time, bytes, address, allocated, reserved, device, thread });
    }

    fn out_of_memory(&mut self, event: &Event<'_>, text: &[u8], place: impl FnOnce() -> String) {
        let args = serde_json::from_slice(text).map(|MemoryEvent { args }| args).unwrap_or_default();
        let size =
            |value: &Loose<'_>| value.whole().and_then(|number| u64::try_from(number).ok()).map(Bytes::new);
        match (event.ts.nanoseconds(), device(&args), size(&args.bytes)) {
            (Some(time), Some(device), Some(asked)) => {
                let [allocated, reserved] = [&args.allocated, &args.reserved].map(size);
                self.ooms.push((device, time, TraceOom { after_event: None, asked, allocated, reserved }));
            }
            _ => self.faults.count("out-of-memory events without a time, a device or a size", place),
        }
    }

    fn cards(&mut self, file: &mut Elements<'_>) -> Result<(), Problem> {
        file.hold()?;
        // what is not as expected here only leaves the card's name unknown
        let cards = serde_json::from_slice::<Vec<CardProperties<'_>>>(file.held()).unwrap_or_default();
        self.cards = cards
            .iter()
            .filter_map(|card| {
                let total = Bytes::new(u64::try_from(card.total.whole()?).ok()?);
                Some((card.id.whole()?, Card { name: card.name.text()?.to_owned(), total }))
            })
            .collect();
        Ok(())
    }

    /// Threads by process and number: the number is a text in some versions.
    fn thread(&mut self, event: &Event<'_>) -> u32 {
        self.key.clear();
        // writing into a string does not fail
        let _ = write!(self.key, "{}/{}", event.pid, event.tid);
        if let Some(thread) = self.threads.get(&*self.key) {
            return *thread;
        }
        let next = u32::try_from(self.threads.len()).unwrap_or(u32::MAX);
        self.threads.insert((&*self.key).into(), next);
        next
    }
}

fn device(args: &MemoryArgs<'_>) -> Option<TraceDevice> {
    let kind = DeviceKind::numbered(u8::try_from(args.device_type.whole()?).ok()?);
    Some(TraceDevice { kind, id: i32::try_from(args.device_id.whole().unwrap_or(-1)).ok()? })
}
