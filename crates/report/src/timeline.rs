//! The report of a memory timeline: the peak by torch's categories, and by ours.

use crate::figures::{count, percent};
use crate::markdown::Column::{Figures, Text};
use crate::table::{Cell, Column, Table, entry, prose};
use crate::{Look, Report, csv_table, markdown, write_json};
use anstyle::Style;
use peakledger_core::Bytes;
use peakledger_measure::timeline::{MemoryTimeline, TimelineForm, TorchCategory, Totals};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io;

/// What a memory timeline of `torch.profiler` tells.
#[derive(Clone, Copy, Debug)]
pub struct TimelineReport<'a> {
    /// What the user calls the file.
    pub name: &'a str,
    /// What it tells.
    pub timeline: &'a MemoryTimeline,
}

#[derive(Serialize)]
struct TimelineJson<'a> {
    kind: &'static str,
    form: &'static str,
    rows: usize,
    lasts_us: f64,
    peak: PeakJson,
    opening: Option<TotalsJson>,
    end: TotalsJson,
    notes: &'a [String],
}

#[derive(Serialize)]
struct PeakJson {
    row: usize,
    after_us: f64,
    #[serde(flatten)]
    totals: TotalsJson,
}

/// The bytes together, by our categories with what torch could not place, and by torch's own.
#[derive(Serialize)]
struct TotalsJson {
    bytes: u64,
    by_category: BTreeMap<&'static str, u64>,
    unknown_bytes: u64,
    by_torch_category: BTreeMap<&'static str, u64>,
}

impl TotalsJson {
    fn of(totals: &Totals) -> TotalsJson {
        let (by_category, unknown) = totals.by_category();
        let some = by_category.into_iter().filter(|(_, bytes)| *bytes > Bytes::ZERO);
        TotalsJson {
            bytes: sum(totals).get(),
            by_category: some.map(|(category, bytes)| (category.as_str(), bytes.get())).collect(),
            unknown_bytes: unknown.get(),
            by_torch_category: totals.iter().map(|(torch, bytes)| (torch.name, bytes.get())).collect(),
        }
    }
}

/// A sum that was checked when the timeline was read.
fn sum(totals: &Totals) -> Bytes {
    totals.sum().unwrap_or_default()
}

#[allow(clippy::cast_precision_loss)] // a time for reading
fn microseconds(nanoseconds: i64) -> f64 {
    nanoseconds as f64 / 1000.0
}

/// What a category is here: `activation (input)`.
fn ours(torch: TorchCategory) -> String {
    match (torch.category, torch.detail) {
        (Some(category), Some(detail)) => format!("{category} ({detail})"),
        (Some(category), None) => category.to_string(),
        (None, _) => "not placed".to_owned(),
    }
}

impl TimelineReport<'_> {
    fn form(&self) -> &'static str {
        match self.timeline.form {
            TimelineForm::Totals => "totals",
            TimelineForm::Events => "events",
        }
    }

    fn heading(&self) -> String {
        format!(
            "peak {} after {:.3} ms",
            sum(&self.timeline.peak.totals),
            microseconds(self.timeline.peak.after) / 1000.0
        )
    }

    fn summary(&self) -> String {
        let (rows, lasts) =
            (count(self.timeline.rows, "row", "rows"), microseconds(self.timeline.lasts) / 1000.0);
        let opening =
            self.timeline.opening.map(|totals| format!("{} before it, ", sum(&totals))).unwrap_or_default();
        format!(
            "a memory timeline of {rows} over {lasts:.3} ms; {opening}{} at its end",
            sum(&self.timeline.end)
        )
    }

    /// torch's categories that hold anything at the peak, largest first.
    fn categories(&self) -> Vec<(TorchCategory, Bytes)> {
        let mut categories: Vec<_> =
            self.timeline.peak.totals.iter().filter(|(_, bytes)| *bytes > Bytes::ZERO).collect();
        categories.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes)); // stable: in torch's order where they are equal
        categories
    }
}

impl Report for TimelineReport<'_> {
    fn table(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        let peak = sum(&self.timeline.peak.totals);
        prose(out, look, look.bold(), &self.heading())?;
        prose(out, look, look.faint(), &format!("{}: {}", look.name(self.name), self.summary()))?;
        writeln!(out)?;
        let mut table = Table::new(vec![
            Column::left("torch's category").cut(),
            Column::right("size"),
            Column::right("share").optional(),
            Column::left("here").optional(),
            Column::bar(peak.get()),
        ]);
        for (torch, bytes) in self.categories() {
            let style = torch.category.map_or(Style::new(), |category| look.category(category));
            table.row(vec![
                Cell::plain(torch.name),
                Cell::plain(bytes.to_string()),
                Cell::plain(percent(bytes, peak)),
                Cell::styled(ours(torch), style),
                Cell::Bar(vec![(bytes.get(), style)]),
            ]);
        }
        table.write(out, look)?;
        self.timeline.notes.iter().try_for_each(|note| entry(out, look, look.faint(), "note: ", note))
    }

    fn json(&self, out: &mut dyn io::Write) -> io::Result<()> {
        let MemoryTimeline { rows, lasts, peak, .. } = *self.timeline;
        write_json(
            out,
            &TimelineJson {
                kind: "memory_timeline",
                form: self.form(),
                rows,
                lasts_us: microseconds(lasts),
                peak: PeakJson {
                    row: peak.row,
                    after_us: microseconds(peak.after),
                    totals: TotalsJson::of(&peak.totals),
                },
                opening: self.timeline.opening.as_ref().map(TotalsJson::of),
                end: TotalsJson::of(&self.timeline.end),
                notes: &self.timeline.notes,
            },
        )
    }

    fn csv(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        let at_end: Vec<Bytes> = self.timeline.end.iter().map(|(_, bytes)| bytes).collect();
        let rows = self.timeline.peak.totals.iter().zip(at_end).map(|((torch, peak), end)| {
            let category = torch.category.map(|category| category.to_string()).unwrap_or_default();
            let detail = torch.detail.map(|detail| detail.to_string()).unwrap_or_default();
            vec![torch.name.to_owned(), category, detail, peak.get().to_string(), end.get().to_string()]
        });
        csv_table::write(
            out,
            look,
            &["torch_category", "category", "detail", "peak_bytes", "end_bytes"],
            rows,
        )
    }

    fn markdown(&self, out: &mut dyn io::Write, _: &Look) -> io::Result<()> {
        let peak = sum(&self.timeline.peak.totals);
        writeln!(out, "**{}**\n\n{}: {}\n", self.heading(), markdown::escaped(self.name), self.summary())?;
        let row = |(torch, bytes): (TorchCategory, Bytes)| {
            vec![torch.name.to_owned(), ours(torch), bytes.to_string(), percent(bytes, peak)]
        };
        let rows: Vec<Vec<String>> = self.categories().into_iter().map(row).collect();
        markdown::table(
            out,
            &[Text("torch's category"), Text("here"), Figures("size"), Figures("share")],
            &rows,
        )?;
        self.timeline.notes.iter().try_for_each(|note| writeln!(out, "\n{}", markdown::escaped(note)))
    }
}
