//! The report of `show`: the phases with their totals, the peak, and who forms it.

use crate::figures::{INCOMPLETE, and_more, count, percent, share};
use crate::html::Page;
use crate::markdown::Column::{Figures, Text};
use crate::table::{Cell, Column, Table, entry, prose};
use crate::{Look, Report, csv_table, markdown, plot, write_json};
use anstyle::Style;
use peakledger_core::document::LedgerFile;
use peakledger_core::{ByCategory, Bytes, Category, Contributor, Ledger, Moment, PhaseTotal, Slot};
use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};
use std::io;

/// Phases, peak and contributors of a ledger file.
#[derive(Clone, Copy, Debug)]
pub struct ShowReport<'a> {
    /// What the user calls the file.
    pub name: &'a str,
    /// What it holds.
    pub file: &'a LedgerFile,
}

impl<'a> ShowReport<'a> {
    fn ledger(&self) -> &'a Ledger {
        &self.file.ledger
    }

    fn phases(&self) -> impl Iterator<Item = Phase<'a>> {
        let peak = self.ledger().peak().slot;
        let ops = self.file.peak_ops.iter().map(Option::as_deref).chain(std::iter::repeat(None));
        let phases = self.ledger().phases().zip(ops);
        phases.map(move |((slot, sums), op)| Phase { slot, sums, op, is_peak: std::ptr::eq(slot, peak) })
    }

    /// What is there at the peak: the phase that holds it always exists.
    fn peak(&self) -> Option<Phase<'a>> {
        self.phases().find(|phase| phase.is_peak)
    }

    /// The contributors that are listed, and what is said of the others.
    fn contributors(&self, look: &Look) -> (Vec<Contributor<'a>>, Option<String>) {
        let peak = self.ledger().peak();
        // one more than the list may take, for a list is not cut for a single entry
        let most = look.top.map_or(usize::MAX, |top| top.saturating_add(1));
        let (mut listed, all) = self.ledger().largest_contributors(peak.moment, most);
        listed.truncate(look.shown(all));
        let shown: u64 = listed.iter().map(|c| c.bytes.get()).sum(); // part of a total that fits
        let more = and_more(all - listed.len(), Bytes::new(peak.bytes.get() - shown));
        (listed, more)
    }

    fn cpu_peak(&self) -> Bytes {
        self.ledger().cpu_peak()
    }
}

/// A row of the phase table.
#[derive(Clone, Copy)]
struct Phase<'a> {
    slot: &'a Slot,
    sums: &'a PhaseTotal,
    op: Option<&'a str>,
    is_peak: bool,
}

impl Phase<'_> {
    /// The moment inside the phase, counted from 0.
    fn moment(&self) -> u32 {
        self.slot.moment_in(self.sums.moment)
    }
}

impl Report for ShowReport<'_> {
    fn table(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        self.heading(out, look)?;
        writeln!(out)?;
        let (phases, more) = self.phase_table(look);
        phases.write(out, look)?;
        if let Some(more) = more {
            prose(out, look, look.faint(), &more)?;
        }
        if look.plot {
            writeln!(out)?;
            plot::ledger(self.ledger(), out, look)?;
        }
        let Some(peak) = self.peak().filter(|peak| peak.sums.total > Bytes::ZERO) else { return Ok(()) };
        writeln!(out)?;
        prose(out, look, look.bold(), "at the peak, by category")?;
        category_table(&peak, look).write(out, look)?;
        writeln!(out)?;
        prose(out, look, look.bold(), "contributors")?;
        self.contributor_table(out, look)
    }

    fn json(&self, out: &mut dyn io::Write) -> io::Result<()> {
        write_json(out, &ShowJson(self))
    }

    fn csv(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        let mut titles = vec!["phase", "micro_batch", "total_bytes", "total_mb", "end_bytes", "host_bytes"];
        titles.extend(Category::ALL.map(Category::as_str));
        titles.extend(["is_peak", "peak_op"]);
        let row = |phase: Phase<'_>| {
            let mut row = vec![
                phase.slot.phase.to_string(),
                phase.slot.micro_batch.map(|i| i.to_string()).unwrap_or_default(),
                phase.sums.total.get().to_string(),
                format!("{:?}", phase.sums.total.mib()),
                phase.sums.end.get().to_string(),
                phase.sums.cpu.get().to_string(),
            ];
            row.extend(Category::ALL.map(|c| phase.sums.by_category.get(c).get().to_string()));
            row.extend([phase.is_peak.to_string(), phase.op.unwrap_or_default().to_owned()]);
            row
        };
        csv_table::write(out, look, &titles, self.phases().map(row))
    }

    fn markdown(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        let peak = self.ledger().peak();
        writeln!(out, "**Peak {} in {}**\n", peak.bytes, markdown::escaped(&peak.slot.id()))?;
        if let Some(why) = &self.file.incomplete {
            writeln!(out, "{INCOMPLETE}{}\n", markdown::escaped(why))?;
        }
        if let Some(note) = &self.file.note {
            writeln!(out, "{}\n", markdown::escaped(note))?;
        }
        let categories = self.ledger().categories();
        let cpu = self.cpu_peak() > Bytes::ZERO;
        let mut columns = vec![Text("phase"), Figures("total")];
        columns.extend(categories.iter().map(|c| Figures(c.as_str())));
        columns.extend(cpu.then_some(Figures("on the cpu")));
        let row = |phase: Phase<'_>| {
            let mark = if phase.is_peak { "**" } else { "" };
            let id = markdown::escaped(&phase.slot.id());
            let mut row = vec![format!("{mark}{id}{mark}"), format!("{mark}{}{mark}", phase.sums.total)];
            row.extend(categories.iter().map(|c| phase.sums.by_category.get(*c).to_string()));
            row.extend(cpu.then(|| phase.sums.cpu.to_string()));
            row
        };
        markdown::table(out, &columns, &self.phases().map(row).collect::<Vec<_>>())?;
        writeln!(out, "\nContributors to the peak:\n")?;
        let (contributors, rest) = self.contributors(look);
        let row = |c: &Contributor<'_>| {
            let share = percent(c.bytes, peak.bytes);
            vec![markdown::escaped(&c.state.name), c.state.category.to_string(), c.bytes.to_string(), share]
        };
        let rows: Vec<Vec<String>> = contributors.iter().map(row).collect();
        let columns = [Text("state"), Text("category"), Figures("size"), Figures("share")];
        markdown::table(out, &columns, &rows)?;
        match rest {
            Some(rest) => writeln!(out, "\n{rest}"),
            None => Ok(()),
        }
    }

    fn page(&self) -> io::Result<Option<Page>> {
        Ok(Some(self.html_page()))
    }
}

