//! What can be drawn: a ledger file, and what a snapshot, a trace or a memory timeline measured, which is made one.

use super::{read, traced};
use crate::progress::Progress;
use peakledger_core::document::LedgerFile;
use peakledger_input::{
    Binary, Input, LEDGER_LIMIT, MEASURED_LIMIT, Problem, Source, open_ledger, read_ledger,
};
use peakledger_measure::snapshot::{self, Options, Snapshot};
use peakledger_measure::timeline::{self, MemoryTimeline};
use peakledger_measure::trace::{self, Trace};
use peakledger_measure::{Content, Measurement, RangeNames, Scope, content};
use peakledger_plan::catalogue::open_model;
use std::io::Read as _;

/// Keys that ledgers have and traces do not.
const LEDGER_KEYS: [&str; 3] = ["\"schema_version\"", "\"start_phase\"", "\"residencies\""];

/// Keys that the reports of `plan` have, and the config of the model that they tell of has not.
const REPORT_KEYS: [&str; 2] = ["\"first_step\"", "\"steady_step\""];

/// What a file is, by how it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A memory snapshot.
    Snapshot,
    /// A profiler's trace.
    Trace,
    /// A memory timeline, or its picture.
    Timeline,
    /// A model's config.json.
    Config,
    /// A ledger, or what a ledger's reader will say of it.
    Ledger,
}

impl Kind {
    pub(crate) fn of(file: &Binary) -> Kind {
        let content = content(file);
        match content {
            Ok(Content::Pickle) => return Kind::Snapshot,
            Ok(Content::Timeline) => return Kind::Timeline,
            _ => {}
        }
        let head = String::from_utf8_lossy(file.head());
        let has = |keys: &[&str]| keys.iter().any(|key| head.contains(key));
        if content.is_err() || has(&LEDGER_KEYS) {
            Kind::Ledger
        } else if has(&[
            "\"traceEvents\"",
            "\"schemaVersion\"",
            "\"deviceProperties\"",
            "\"ph\":",
            "\"ph\" :",
        ]) {
            Kind::Trace
        } else if has(&["\"model_type\"", "\"architectures\"", "\"hidden_size\""]) {
            Kind::Config
        } else {
            Kind::Ledger
        }
    }

    /// What was measured, in words; nothing of what is no measurement.
    pub(crate) fn measured(self) -> Option<&'static str> {
        match self {
            Kind::Snapshot => Some("a Python pickle, as memory snapshots are"),
            Kind::Trace => Some("a profiler's trace"),
            Kind::Timeline => Some("a memory timeline"),
            Kind::Config | Kind::Ledger => None,
        }
    }
}

/// That JSON is for another verb than `read`, if that is plain.
pub(crate) fn check_measured(file: &Binary) -> Result<(), Problem> {
    let head = String::from_utf8_lossy(file.head());
    match Kind::of(file) {
        Kind::Ledger if LEDGER_KEYS.iter().any(|key| head.contains(key)) => Err(file
            .problem("a ledger, not a measurement")
            .mend("`peakledger show FILE` tells its phases, its peak and who forms it")),
        Kind::Config | Kind::Ledger if REPORT_KEYS.iter().any(|key| head.contains(key)) => Err(file
            .problem("a report of `plan`, not a measurement")
            .mend("it is an answer already; `peakledger plan … --save LEDGER` writes what `show` and `compare` take")),
        Kind::Config => Err(file
            .problem("the config of a model, not a measurement")
            .mend("`peakledger plan FILE` predicts a step of it")),
        _ => Ok(()),
    }
}

/// What an input turned out to be.
pub(crate) enum Found {
    /// A measurement, not yet read.
    Measured(Kind, Binary),
    /// A ledger, with what the user calls it.
    Ledger(String, LedgerFile),
}

impl Found {
    /// Looks at a file or standard input, and reads it if it is a ledger.
    pub(crate) fn at(input: &Input) -> Result<Found, Problem> {
        let ledger = |(name, file)| Found::Ledger(name, file);
        let file = match Binary::open(input, MEASURED_LIMIT) {
            Ok(file) => file,
            Err(problem) if input.passes_once() => return Err(problem),
            Err(_) => {
                return open_ledger(input).map(ledger).map_err(|problem| of_model(input, problem));
            }
        };
        let kind = Kind::of(&file);
        if kind.measured().is_some() {
            return Ok(Found::Measured(kind, file));
        }
        // what comes by a pipe comes once, and what is packed is unpacked here alone
        if file.passes_once() || file.is_packed() {
            let source = whole(file)?;
            return Ok(Found::Ledger(source.name().to_owned(), read_ledger(&source)?));
        }
        open_ledger(input).map(ledger)
    }
}

