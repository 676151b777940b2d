//! The report of `replay`: what was reserved and why, over time, and what other settings would have made of it.

use super::json::ReplayJson;
use super::replays::{Places, Replays};
use super::script::Outcome;
use crate::figures::{count, signed};
use crate::markdown::Column::{Figures, Text};
use crate::table::{Cell, Column, Table, entry, prose};
use crate::{Look, Report, csv_table, markdown, write_json};
use anstyle::Style;
use peakledger_allocator::Totals;
use peakledger_core::Bytes;
use std::io;

/// A file replayed.
#[derive(Debug)]
pub struct ReplayReport<'a> {
    /// What the user calls the file.
    pub name: &'a str,
    /// What came of it.
    pub replays: &'a Replays,
}

fn bytes(bytes: u64) -> String {
    Bytes::new(bytes).to_string()
}

/// What the reserved bytes of a moment are made of.
pub(super) fn uses(totals: &Totals) -> [(&'static str, u64); 6] {
    [
        ("requested", totals.requested),
        ("rounding", totals.rounding),
        ("unsplit ends of blocks", totals.tails),
        ("waiting for other streams", totals.pending()),
        ("free in whole segments", totals.returnable),
        ("free in segments partly in use", totals.stuck()),
    ]
}

impl ReplayReport<'_> {
    fn first(&self) -> Option<&Outcome> {
        self.replays.runs.first()
    }

    fn first_name(&self) -> &'static str {
        match self.replays.followed {
            Some(followed) if followed.is_exact() => "as recorded",
            Some(_) => "its own settings",
            None => "torch's defaults",
        }
    }

    /// What a run is called: its settings.
    pub(super) fn run_name(&self, at: usize, run: &Outcome) -> String {
        match (at, run.settings.to_string().as_str()) {
            (0, "default") => self.first_name().to_owned(),
            (0, settings) => format!("{}: {settings}", self.first_name()),
            (_, "default") => "torch's defaults".to_owned(),
            (_, settings) => settings.to_owned(),
        }
    }

    /// Where a number stands.
    pub(super) fn place(&self, at: Option<u32>) -> String {
        match (&self.replays.places, at) {
            (Places::Events { .. }, None) => "before the first event".to_owned(),
            (Places::Events { count, .. }, Some(event)) => format!("at event {event} of {count}"),
            (Places::Phases(names), at) => {
                let name = names.get(at.unwrap_or(0) as usize);
                name.map_or_else(|| "before the first phase".to_owned(), |name| format!("in {name}"))
            }
        }
    }

    fn heading(&self) -> String {
        let Some(run) = self.first() else { return String::new() };
        let on = match self.replays.places {
            Places::Events { device, .. } => format!(" on device {device}"),
            Places::Phases(_) => String::new(),
        };
        format!("reserved {} at most{on}, {}", bytes(run.peak.totals.reserved), self.place(run.peak.at))
    }

    /// How exact it is.
    fn followed(&self) -> Option<String> {
        let followed = self.replays.followed?;
        Some(if followed.is_exact() {
            let number = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
            let segments = match followed.given {
                0 => String::new(),
                given => format!(
                    ", and each of {} comes and goes when it did",
                    count(number(given), "segment", "segments")
                ),
            };
            let blocks = count(number(followed.blocks), "block", "blocks");
            format!("the replay puts each of {blocks} where the trace has it{segments}")
        } else {
            let recorded = match followed.reserved {
                reserved if self.first().is_some_and(|run| run.peak.totals.reserved == reserved) => {
                    String::new()
                }
                reserved => format!("; the trace itself has {} reserved at most", bytes(reserved)),
            };
            format!(
                "the replay puts {} of {} blocks where the trace has them, and {} of {} segments come and go when they \
                 did: so far is it from exact{recorded}",
                followed.in_place, followed.blocks, followed.asked, followed.given
            )
        })
    }

    /// Where a run ends by running out of memory.
    fn oom_line(&self, run: &Outcome) -> Option<String> {
        let (at, oom) = run.oom?;
        let asked = bytes(oom.segment);
        let unused = oom.unused.map(|unused| format!(" with {} left", bytes(unused))).unwrap_or_default();
        let free = bytes(oom.totals.free());
        Some(format!(
            "runs out {}: {asked} asked for{unused}, {free} reserved and free",
            self.place(Some(at))
        ))
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if !self.replays.from_empty {
            notes.push(
                "blocks from before the first event stay where they are under other settings too: a trace that starts \
                 from an empty device says more"
                    .to_owned(),
            );
        }
        if self.replays.exchanges_on_one_stream {
            notes.push(
                "a ledger names no streams: what ranks exchange is taken to share blocks with all else, where `plan` keeps \
                 each stream's apart"
                    .to_owned(),
            );
        }
        if matches!(self.replays.places, Places::Phases(_)) {
            notes.push(
                "one step from an empty cache: whether a step fits `plan` says, which replays the first and the next, and counts \
                 what NCCL keeps outside the allocator"
                    .to_owned(),
            );
        }
        match self.replays.room {
            Some(room) => notes.push(format!("{} for the caching allocator on the card", bytes(room))),
            None => notes.push("a card that never runs out; --gpu names another".to_owned()),
        }
        notes
    }

    /// The spans with their names.
    fn spans(&self) -> Vec<String> {
        match &self.replays.places {
            Places::Phases(names) => names.clone(),
            Places::Events { count, spans, .. } => {
                let ends = spans.iter().skip(1).chain(std::iter::once(count));
                let last = |end: &u32| end.saturating_sub(1);
                let name = |(start, end): (&u32, &u32)| match last(end) {
                    last if last <= *start => format!("event {start}"),
                    last => format!("events {start}–{last}"),
                };
                spans.iter().zip(ends).map(name).collect()
            }
        }
    }

    fn saves(&self, run: &Outcome) -> i128 {
        let first = self.first().map_or(0, |first| first.peak.totals.reserved);
        i128::from(first) - i128::from(run.peak.totals.reserved)
    }
}

