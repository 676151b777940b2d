//! The report of `compare`: each candidate's peak next to the baseline's, what it saves, and what moved.

use crate::figures::{and_more, less_or_more, mib_of_difference, percent, signed};
use crate::html::Page;
use crate::markdown::Column::{Figures, Text};
use crate::show::PeakJson;
use crate::table::{Cell, Column, Table, entry, prose};
use crate::{Look, Report, csv_table, markdown, write_json};
use anstyle::Style;
use peakledger_core::{Bytes, Comparison, Ledger, Moved, Peak};
use serde::ser::{Serialize, SerializeMap, Serializer};
use std::io;

/// A baseline and the candidates that were compared with it.
#[derive(Clone, Debug)]
pub struct CompareReport<'a> {
    /// What the user calls the baseline's file.
    pub baseline_name: &'a str,
    /// The baseline.
    pub baseline: &'a Ledger,
    /// What runs at its peak, where the file says so.
    pub baseline_op: Option<&'a str>,
    /// The candidates in the order in which they were given.
    pub candidates: Vec<Candidate<'a>>,
}

/// A candidate by its name.
#[derive(Clone, Debug)]
pub struct Candidate<'a> {
    /// Its name.
    pub name: &'a str,
    /// What it holds.
    pub ledger: &'a Ledger,
    /// What it does to the baseline's peak.
    pub comparison: Comparison<'a>,
}

impl Report for CompareReport<'_> {
    fn table(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        self.peaks(look).write(out, look)?;
        for Candidate { name, comparison, .. } in &self.candidates {
            writeln!(out)?;
            let heading = format!("{}: {}", look.name(name), verdict(self.baseline.peak(), comparison));
            prose(out, look, look.bold(), &heading)?;
            moved_table(comparison, look).write(out, look)?;
            if let Some(more) = more(&comparison.moved, look) {
                entry(out, look, Style::new(), "  ", &more)?;
            }
            if !comparison.unaligned.is_empty() {
                prose(out, look, Style::new(), &unaligned(&comparison.unaligned, look))?;
            }
        }
        Ok(())
    }

    fn json(&self, out: &mut dyn io::Write) -> io::Result<()> {
        write_json(out, &CompareJson(self))
    }

    fn csv(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        let row = |kind: &str, name: &str, peak: Peak<'_>, saving: i128| {
            vec![
                kind.to_owned(),
                name.to_owned(),
                peak.slot.phase.to_string(),
                peak.slot.micro_batch.map(|i| i.to_string()).unwrap_or_default(),
                peak.bytes.get().to_string(),
                format!("{:?}", peak.bytes.mib()),
                saving.to_string(),
                format!("{:?}", mib_of_difference(saving)),
            ]
        };
        let titles = [
            "kind",
            "name",
            "peak_phase",
            "micro_batch",
            "peak_bytes",
            "peak_mb",
            "memory_saving_bytes",
            "memory_saving_mb",
        ];
        let baseline = row("baseline", "", self.baseline.peak(), 0);
        let candidates = self.candidates.iter();
        let candidates = candidates.map(|c| row("candidate", c.name, c.comparison.peak, c.comparison.saving));
        csv_table::write(out, look, &titles, std::iter::once(baseline).chain(candidates))
    }

    fn markdown(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        let row = |name: String, peak: Peak<'_>, saving: String| {
            vec![name, peak.bytes.to_string(), markdown::escaped(&peak.slot.id()), saving]
        };
        let mut rows = vec![row("baseline".to_owned(), self.baseline.peak(), String::new())];
        rows.extend(
            self.candidates
                .iter()
                .map(|c| row(markdown::escaped(c.name), c.comparison.peak, signed(c.comparison.saving))),
        );
        markdown::table(out, &[Text("ledger"), Figures("peak"), Text("in"), Figures("saves")], &rows)?;
        for Candidate { name, comparison, .. } in
            self.candidates.iter().filter(|c| !c.comparison.moved.is_empty())
        {
            writeln!(out, "\nWhat moves with {}:\n", markdown::escaped(name))?;
            let shown = look.shown(comparison.moved.len());
            let row = |m: &Moved<'_>| {
                let change = m.change.as_str().to_owned();
                vec![markdown::escaped(m.name), m.before.to_string(), m.after.to_string(), change]
            };
            let rows: Vec<Vec<String>> = comparison.moved.iter().take(shown).map(row).collect();
            let columns = [Text("state"), Figures("before"), Figures("after"), Text("change")];
            markdown::table(out, &columns, &rows)?;
            if let Some(more) = more(&comparison.moved, look) {
                writeln!(out, "\n{more}")?;
            }
        }
        Ok(())
    }

    fn page(&self) -> io::Result<Option<Page>> {
        Ok(Some(self.html_page()))
    }
}

