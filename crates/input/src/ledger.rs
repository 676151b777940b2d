//! Ledger files, both forms: the seed's list of states and the document.

use crate::near::near;
use crate::problem::{Place, Problem};
use crate::source::{Input, LEDGER_LIMIT, Source};
use crate::{json, locate, stream};
use peakledger_core::document::{Document, LedgerFile, RecordError, RecordErrorKind, SCHEMA, StateRecord};
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Reads a ledger from a file or from standard input: also what it is called.
///
/// # Errors
/// What [`Source::read`] or [`read_ledger`] finds wrong with it.
pub fn open_ledger(input: &Input) -> Result<(String, LedgerFile), Problem> {
    if let Some(file) = input.path().and_then(stream::read_states) {
        return Ok((input.name().into_owned(), file));
    }
    let source = Source::read(input, LEDGER_LIMIT)?;
    let file = read_ledger(&source)?;
    Ok((source.name().to_owned(), file))
}

/// Reads a ledger file.
///
/// # Errors
/// The first thing in it that is not JSON, not a ledger's, or breaks a rule, with its place.
pub fn read_ledger(source: &Source) -> Result<LedgerFile, Problem> {
    let read = match source.text().trim_ascii_start().bytes().next() {
        None => return Err(source.problem("nothing in it but white space").mend("an empty ledger is `[]`")),
        Some(b'[') => LedgerFile::from_states(&json::parse::<Vec<StateRecord<'_>>>(source)?),
        Some(b'{') => LedgerFile::from_document(&document(source)?),
        Some(_) => {
            json::parse::<IgnoredAny>(source)?; // what is no JSON at all is told first
            let problem = source.problem_at("", "not a ledger");
            return Err(
                problem.mend("a ledger is a list of states, or an object with `schema_version` and `states`")
            );
        }
    };
    read.map_err(|error| explain(source, &error))
}

/// A newer file may have fields that are unknown here, so its number is looked at before anything else is blamed.
fn document(source: &Source) -> Result<Document<'_>, Problem> {
    json::parse::<Document<'_>>(source).map_err(|problem| match json::parse::<Version>(source) {
        Err(_) => problem,
        Ok(Version { schema_version: None, .. }) => match other_file(source) {
            Some((cause, mend)) => source.problem_at("", cause).mend(mend),
            None => {
                let mend = format!("add `\"schema_version\": {SCHEMA}`, or give a plain list of states");
                source.problem_at("", "`schema_version` is missing").mend(mend)
            }
        },
        Ok(Version { schema_version: Some(found), .. }) => match found.as_u64().map(u32::try_from) {
            Some(Ok(found)) if found > SCHEMA => {
                let kind = RecordErrorKind::SchemaVersion { found };
                explain(source, &RecordError { pointer: "/schema_version".to_owned(), other: None, kind })
            }
            _ => problem,
        },
    })
}

/// What is looked at of a document that could not be read.
#[derive(Deserialize)]
struct Version {
    schema_version: Option<serde_json::Value>,
}

/// What else of this project's files an object without `schema_version` is, and what was meant by it.
fn other_file(source: &Source) -> Option<(&'static str, &'static str)> {
    let fields = json::parse::<BTreeMap<Cow<'_, str>, IgnoredAny>>(source).ok()?;
    let has = |names: &[&str]| names.iter().all(|name| fields.contains_key(*name));
    if has(&["peak", "steady_step"]) || has(&["peak", "first_step"]) {
        let mend = "`peakledger plan … --save FILE` writes the ledger of the same step";
        return Some(("a report of `plan`, not a ledger", mend));
    }
    if has(&["model_type"]) {
        let mend = "`peakledger plan FILE --save LEDGER` makes a ledger of it";
        return Some(("the config of a model, not a ledger", mend));
    }
    let mend = "pass a ledger: `peakledger plan … --save FILE` writes one";
    let reports: [(&[&str], _); 3] = [
        (&["peak", "phases"], "a report of `show`, not a ledger"),
        (&["baseline", "candidates"], "a report of `compare`, not a ledger"),
        (&["capacity_bytes", "rows"], "a report of `fit`, not a ledger"),
    ];
    reports.into_iter().find(|(names, _)| has(names)).map(|(_, cause)| (cause, mend))
}

fn explain(source: &Source, error: &RecordError) -> Problem {
    let mut cause = error.kind.to_string();
    if let Some(Place::Text { line, column, .. }) = error.other.as_deref().map(|other| source.place_of(other))
    {
        cause.push_str(&format!("; the other in line {line}, column {column}"));
    }
    let place = match &error.kind {
        // the key says more than the empty word that it is
        RecordErrorKind::EmptyCandidateName => locate::keys(source.text(), "/candidates", "")
            .first()
            .map_or_else(|| source.place_of(&error.pointer), |at| source.place_at(*at, &error.pointer)),
        _ => source.place_of(&error.pointer),
    };
    source.problem(cause).at(place).mend(mend(&error.kind))
}

fn mend(kind: &RecordErrorKind) -> String {
    if let RecordErrorKind::UnknownPhase { word, known } = kind {
        if let Some(meant) = near(word, known.iter().map(String::as_str)) {
            return format!("did you mean `{meant}`?");
        }
        if known.len() <= 12 {
            return format!(
                "the phases are {}",
                known.iter().map(|k| format!("`{k}`")).collect::<Vec<_>>().join(", ")
            );
        }
    }
    kind.mend().to_owned()
}