impl Report for ReplayReport<'_> {
    fn table(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        let Some(run) = self.first() else { return Ok(()) };
        prose(out, look, look.bold(), &self.heading())?;
        if let Some(line) = self.oom_line(run) {
            prose(out, look, look.verdict(false), &line)?;
        }
        let name = look.name(self.name).into_owned();
        let line = self.followed().map_or_else(|| name.clone(), |followed| format!("{name}: {followed}"));
        prose(out, look, look.faint(), &line)?;
        writeln!(out)?;
        self.made_of(look, run).write(out, look)?;
        writeln!(out)?;
        self.over_time(look, run).write(out, look)?;
        writeln!(out)?;
        self.settings(look).write(out, look)?;
        for (at, run) in self.replays.runs.iter().enumerate().skip(1) {
            if let Some(line) = self.oom_line(run) {
                prose(out, look, look.verdict(false), &format!("{}: {line}", self.run_name(at, run)))?;
            }
        }
        writeln!(out)?;
        self.notes().iter().try_for_each(|note| entry(out, look, look.faint(), "note: ", &look.text(note)))
    }

    fn json(&self, out: &mut dyn io::Write) -> io::Result<()> {
        write_json(out, &ReplayJson::of(self))
    }

    /// Every change of the reserved bytes, of every run.
    fn csv(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        let at = match self.replays.places {
            Places::Events { .. } => "event",
            Places::Phases(_) => "phase",
        };
        let titles =
            ["settings", at, "reserved_bytes", "allocated_bytes", "active_bytes", "returnable_bytes"];
        let rows = self.replays.runs.iter().enumerate().flat_map(|(number, run)| {
            let name = self.run_name(number, run);
            run.reserved.iter().map(move |point| {
                let totals = point.totals;
                let figures = [totals.reserved, totals.allocated, totals.active, totals.returnable];
                let at = match (&self.replays.places, point.at) {
                    (Places::Phases(names), Some(at)) => names.get(at as usize).cloned().unwrap_or_default(),
                    (_, at) => at.map_or_else(|| "-1".to_owned(), |at| at.to_string()),
                };
                [name.clone(), at].into_iter().chain(figures.map(|figure| figure.to_string())).collect()
            })
        });
        csv_table::write(out, look, &titles, rows)
    }

    fn markdown(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        let Some(run) = self.first() else { return Ok(()) };
        writeln!(out, "**{}**\n", markdown::escaped(&self.heading()))?;
        for line in self.oom_line(run).into_iter().chain(self.followed()) {
            writeln!(out, "{}\n", markdown::escaped(&look.text(&line)))?;
        }
        let rows: Vec<Vec<String>> = uses(&run.peak.totals)
            .iter()
            .map(|(what, size)| vec![(*what).to_owned(), bytes(*size)])
            .collect();
        markdown::table(out, &[Text("at that peak"), Figures("size")], &rows)?;
        writeln!(out)?;
        let columns = [
            Text("settings"),
            Figures("reserved"),
            Figures("saves"),
            Figures("free at the peak"),
            Text("ends"),
        ];
        let row = |(at, run): (usize, &Outcome)| {
            let saves = if at == 0 { String::new() } else { signed(self.saves(run)) };
            vec![
                markdown::escaped(&self.run_name(at, run)),
                bytes(run.peak.totals.reserved),
                saves,
                bytes(run.peak.totals.free()),
                markdown::escaped(&self.ends(run)),
            ]
        };
        markdown::table(out, &columns, &self.replays.runs.iter().enumerate().map(row).collect::<Vec<_>>())?;
        self.notes().iter().try_for_each(|note| writeln!(out, "\nNote: {}", markdown::escaped(note)))
    }
}