impl ShowReport<'_> {
    fn heading(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        let peak = self.ledger().peak();
        let phase = look.name(&peak.slot.id()).into_owned();
        prose(out, look, look.bold(), &format!("peak {} in {phase}", peak.bytes))?;
        if let Some(op) = self.file.peak_op() {
            prose(out, look, Style::new(), &format!("at {}", look.name(op)))?;
        }
        if let Some(why) = &self.file.incomplete {
            entry(out, look, look.verdict(false), INCOMPLETE, &look.name(why))?;
        }
        if self.cpu_peak() > Bytes::ZERO {
            let line = format!("beside it, up to {} on the cpu", self.cpu_peak());
            prose(out, look, Style::new(), &line)?;
        }
        let states = count(self.ledger().states().len(), "state", "states");
        prose(out, look, look.faint(), &format!("{}: {states}", look.name(self.name)))?;
        match &self.file.note {
            Some(note) => entry(out, look, look.faint(), "note: ", &look.name(note)),
            None => Ok(()),
        }
    }

    /// The phases, and what is said of those that are left out.
    pub(crate) fn phase_table(&self, look: &Look) -> (Table, Option<String>) {
        let full = self.ledger().peak().bytes.get();
        let cpu = self.cpu_peak() > Bytes::ZERO;
        let mut columns = vec![Column::left(""), Column::left("phase").cut(), Column::right("total")];
        columns.push(Column::bar(full));
        columns.extend(cpu.then(|| Column::right("cpu").optional()));
        let mut table = Table::new(columns);
        let phases: Vec<Phase<'_>> = self.phases().collect();
        let peak = phases.iter().position(|phase| phase.is_peak).unwrap_or(0);
        let (shown, more) = look.rows(phases.len(), peak, "phases");
        for at in shown {
            let Some(phase) = at.and_then(|at| phases.get(at)) else {
                table.row(vec![Cell::plain(""), Cell::plain(look.ellipsis())]);
                continue;
            };
            let style = if phase.is_peak { look.bold() } else { Style::new() };
            let marker = if phase.is_peak { look.marker() } else { "" };
            let mut row = vec![
                Cell::styled(marker, style),
                Cell::styled(look.name(&phase.slot.id()), style),
                Cell::styled(phase.sums.total.to_string(), style),
                Cell::categories(&phase.sums.by_category, look),
            ];
            row.extend(cpu.then(|| Cell::styled(phase.sums.cpu.to_string(), look.faint())));
            table.row(row);
        }
        (table, more)
    }

    fn contributor_table(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        let peak = self.ledger().peak();
        let (contributors, rest) = self.contributors(look);
        let mut table = Table::new(vec![
            Column::left("state").cut(),
            Column::right("size"),
            Column::right("share").optional(),
            Column::left("category").optional(),
        ]);
        for contributor in &contributors {
            let state = contributor.state;
            let kind = match state.detail {
                Some(detail) => format!("{} ({detail})", state.category),
                None => state.category.to_string(),
            };
            table.row(vec![
                Cell::plain(look.name(&state.name)),
                Cell::plain(contributor.bytes.to_string()),
                Cell::plain(percent(contributor.bytes, peak.bytes)),
                Cell::styled(kind, look.category(state.category)),
            ]);
        }
        table.write(out, look)?;
        match rest {
            Some(rest) => prose(out, look, Style::new(), &rest),
            None => Ok(()),
        }
    }
}

