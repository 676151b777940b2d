//! The report of `check`: one line on a ledger that is sound.

use crate::figures::count;
use crate::table::prose;
use crate::{Look, Report, csv_table, markdown, write_json};
use anstyle::Style;
use peakledger_core::document::{Form, LedgerFile};
use serde::Serialize;
use std::io;

/// A ledger file that is valid, in one line.
#[derive(Clone, Copy, Debug)]
pub struct CheckReport<'a> {
    /// What the user calls the file.
    pub name: &'a str,
    /// What it holds.
    pub file: &'a LedgerFile,
}

#[derive(Serialize)]
struct CheckJson<'a> {
    valid: bool,
    form: &'static str,
    states: usize,
    phases: usize,
    moments: usize,
    candidates: usize,
    peak_phase: &'a str,
    micro_batch: Option<u32>,
    peak_bytes: u64,
    peak_mb: f64,
}

impl CheckReport<'_> {
    fn summary(&self) -> CheckJson<'_> {
        let ledger = &self.file.ledger;
        let peak = ledger.peak();
        CheckJson {
            valid: true,
            form: match self.file.form {
                Form::Array => "array",
                Form::Document => "document",
            },
            states: ledger.states().len(),
            phases: ledger.timeline().slots().len(),
            moments: ledger.timeline().moments(),
            candidates: self.file.candidates.len(),
            peak_phase: peak.slot.phase.as_str(),
            micro_batch: peak.slot.micro_batch,
            peak_bytes: peak.bytes.get(),
            peak_mb: peak.bytes.mib(),
        }
    }

    fn sentence(&self, name: &str, peak_phase: &str) -> String {
        let (file, summary) = (self.file, self.summary());
        let form = match file.form {
            Form::Array => "a list of states",
            Form::Document => "a document",
        };
        let candidates = match file.candidates.len() {
            0 => String::new(),
            n => format!(", {}", count(n, "candidate", "candidates")),
        };
        format!(
            "{name}: valid ({form}), {}, {}{candidates}, peak {} in {peak_phase}",
            count(summary.states, "state", "states"),
            count(summary.phases, "phase", "phases"),
            file.ledger.peak().bytes,
        )
    }
}

impl Report for CheckReport<'_> {
    fn table(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        let slot = self.file.ledger.peak().slot.id();
        let sentence = self.sentence(&look.name(self.name), &look.name(&slot));
        match look.known_width {
            true => prose(out, look, Style::new(), &sentence),
            false => writeln!(out, "{sentence}"), // one line for programs
        }
    }

    fn json(&self, out: &mut dyn io::Write) -> io::Result<()> {
        write_json(out, &self.summary())
    }

    fn csv(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        let summary = self.summary();
        let row = vec![
            self.name.to_owned(),
            summary.form.to_owned(),
            summary.states.to_string(),
            summary.phases.to_string(),
            summary.candidates.to_string(),
            summary.peak_phase.to_owned(),
            summary.micro_batch.map(|i| i.to_string()).unwrap_or_default(),
            summary.peak_bytes.to_string(),
        ];
        let titles =
            ["file", "form", "states", "phases", "candidates", "peak_phase", "micro_batch", "peak_bytes"];
        csv_table::write(out, look, &titles, [row])
    }

    fn markdown(&self, out: &mut dyn io::Write, _: &Look) -> io::Result<()> {
        let slot = self.file.ledger.peak().slot.id();
        writeln!(out, "{}", self.sentence(&markdown::escaped(self.name), &markdown::escaped(&slot)))
    }
}
