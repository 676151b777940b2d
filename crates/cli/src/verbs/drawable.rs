//! What can be drawn: a ledger file, and what a snapshot or a trace measured, which is made one.

use super::{read, traced};
use peakledger_core::document::LedgerFile;
use peakledger_input::{Binary, Input, MEASURED_LIMIT, Problem, Source};
use peakledger_measure::snapshot::{self, Options};
use peakledger_measure::{Content, Measurement, RangeNames, Scope, content, trace};

/// What a file is, by how it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A memory snapshot.
    Snapshot,
    /// A profiler's trace.
    Trace,
    /// A model's config.json.
    Config,
    /// A ledger, or what a ledger's reader will say of it.
    Ledger,
}

impl Kind {
    pub(crate) fn of(file: &Binary) -> Kind {
        let head = String::from_utf8_lossy(file.head());
        let has = |keys: &[&str]| keys.iter().any(|key| head.contains(key));
        match content(file) {
            Ok(Content::Pickle) => Kind::Snapshot,
            _ if has(&["\"schema_version\"", "\"start_phase\"", "\"residencies\""]) => Kind::Ledger,
            Ok(Content::Trace)
                if has(&[
                    "\"traceEvents\"",
                    "\"schemaVersion\"",
                    "\"deviceProperties\"",
                    "\"ph\":",
                    "\"ph\" :",
                ]) =>
            {
                Kind::Trace
            }
            Ok(Content::Trace) if has(&["\"model_type\"", "\"architectures\"", "\"hidden_size\""]) => {
                Kind::Config
            }
            _ => Kind::Ledger,
        }
    }
}

/// Reads a file that can be drawn; standard input is a ledger.
pub(crate) fn open(input: &Input) -> Result<(String, LedgerFile), Problem> {
    if let Input::File(_) = input
        && let Ok(file) = Binary::open(input, MEASURED_LIMIT)
        && let kind @ (Kind::Snapshot | Kind::Trace) = Kind::of(&file)
    {
        return Ok((file.name().to_owned(), measured(file, kind)?));
    }
    peakledger_input::open_ledger(input)
}

/// Reads bytes that can be drawn.
pub(crate) fn from_bytes(name: &str, bytes: Vec<u8>) -> Result<LedgerFile, Problem> {
    let file = Binary::from_bytes(name, &*bytes)?;
    match Kind::of(&file) {
        kind @ (Kind::Snapshot | Kind::Trace) => measured(file, kind),
        _ => peakledger_input::read_ledger(&Source::from_bytes(name, bytes)?),
    }
}

fn measured(mut file: Binary, kind: Kind) -> Result<LedgerFile, Problem> {
    let name = file.name().to_owned();
    if kind == Kind::Trace {
        return traced::ledger_of(
            &name,
            &trace::read(&mut file, &trace::Options::default(), &mut |_| ())?,
            None,
        );
    }
    let snapshot = snapshot::read(&mut file, Options { salvage: false }, &mut |_| ())?;
    let measurement = Measurement::of(&name, &snapshot, &Scope::default())?;
    read::ledger_of(&name, &snapshot, &measurement, &RangeNames::default())
}