/// What is wrong with a name that is no file: where it is that of a model, what makes a file of it.
pub(crate) fn of_model(input: &Input, problem: Problem) -> Problem {
    let name = input.name();
    let is_file = input.path().is_none_or(std::path::Path::exists);
    if is_file || open_model(&*name).is_err() {
        return problem;
    }
    let mend = format!(
        "`peakledger plan {name} -o plan.html` draws its step, and `peakledger plan {name} --save ledger.json` makes a ledger of it"
    );
    Problem::in_file(name, "the name of a model, not a file").mend(mend)
}

/// The whole of a ledger that passes by once.
fn whole(mut file: Binary) -> Result<Source, Problem> {
    if is_no_json(file.head()) {
        return Source::from_bytes(file.name(), file.head().to_vec()); // the rest may have no end
    }
    let mut bytes = Vec::new();
    let most = LEDGER_LIMIT.bytes.get();
    let read = (&mut file).take(most.saturating_add(1)).read_to_end(&mut bytes);
    read.map_err(|error| file.explain(&error))?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length > most) {
        return Err(file.problem(format!("larger than a ledger may be ({})", LEDGER_LIMIT.bytes)));
    }
    Source::from_bytes(file.name(), bytes)
}

/// Whether what begins so is neither a list nor an object, whatever follows.
fn is_no_json(head: &[u8]) -> bool {
    let text = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head).trim_ascii_start();
    text.first().is_some_and(|first| !matches!(first, b'[' | b'{'))
}

/// Reads what can be drawn.
pub(crate) fn open(input: &Input) -> Result<(String, LedgerFile), Problem> {
    match Found::at(input)? {
        Found::Measured(kind, file) => Ok((file.name().to_owned(), measured(file, kind)?)),
        Found::Ledger(name, file) => Ok((name, file)),
    }
}

/// Reads a ledger where nothing else will do.
pub(crate) fn open_ledger_alone(input: &Input) -> Result<(String, LedgerFile), Problem> {
    match Found::at(input)? {
        Found::Ledger(name, file) => Ok((name, file)),
        Found::Measured(kind, file) => {
            let what = kind.measured().unwrap_or_default();
            Err(file.problem(format!("{what}, not a ledger")).mend(
                "`peakledger read FILE` tells what it holds and `--save LEDGER` makes a ledger of it; `show`, `compare`, \
                 `diff`, `report` and `reconcile --measured` take it as it is",
            ))
        }
    }
}

/// Reads bytes that can be drawn.
pub(crate) fn from_bytes(name: &str, bytes: Vec<u8>) -> Result<LedgerFile, Problem> {
    let file = Binary::from_bytes(name, &*bytes)?;
    match Kind::of(&file) {
        kind if kind.measured().is_some() => measured(file, kind),
        _ => read_ledger(&Source::from_bytes(name, bytes)?),
    }
}

fn measured(file: Binary, kind: Kind) -> Result<LedgerFile, Problem> {
    let name = file.name().to_owned();
    match kind {
        Kind::Trace => traced::ledger_of(&name, &read_trace(file)?, None),
        Kind::Timeline => traced::timeline_ledger(&name, &read_timeline(file)?),
        _ => {
            let snapshot = read_snapshot(file)?;
            let measurement = Measurement::of(&name, &snapshot, &Scope::default())?;
            read::ledger_of(&name, &snapshot, &measurement, &RangeNames::default())
        }
    }
}

/// A whole snapshot, with the bar that large files have.
pub(crate) fn read_snapshot(mut file: Binary) -> Result<Snapshot, Problem> {
    let mut progress = Progress::of(&file);
    snapshot::read(&mut file, Options { salvage: false }, &mut |bytes| progress.at(bytes))
}

/// A whole trace.
pub(crate) fn read_trace(mut file: Binary) -> Result<Trace, Problem> {
    let mut progress = Progress::of(&file);
    trace::read(&mut file, &trace::Options::default(), &mut |bytes| progress.at(bytes))
}

/// A whole timeline.
pub(crate) fn read_timeline(mut file: Binary) -> Result<MemoryTimeline, Problem> {
    let mut progress = Progress::of(&file);
    timeline::read(&mut file, &mut |bytes| progress.at(bytes))
}