impl CompareReport<'_> {
    fn peaks(&self, look: &Look) -> Table {
        let baseline = self.baseline.peak();
        let peaks = self.candidates.iter().map(|c| c.comparison.peak.bytes);
        let full = peaks.chain([baseline.bytes]).max().unwrap_or(Bytes::ZERO);
        let mut table = Table::new(vec![
            Column::left("").cut(),
            Column::right("peak"),
            Column::bar(full.get()),
            Column::right("saves").optional(),
            Column::left("in").optional(),
        ]);
        table.row(vec![
            Cell::styled("baseline", look.bold()),
            Cell::styled(baseline.bytes.to_string(), look.bold()),
            Cell::Bar(vec![(baseline.bytes.get(), look.faint())]),
            Cell::plain(""),
            Cell::plain(look.name(&baseline.slot.id())),
        ]);
        for Candidate { name, comparison, .. } in &self.candidates {
            let peak = comparison.peak;
            table.row(vec![
                Cell::plain(look.name(name)),
                Cell::plain(peak.bytes.to_string()),
                Cell::Bar(vec![(peak.bytes.get(), look.saving(comparison.saving))]),
                Cell::styled(signed(comparison.saving), look.saving(comparison.saving)),
                Cell::plain(look.name(&peak.slot.id())),
            ]);
        }
        table
    }
}

/// `saves 300.00 MiB (13.6 %)` in one line.
fn verdict(baseline: Peak<'_>, comparison: &Comparison<'_>) -> String {
    let size = Bytes::new(u64::try_from(comparison.saving.unsigned_abs()).unwrap_or(u64::MAX));
    let share = percent(size, baseline.bytes);
    match comparison.saving {
        0 => "the same peak".to_owned(),
        saving if saving < 0 && baseline.bytes == Bytes::ZERO => format!("needs {size} more"),
        saving if saving < 0 => format!("needs {size} more ({share})"),
        _ => format!("saves {size} ({share})"),
    }
}

fn moved_table(comparison: &Comparison<'_>, look: &Look) -> Table {
    let mut table = Table::new(vec![
        Column::left("").cut(),
        Column::right(""),
        Column::left("").optional(),
        Column::left("").optional(),
    ]);
    for moved in comparison.moved.iter().take(look.shown(comparison.moved.len())) {
        table.row(vec![
            Cell::plain(format!("  {}", look.name(moved.name))),
            Cell::plain(moved.before.to_string()),
            Cell::plain(format!("{} {}", look.arrow(), moved.after)),
            Cell::styled(moved.change.as_str(), look.faint()),
        ]);
    }
    table
}

/// What is said of the moved states that are not listed.
fn more(moved: &[Moved<'_>], look: &Look) -> Option<String> {
    let rest = moved.get(look.shown(moved.len())..)?;
    let saving = rest.iter().map(|m| m.before.minus(m.after)).sum();
    and_more(rest.len(), format_args!("{} in all", less_or_more(saving)))
}

/// What is said of the phases that only one of the timelines has.
fn unaligned(phases: &[String], look: &Look) -> String {
    let shown = look.shown(phases.len());
    let names: Vec<_> = phases.iter().take(shown).map(|phase| look.name(phase)).collect();
    let more = match phases.len() - shown {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("only in one of the two timelines: {}{more}", names.join(", "))
}

struct CompareJson<'a>(&'a CompareReport<'a>);

impl Serialize for CompareJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("baseline", &PeakJson::of(self.0.baseline, self.0.baseline_op))?;
        map.serialize_entry("candidates", &CandidatesJson(&self.0.candidates))?;
        map.end()
    }
}

struct CandidatesJson<'a>(&'a [Candidate<'a>]);

impl Serialize for CandidatesJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|c| (c.name, ComparisonJson(&c.comparison))))
    }
}

struct ComparisonJson<'a>(&'a Comparison<'a>);

impl Serialize for ComparisonJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Comparison { peak, saving, moved, unaligned } = self.0;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("peak_phase", peak.slot.phase.as_str())?;
        map.serialize_entry("micro_batch", &peak.slot.micro_batch)?;
        map.serialize_entry("peak_bytes", &peak.bytes.get())?;
        map.serialize_entry("peak_mb", &peak.bytes.mib())?;
        map.serialize_entry("memory_saving_bytes", saving)?;
        map.serialize_entry("memory_saving_mb", &mib_of_difference(*saving))?;
        map.serialize_entry("moved", &moved.iter().map(MovedJson).collect::<Vec<_>>())?;
        map.serialize_entry("unaligned", unaligned)?;
        map.end()
    }
}

struct MovedJson<'a>(&'a Moved<'a>);

impl Serialize for MovedJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("name", self.0.name)?;
        map.serialize_entry("before_bytes", &self.0.before.get())?;
        map.serialize_entry("after_bytes", &self.0.after.get())?;
        map.serialize_entry("change", self.0.change.as_str())?;
        map.end()
    }
}
