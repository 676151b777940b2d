//! A trace of `torch.profiler` (Chrome JSON, gzipped or not): what each device held over time, the peak, who stood there,
//! and in which phase of the step.
//!
//! The profiler writes one `[memory]` event for each block that is taken or given back, in allocated bytes: rounded up to
//! 512 on CUDA, exact on the CPU. What was there before the recording is an opening balance, told by torch's own `Total
//! Allocated` or, in traces of 2021, which lack it, at least the blocks that are given back without having been taken.
//!
//! The file is read in pieces. Kept are its memory events and ranges as columns: some 48 and 32 bytes each, and every name
//! once; stacks, shapes and kernels are passed over. Source of the format: `torch/csrc/autograd/profiler_kineto.cpp`.
//!
//! ```
//! use peakledger_input::Binary;
//! use peakledger_measure::trace::{Options, read};
//!
//! let event = |ts: u32, bytes: i64| {
//!     format!(r#"{{"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": {ts}, "args": {{"Device Type": 1, "Device Id": 0, "Bytes": {bytes}}}}}"#)
//! };
//! let text = format!("[{}, {}, {}]", event(1, 1024), event(2, 512), event(3, -1024));
//! let mut file = Binary::from_bytes("trace.json", text)?;
//! let trace = read(&mut file, &Options::default(), &mut |_| {})?;
//! assert_eq!(trace.devices[0].peak.bytes.get(), 1536);
//! # Ok::<(), peakledger_input::Problem>(())
//! ```

mod balance;
mod device;
mod ledger;
mod loose;
mod origin;
mod phases;
mod record;

use crate::names::RangeNames;
pub use device::{Contributor, DeviceKind, DeviceTrace, PhaseFigures, TraceDevice, TraceOom, TracePeak};
pub use record::Card;

use crate::elements::Elements;
use peakledger_core::Phase;
use peakledger_input::{Binary, Problem};
use record::{Names, Recorded};

/// What a trace tells.
#[derive(Clone, Debug)]
pub struct Trace {
    /// The devices, cards first and the CPU last.
    pub devices: Vec<DeviceTrace>,
    /// The steps in it.
    pub steps: Vec<Step>,
    /// All events of the file, of whatever kind.
    pub events: usize,
    /// What was passed over, guessed or found at odds.
    pub notes: Vec<String>,
    /// Where a file that is cut off ends, if what came before was asked for all the same.
    pub cut: Option<Problem>,
    names: Names,
}

/// One step: phases one after the other, without gaps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The phases.
    pub spans: Vec<Span>,
}

/// A phase of a step in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// Which.
    pub phase: Phase,
    /// Of which micro-batch: for forward, loss and backward.
    pub micro_batch: Option<u32>,
    /// From when, in nanoseconds as the trace counts.
    pub start: i64,
    /// Until when; what happens then belongs to what follows.
    pub end: i64,
}

impl Step {
    /// Whether it has a backward and an update in it: a whole training step, and not one that the recording cut.
    pub fn is_whole(&self) -> bool {
        [Phase::Backward, Phase::Update]
            .iter()
            .all(|phase| self.spans.iter().any(|span| span.phase == *phase))
    }
}

impl Trace {
    /// The step to be shown where one is asked for: the last whole one, which is the steadiest; else the longest.
    pub fn usual_step(&self) -> usize {
        let longest = || {
            (0..self.steps.len())
                .rev()
                .max_by_key(|at| self.steps.get(*at).map_or(0, |step| step.spans.len()))
        };
        self.steps.iter().rposition(Step::is_whole).or_else(longest).unwrap_or(0)
    }
}

impl Trace {
    /// Why it is only a part, where the file was cut off.
    pub fn incomplete(&self) -> Option<String> {
        self.cut.as_ref().map(|problem| format!("only a part of the file could be read: {}", problem.cause))
    }

    /// The device with the largest peak, a card where there is one, and the step in which it has it: by their places in
    /// `devices` and `steps`.
    pub fn largest(&self) -> (usize, usize) {
        let devices = self.devices.iter().enumerate();
        // of several the first
        let largest = devices.rev().max_by_key(|(_, device)| (!device.is_cpu(), device.peak.bytes));
        let step = largest.and_then(|(_, device)| device.peak.at).map(|(step, _)| step);
        (largest.map_or(0, |(at, _)| at), step.unwrap_or_else(|| self.usual_step()))
    }
}

/// How a trace is read.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Which ranges are which phases.
    pub names: RangeNames,
    /// Whether a file that is cut off is read as far as it goes.
    pub salvage: bool,
}

/// Reads a trace. `progress` is told how many bytes of the file were read.
///
/// # Errors
/// The file is no trace, not JSON, cut off, or has no memory events; a sum passes 64 bits. Each says what to do.
pub fn read(file: &mut Binary, options: &Options, progress: &mut dyn FnMut(u64)) -> Result<Trace, Problem> {
    let mut file = Elements::new(file, progress);
    let mut recorded = Recorded::default();
    let cut = match recorded.read(&mut file, &options.names) {
        Ok(()) => None,
        Err(problem) if file.was_cut() && !recorded.memory.is_empty() => {
            let cause =
                format!("{}; {} memory events before it are sound", problem.cause, recorded.memory.len());
            let mend =
                "copy or record it again, or keep the sound part: `peakledger read --salvage --save LEDGER`";
            Some(Problem { cause, ..problem }.mend(mend))
        }
        Err(problem) => return Err(problem),
    };
    if let Some(problem) = cut.as_ref().filter(|_| !options.salvage) {
        return Err(problem.clone());
    }
    if recorded.memory.is_empty() {
        return Err(recorded.nothing(&file));
    }
    let (devices, steps, notes) = device::devices(&mut recorded).map_err(|(device, event)| {
        let problem =
            file.file().problem(format!("the bytes on {device} pass 64 bits at its memory event {event}"));
        problem.mend("no machine holds so much: the file is damaged, record it again")
    })?;
    Ok(Trace { devices, steps, events: recorded.events, notes, cut, names: recorded.names })
}
