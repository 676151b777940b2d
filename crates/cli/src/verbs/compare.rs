//! `peakledger compare`: candidates against a baseline.

use super::drawable;
use crate::Answer;
use crate::args::{ListArgs, OutputArgs, input};
use crate::output::Output;
use peakledger_core::compare;
use peakledger_core::document::LedgerFile;
use peakledger_input::{Input, Problem};
use peakledger_report::{Candidate, CompareReport};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;

/// Compare candidate ledgers with a baseline: each one's peak, what it saves, and which states moved
#[derive(clap::Args)]
#[command(after_help = crate::examples::COMPARE)]
pub(crate) struct Args {
    /// The baseline: a ledger file, whose candidates take part, a memory snapshot, a profiler's trace or a memory timeline
    #[arg(value_parser = input())]
    baseline: Input,
    /// Further candidates, each with a name
    #[arg(value_name = "NAME=LEDGER")]
    candidates: Vec<OsString>,
    #[command(flatten)]
    list: ListArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

/// A candidate from the command line.
pub(super) struct Named {
    name: String,
    input: Input,
}

pub(crate) fn run(args: Args) -> Result<Answer, Problem> {
    let named = args.candidates.iter().map(Named::parse).collect::<Result<Vec<_>, _>>()?;
    let output = args.output.request_with_pictures(&inputs(&args.baseline, &named))?.listing(&args.list);
    let (name, baseline) = drawable::open(&args.baseline)?;
    say_where_incomplete(&name, &baseline);
    write(&name, baseline, &named, &output)
}

/// Every file that is read.
pub(super) fn inputs<'a>(baseline: &'a Input, named: &'a [Named]) -> Vec<&'a Input> {
    std::iter::once(baseline).chain(named.iter().map(|candidate| &candidate.input)).collect()
}

/// Compares the candidates inside the baseline's file and those that are named with it.
pub(super) fn write(
    baseline_name: &str,
    baseline: LedgerFile,
    named: &[Named],
    output: &Output,
) -> Result<Answer, Problem> {
    let mut opened = Vec::with_capacity(named.len());
    for candidate in named {
        opened.push((candidate.name.as_str(), open_candidate(&candidate.input)?));
    }
    let inside = baseline.candidates.iter().map(|(name, ledger)| (&**name, ledger));
    let outside = opened.iter().map(|(name, file)| (*name, &file.ledger));
    let pairs: Vec<_> = inside.chain(outside).collect();
    check_names(baseline_name, pairs.iter().map(|(name, _)| *name))?;

    let candidates = pairs.into_iter().map(|(name, ledger)| Candidate {
        name,
        ledger,
        comparison: compare(&baseline.ledger, ledger),
    });
    output.write(&CompareReport {
        baseline_name,
        baseline: &baseline.ledger,
        baseline_op: baseline.peak_op(),
        candidates: candidates.collect(),
    })?;
    output.let_go((baseline, opened));
    Ok(Answer::Given)
}

fn open_candidate(input: &Input) -> Result<LedgerFile, Problem> {
    let (name, mut file) = drawable::open(input)?;
    say_where_incomplete(&name, &file);
    file.ledger.let_go_of_sums(); // one candidate at a time is looked at
    if !file.candidates.is_empty() {
        let name = peakledger_core::printable(&name);
        let _closed =
            writeln!(io::stderr(), "note: {name}: the candidates inside this candidate are left out");
    }
    Ok(file)
}

/// What comes of the sound part of a damaged file is no whole, and its saving none.
fn say_where_incomplete(name: &str, file: &LedgerFile) {
    if let Some(why) = &file.incomplete {
        let (name, why) = (peakledger_core::printable(name), peakledger_core::printable(why));
        let _closed = writeln!(io::stderr(), "note: {name} is incomplete: {why}");
    }
}

/// Every candidate has a name of its own, and there is one.
fn check_names<'a>(baseline: &str, names: impl Iterator<Item = &'a str>) -> Result<(), Problem> {
    let mut seen = BTreeSet::new();
    for name in names {
        if !seen.insert(name) {
            let cause = format!("two candidates are named {}", peakledger_input::quoted(name));
            return Err(Problem::anywhere(cause).mend("give each candidate a name of its own"));
        }
    }
    if seen.is_empty() {
        let problem = Problem::in_file(baseline, "no candidates inside, and none given to compare it with");
        return Err(problem.mend("name one: `peakledger compare BASELINE NAME=LEDGER`"));
    }
    Ok(())
}

impl Named {
    pub(super) fn parse(argument: &OsString) -> Result<Named, Problem> {
        let nameless = |cause: &str| {
            let problem = Problem::in_option(argument.to_string_lossy(), cause);
            problem.mend("write `NAME=LEDGER`, such as `checkpoint=checkpoint.json`")
        };
        let (name, path) = split(argument).ok_or_else(|| nameless("a candidate without a name"))?;
        if name.is_empty() {
            return Err(nameless("a candidate with an empty name"));
        }
        if path.as_os_str().is_empty() {
            return Err(nameless("a candidate without a ledger"));
        }
        Ok(Named { name, input: Input::of(path) })
    }
}

/// The text before the first `=` and the path after it, which may be any bytes where the system allows it.
#[cfg(unix)]
fn split(argument: &OsString) -> Option<(String, PathBuf)> {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let bytes = argument.as_bytes();
    let at = bytes.iter().position(|b| *b == b'=')?;
    let (name, path) = (bytes.get(..at)?, bytes.get(at + 1..)?);
    Some((String::from_utf8_lossy(name).into_owned(), PathBuf::from(OsString::from_vec(path.to_vec()))))
}

#[cfg(not(unix))]
fn split(argument: &OsString) -> Option<(String, PathBuf)> {
    let (name, path) = argument.to_str()?.split_once('=')?;
    Some((name.to_owned(), PathBuf::from(path)))
}
