//! What peakledger answers, as people and programs read it: tables, JSON, CSV, markdown and pages.
//!
//! One file for each verb's report, and a small kit that they share. A report borrows what it shows and implements
//! [`Report`]; [`write()`] picks the format. What holds: machine formats carry exact bytes, the same input gives the same
//! text on every machine, and no name from a file reaches a terminal unescaped.

#![forbid(unsafe_code)]

mod check;
mod command_line;
mod compare;
mod csv_table;
mod diff;
mod explain;
mod figures;
mod fit;
pub mod html;
mod json;
mod list;
mod look;
mod markdown;
mod oom;
mod origins;
mod plan;
mod plot;
mod post_training;
mod read;
mod reconcile;
mod replay;
mod search;
mod show;
pub mod side_by_side;
mod table;
mod timeline;
mod times;
mod trace;
mod trade;
mod verdict;

pub use check::CheckReport;
pub use compare::{Candidate, CompareReport};
pub use diff::DiffReport;
pub use explain::ExplainReport;
pub use fit::{AS_GIVEN, FitReport, FitRow};
pub use list::{Entry, ListReport};
pub use look::Look;
pub use oom::OomReport;
pub use origins::{NotPlanned, NotRead, OriginFile, OriginKey, OriginOption, Origins};
pub use plan::{PlanReport, RankFigures, RanksReport};
pub use post_training::PostTrainingReport;
pub use read::{At, ReadReport};
pub use reconcile::{MeasuredFacts, ReconcileReport, Side, Tolerance};
pub use replay::{Asked, Fits, PlannedOom, ReplayReport, Replays, Reservation};
pub use search::{Beyond, Dimension, Fixed, Refused, SearchReport, SearchRow, Setting, closest, is_near};
pub use show::ShowReport;
pub use timeline::TimelineReport;
pub use trace::TraceReport;
pub use trade::OffloadRule;

use json::write_json;
use std::io;

/// How an answer is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// For a terminal.
    Table,
    /// For programs.
    Json,
    /// For spreadsheets.
    Csv,
    /// For issues and notebooks.
    Markdown,
    /// For a browser: pictures, in one file. Only of answers that have any.
    Html,
}

/// An answer that can be written in every format.
pub trait Report {
    /// Writes it for a terminal.
    ///
    /// # Errors
    /// What goes wrong with `out`.
    fn table(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()>;

    /// Writes it as one JSON value.
    ///
    /// # Errors
    /// What goes wrong with `out`.
    fn json(&self, out: &mut dyn io::Write) -> io::Result<()>;

    /// Writes its main table as CSV.
    ///
    /// # Errors
    /// What goes wrong with `out`.
    fn csv(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()>;

    /// Writes it as markdown.
    ///
    /// # Errors
    /// What goes wrong with `out`.
    fn markdown(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()>;

    /// What is on its page, if it has pictures.
    ///
    /// # Errors
    /// Where what it shows makes no picture.
    fn page(&self) -> io::Result<Option<html::Page>> {
        Ok(None)
    }
}

/// Writes a report in a format.
///
/// # Errors
/// What goes wrong with `out`.
pub fn write(report: &dyn Report, format: Format, look: &Look, out: &mut dyn io::Write) -> io::Result<()> {
    match format {
        Format::Table => report.table(out, look),
        Format::Json => report.json(out),
        Format::Csv => report.csv(out, look),
        Format::Markdown => report.markdown(out, look),
        Format::Html => match report.page()? {
            Some(page) => html::write_page(&page, out),
            None => Err(io::Error::new(io::ErrorKind::Unsupported, "there are no pictures of this")),
        },
    }
}