/// The categories of the peak; with colours it is the legend of the bars above it.
fn category_table(peak: &Phase<'_>, look: &Look) -> Table {
    let total = peak.sums.total;
    let mut table = Table::new(vec![
        Column::left("").cut(),
        Column::right(""),
        Column::right("").optional(),
        Column::bar(total.get()),
    ]);
    for (category, bytes) in peak.sums.by_category.iter() {
        let style = look.category(category);
        table.row(vec![
            Cell::styled(category.as_str(), style),
            Cell::plain(bytes.to_string()),
            Cell::plain(percent(bytes, total)),
            Cell::Bar(vec![(bytes.get(), style)]),
        ]);
    }
    table
}

/// The answer as JSON.
pub(crate) struct ShowJson<'a>(pub(crate) &'a ShowReport<'a>);

impl Serialize for ShowJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let report = self.0;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("phases", &PhasesJson(report))?;
        map.serialize_entry("peak", &PeakJson::of(report.ledger(), report.file.peak_op()))?;
        map.serialize_entry("host_peak_bytes", &report.cpu_peak().get())?;
        map.serialize_entry("note", &report.file.note)?;
        map.serialize_entry("incomplete", &report.file.incomplete)?;
        map.end()
    }
}

/// The phases one after the other: all their states together may be far more than the ledger holds.
struct PhasesJson<'a>(&'a ShowReport<'a>);

impl Serialize for PhasesJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut active = self.0.ledger().active_by_phase();
        let mut list = serializer.serialize_seq(None)?;
        for phase in self.0.phases() {
            let states = active.next_phase().into_iter().flatten();
            let names = states.map(|(_, state)| &*state.name).collect();
            list.serialize_element(&PhaseJson { phase, names })?;
        }
        list.end()
    }
}

struct PhaseJson<'a> {
    phase: Phase<'a>,
    names: Vec<&'a str>,
}

impl Serialize for PhaseJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Phase { slot, sums, op, .. } = self.phase;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("phase", slot.phase.as_str())?;
        map.serialize_entry("micro_batch", &slot.micro_batch)?;
        map.serialize_entry("total_bytes", &sums.total.get())?;
        map.serialize_entry("total_mb", &sums.total.mib())?;
        map.serialize_entry("end_bytes", &sums.end.get())?;
        map.serialize_entry("host_bytes", &sums.cpu.get())?;
        map.serialize_entry("moment", &self.phase.moment())?;
        map.serialize_entry("peak_op", &op)?;
        map.serialize_entry("by_category", &CategoriesJson(&sums.by_category))?;
        map.serialize_entry("active_states", &self.names)?;
        map.end()
    }
}

struct CategoriesJson<'a>(&'a ByCategory);

impl Serialize for CategoriesJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(category, bytes)| (category.as_str(), bytes.get())))
    }
}

/// The peak as JSON, for `show` and for the baseline of `compare`.
pub(crate) struct PeakJson<'a> {
    slot: &'a Slot,
    moment: Moment,
    bytes: Bytes,
    by_category: Option<&'a ByCategory>,
    op: Option<&'a str>,
    contributors: Vec<Contributor<'a>>,
}

impl<'a> PeakJson<'a> {
    pub(crate) fn of(ledger: &'a Ledger, op: Option<&'a str>) -> PeakJson<'a> {
        let peak = ledger.peak();
        let mut phases = ledger.phases();
        let by_category = phases.find(|(slot, _)| *slot == peak.slot).map(|(_, sums)| &sums.by_category);
        PeakJson {
            slot: peak.slot,
            moment: peak.moment,
            bytes: peak.bytes,
            by_category,
            op,
            contributors: ledger.contributors(peak.moment),
        }
    }
}

impl Serialize for PeakJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("peak_phase", self.slot.phase.as_str())?;
        map.serialize_entry("micro_batch", &self.slot.micro_batch)?;
        map.serialize_entry("peak_bytes", &self.bytes.get())?;
        map.serialize_entry("peak_mb", &self.bytes.mib())?;
        map.serialize_entry("moment", &self.slot.moment_in(self.moment))?;
        map.serialize_entry("peak_op", &self.op)?;
        map.serialize_entry("by_category", &self.by_category.map(CategoriesJson))?;
        let contributors = self.contributors.iter().map(|c| ContributorJson(c, self.bytes));
        map.serialize_entry("contributors", &contributors.collect::<Vec<_>>())?;
        map.end()
    }
}

struct ContributorJson<'a>(&'a Contributor<'a>, Bytes);

impl Serialize for ContributorJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let ContributorJson(Contributor { state, bytes, .. }, peak) = self;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("name", &*state.name)?;
        map.serialize_entry("category", &state.category)?;
        map.serialize_entry("detail", &state.detail)?;
        map.serialize_entry("bytes", &bytes.get())?;
        map.serialize_entry("size_mb", &bytes.mib())?;
        map.serialize_entry("share", &share(*bytes, *peak))?;
        map.serialize_entry("persistent", &state.persistent)?;
        map.end()
    }
}