impl ReplayReport<'_> {
    fn made_of(&self, look: &Look, run: &Outcome) -> Table {
        let full = run.peak.totals.reserved;
        let mut table =
            Table::new(vec![Column::left("").cut(), Column::right("at that peak"), Column::bar(full)]);
        for (what, size) in uses(&run.peak.totals).into_iter().filter(|(_, size)| *size > 0) {
            let style = if what.starts_with("free") { look.faint() } else { Style::new() };
            table.row(vec![
                Cell::styled(what, style),
                Cell::styled(bytes(size), style),
                Cell::Bar(vec![(size, style)]),
            ]);
        }
        table
    }

    fn over_time(&self, look: &Look, run: &Outcome) -> Table {
        let full = run.peak.totals.reserved;
        let columns = vec![
            Column::left("").cut(),
            Column::right("reserved"),
            Column::right("allocated"),
            Column::bar(full),
        ];
        let mut table = Table::new(columns);
        for (name, most) in self.spans().iter().zip(&run.spans) {
            let cached = most.reserved.saturating_sub(most.allocated);
            table.row(vec![
                Cell::plain(look.text(name)),
                Cell::plain(bytes(most.reserved)),
                Cell::plain(bytes(most.allocated)),
                Cell::Bar(vec![(most.allocated, Style::new()), (cached, look.faint())]),
            ]);
        }
        table
    }

    /// How a run ends, in a word.
    fn ends(&self, run: &Outcome) -> String {
        match (&run.oom, run.retries) {
            (Some(_), _) => "runs out".to_owned(),
            (None, 0) => String::new(),
            (None, times) => format!("gives back {times}×"),
        }
    }

    fn settings(&self, look: &Look) -> Table {
        let mut columns =
            vec![Column::left("settings").cut(), Column::right("reserved"), Column::right("saves")];
        columns.push(Column::right("free at the peak").optional());
        columns.push(Column::left(""));
        let mut table = Table::new(columns);
        for (at, run) in self.replays.runs.iter().enumerate() {
            let style = if at == 0 { look.bold() } else { Style::new() };
            let saves = self.saves(run);
            let said = if at == 0 || run.oom.is_some() { String::new() } else { signed(saves) };
            let ends = if run.oom.is_some() { look.verdict(false) } else { look.faint() };
            table.row(vec![
                Cell::styled(look.text(&self.run_name(at, run)), style),
                Cell::styled(bytes(run.peak.totals.reserved), style),
                Cell::styled(said, look.saving(saves)),
                Cell::styled(bytes(run.peak.totals.free()), style),
                Cell::styled(look.text(&self.ends(run)), ends),
            ]);
        }
        table
    }
}
