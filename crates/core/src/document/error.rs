//! What can be wrong with the records of a ledger file, and where in the file it is.

use super::SCHEMA;
use crate::LedgerErrorKind;
use std::fmt;

/// Records that make no ledger: what is wrong and where.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordError {
    /// The JSON pointer of the culprit, such as `/states/3/residencies/1/end_phase`.
    pub pointer: String,
    /// The JSON pointer of what it clashes with, where it clashes with something before it.
    pub other: Option<String>,
    /// What is wrong.
    pub kind: RecordErrorKind,
}

/// The rules of ledger files.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[allow(missing_docs)] // the fields are the words of the messages
pub enum RecordErrorKind {
    /// The schema number is newer than this version, or none.
    SchemaVersion { found: u32 },
    /// A size that is no number of bytes.
    Size { mib: f64, reason: &'static str },
    /// Neither `size_mb` nor `size_bytes`.
    NoSize,
    /// Both of them.
    TwoSizes,
    /// A field of the seed's form is missing.
    MissingField { field: &'static str },
    /// Neither the seed's form nor `residencies`.
    NoResidency,
    /// Both of them.
    TwoForms,
    /// A phase that the timeline does not have; `known` are those that it has.
    UnknownPhase { word: String, known: Vec<String> },
    /// A phase without a name.
    EmptyPhase,
    /// A moment that the phase does not have.
    MomentOutside { moment: u32, phase: String, moments: u32 },
    /// A residency ends before it starts.
    EndBeforeStart { start: String, end: String },
    /// The timeline has more moments than are read.
    TooManyMoments { most: u32 },
    /// The candidates have more moments together than are added up.
    TooManyCandidates { candidates: usize, moments: usize, most: u32 },
    /// A candidate without a name.
    EmptyCandidateName,
    /// A rule that every ledger keeps.
    Ledger(LedgerErrorKind),
}

impl RecordErrorKind {
    pub(super) fn at(self, pointer: impl Into<String>) -> RecordError {
        RecordError { pointer: pointer.into(), other: None, kind: self }
    }

    /// What to do about it.
    pub fn mend(&self) -> &'static str {
        match self {
            Self::SchemaVersion { .. } => "update peakledger, or write the file again with this version",
            Self::Size { .. } => "sizes are 0 or more, in MiB (2^20 bytes)",
            Self::NoSize => "add `size_mb` (in MiB, 2^20 bytes) or `size_bytes`",
            Self::TwoSizes => "keep one of the two",
            Self::MissingField { .. } => {
                "a state has `device`, `start_phase` and `end_phase`, or a list of `residencies`"
            }
            Self::NoResidency => "add `device`, `start_phase` and `end_phase`, or a list of `residencies`",
            Self::TwoForms => "keep either `device`, `start_phase` and `end_phase`, or `residencies`",
            Self::UnknownPhase { .. } => "name a phase of the timeline; `forward.1` is one of micro-batch 1",
            Self::EmptyPhase => "give the phase a name",
            Self::MomentOutside { .. } => {
                "moments are counted from 0 in their phase; left out, the whole phase counts"
            }
            Self::EndBeforeStart { .. } => {
                "swap start and end; both ends count, so they may be the same phase"
            }
            Self::TooManyMoments { .. } => "give the phases fewer moments",
            Self::TooManyCandidates { .. } => {
                "give the phases fewer moments, or the candidates files of their own (`compare BASELINE NAME=LEDGER`)"
            }
            Self::EmptyCandidateName => "give the candidate a name",
            Self::Ledger(kind) => kind.mend(),
        }
    }
}

impl fmt::Display for RecordErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SchemaVersion { found: 0 } => write!(f, "there is no `schema_version` 0"),
            Self::SchemaVersion { found } => write!(f, "written by a newer version ({found} > {SCHEMA})"),
            Self::Size { mib, reason } => write!(f, "`size_mb` {reason} ({mib:?})"),
            Self::NoSize => write!(f, "the state has no size"),
            Self::TwoSizes => write!(f, "the state has both `size_mb` and `size_bytes`"),
            Self::MissingField { field } => write!(f, "`{field}` is missing"),
            Self::NoResidency => write!(f, "nothing says when and where the state is there"),
            Self::TwoForms => {
                write!(f, "the state has `residencies`, and a `device`, `start_phase` or `end_phase` too")
            }
            Self::UnknownPhase { word, .. } => write!(f, "unknown phase `{word}`"),
            Self::EmptyPhase => write!(f, "a phase has an empty name"),
            Self::MomentOutside { moment, phase, moments: 1 } => {
                write!(f, "moment {moment} is outside phase `{phase}`, which has one moment (0)")
            }
            Self::MomentOutside { moment, phase, moments } => {
                let last = moments.saturating_sub(1);
                write!(
                    f,
                    "moment {moment} is outside phase `{phase}`, which has {moments} moments (0 to {last})"
                )
            }
            Self::EndBeforeStart { start, end } if start == end => {
                write!(f, "the residency ends in phase `{end}` before it starts there")
            }
            Self::EndBeforeStart { start, end } => {
                write!(f, "the residency ends in phase `{end}`, before it starts in `{start}`")
            }
            Self::TooManyMoments { most } => write!(f, "the timeline has more than {most} moments"),
            Self::TooManyCandidates { candidates, moments, most } => {
                let words = if *candidates == 1 { "candidate" } else { "candidates" };
                write!(
                    f,
                    "the states and {candidates} {words} on {moments} moments each are more than {most} moments in all"
                )
            }
            Self::EmptyCandidateName => write!(f, "a candidate has an empty name"),
            Self::Ledger(kind) => kind.fmt(f),
        }
    }
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pointer.as_str() {
            "" => self.kind.fmt(f),
            pointer => write!(f, "{pointer}: {}", self.kind),
        }
    }
}

impl std::error::Error for RecordError {}
