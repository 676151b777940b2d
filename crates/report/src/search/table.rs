//! The search for people: a table for a terminal, and markdown.

use super::{SearchReport, SearchRow};
use crate::figures::{added_time, amount};
use crate::markdown::Column::{Figures, Text};
use crate::plan::{assumptions, assumptions_in_markdown};
use crate::table::{Cell, Column, Table, entry, prose};
use crate::{Look, command_line, markdown};
use anstyle::Style;
use std::io;

/// The titles of what is said of a row.
const FIGURES: [&str; 8] =
    ["takes", "in theory", "longer", "waits", "sent", "between nodes", "to and from host", "peak"];

impl SearchReport<'_> {
    pub(super) fn write_table(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        let text = |out: &mut dyn io::Write, style, text: &str| prose(out, look, style, &look.text(text));
        let fits = !self.front.is_empty();
        text(out, look.verdict(fits), &self.counts_line())?;
        if let (Some(line), Some(best)) = (self.best_line(), self.best()) {
            text(out, look.verdict(fits), &look.name(&line))?;
            command_line::write(out, look, &self.command_of(best))?;
        }
        if let (Some(line), Some(row)) = (self.roomy_line(), self.roomy_row()) {
            text(out, look.verdict(true), &look.name(&line))?;
            command_line::write(out, look, &self.command_of(row))?;
        }
        self.write_beyond_command(out, look)?;
        for line in self.caveats() {
            entry(out, look, Style::new(), "note: ", &look.text(&line))?;
        }
        text(out, look.faint(), &self.step_line(&look.name(self.name)))?;
        if let Some(line) = self.fixed_line() {
            text(out, look.faint(), &look.name(&line))?;
        }
        if let Some(plan) = self.plan {
            writeln!(out)?;
            assumptions(plan, self.origins, out, look)?;
        }
        if fits {
            writeln!(out)?;
            text(out, look.bold(), self.heading())?;
            let (rows, more) = self.shown_front(look);
            self.shown(rows.clone(), look).write(out, look)?;
            for line in more.as_deref().into_iter().chain(SearchReport::legend(rows)) {
                text(out, look.faint(), line)?;
            }
        }
        if !fits {
            self.write_beyond(out, look)?;
        }
        self.write_refused(out, look)?;
        writeln!(out)?;
        for line in self.notes() {
            text(out, look.faint(), &line)?;
        }
        for line in self.not_counted() {
            entry(out, look, look.faint(), "not counted: ", &look.text(line))?;
        }
        Ok(())
    }

    fn shown<'r>(&self, shown: impl Iterator<Item = &'r SearchRow> + Clone, look: &Look) -> Table {
        let rows: Vec<[String; 8]> = shown.clone().map(|row| self.figures(row)).collect();
        let is_marked = !SearchReport::legend(shown.clone()).is_empty();
        // what no row has, has no column
        let has = FIGURES
            .iter()
            .enumerate()
            .map(|(at, _)| rows.iter().any(|row| row.get(at).is_some_and(|cell| !cell.is_empty())));
        let has: Vec<bool> = has.collect();
        let dimensions = self.dimensions.iter().map(|of| Column::left(look.name(&of.name).into_owned()));
        let figures = FIGURES.into_iter().enumerate().zip(&has).filter(|(_, has)| **has);
        let figures = figures.map(|((at, title), _)| {
            let column = Column::right(title);
            if at > 1 { column.optional() } else { column }
        });
        let fits = is_marked.then(|| Column::left("fits"));
        let mut table = Table::new(dimensions.chain(fits).chain(figures).collect());
        for (row, figures) in shown.zip(rows) {
            let values = self.values(row).into_iter().map(|value| Cell::plain(look.name(&value.name)));
            let values = values.chain(is_marked.then(|| Cell::plain(row.fits())));
            let figures = figures.into_iter().zip(&has).filter(|(_, has)| **has);
            table.row(values.chain(figures.map(|(cell, _)| Cell::plain(cell))).collect());
        }
        table
    }

    /// What it takes, how long it takes, how much longer than the quickest, what of that the pipeline waits, and what it
    /// sends and moves; nothing where there is nothing.
    fn figures(&self, row: &SearchRow) -> [String; 8] {
        let tried = &row.tried;
        let some = |bytes: u128| if bytes > 0 { amount(bytes).to_string() } else { String::new() };
        let costs = tried.slowest.costs;
        let waits = tried.slowest.time.ok().map(|time| time.bubble).filter(|bubble| bubble.0 > 0);
        let added = self.added(row).filter(|added| *added != 0);
        [
            tried.verdict.needed.to_string(),
            row.time().map(|time| time.to_string()).unwrap_or_default(),
            added.map(added_time).unwrap_or_default(),
            waits.map(|bubble| bubble.to_string()).unwrap_or_default(),
            some(costs.communicated()),
            some(costs.sent.between_nodes),
            some(costs.host.to_host.saturating_add(costs.host.from_host)),
            tried.device_peak.to_string(),
        ]
    }

    fn write_refused(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        if self.refused.is_empty() {
            return Ok(());
        }
        writeln!(out)?;
        prose(out, look, look.bold(), "what cannot be, and why; of alike reasons the first")?;
        let shown = look.shown(self.refused.len());
        let widest = self.refused_lines().map(|(count, _)| count.len()).max().unwrap_or_default();
        for (count, reason) in self.refused_lines().take(shown) {
            let label = format!("{count:>widest$}  ");
            entry(out, look, Style::new(), &label, &look.text(&look.name(&reason)))?;
        }
        match self.refused.len() - shown {
            0 => Ok(()),
            more => prose(out, look, look.faint(), &format!("and {more} more reasons")),
        }
    }

    pub(super) fn write_markdown(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        writeln!(out, "**{}**\n", markdown::escaped(&self.counts_line()))?;
        let best = self.best_line().zip(self.best().map(|row| self.command_of(row)));
        let roomy = self.roomy_line().zip(self.roomy_row().map(|row| self.command_of(row)));
        let beyond = self.beyond_line().zip(self.beyond_command());
        for (line, command) in [best, roomy, beyond].into_iter().flatten() {
            writeln!(out, "{}\n", markdown::escaped(&line))?;
            command.lines().try_for_each(|line| writeln!(out, "    {line}"))?;
            writeln!(out)?;
        }
        for line in self.caveats() {
            writeln!(out, "Note: {}\n", markdown::escaped(&line))?;
        }
        writeln!(out, "{}\n", self.step_line(&markdown::escaped(self.name)))?;
        if let Some(line) = self.fixed_line() {
            writeln!(out, "{}\n", markdown::escaped(&line))?;
        }
        if let Some(plan) = self.plan {
            assumptions_in_markdown(plan, self.origins, out)?;
            writeln!(out)?;
        }
        if !self.front.is_empty() {
            writeln!(out, "{}\n", self.heading())?;
            let names: Vec<String> = self.dimensions.iter().map(|of| markdown::escaped(&of.name)).collect();
            let columns = names.iter().map(|name| Text(name)).chain([Text("fits")]);
            let columns: Vec<_> = columns.chain(FIGURES.map(Figures)).collect();
            let row = |row: &SearchRow| {
                let values = self.values(row).into_iter().map(|value| markdown::escaped(&value.name));
                values.chain([row.fits()]).chain(self.figures(row)).collect()
            };
            let (rows, more) = self.shown_front(look);
            markdown::table(out, &columns, &rows.clone().map(row).collect::<Vec<_>>())?;
            writeln!(out)?;
            for line in more.as_deref().into_iter().chain(SearchReport::legend(rows)) {
                writeln!(out, "{}\n", markdown::escaped(line))?;
            }
        }
        self.beyond_in_markdown(out)?;
        if !self.refused.is_empty() {
            let row = |(count, reason): (String, String)| vec![count, markdown::escaped(&reason)];
            let rows: Vec<_> = self.refused_lines().map(row).collect();
            markdown::table(out, &[Figures("cannot be"), Text("why; of alike reasons the first")], &rows)?;
            writeln!(out)?;
        }
        self.notes().try_for_each(|line| writeln!(out, "{line}\n"))?;
        self.not_counted()
            .iter()
            .try_for_each(|line| writeln!(out, "Not counted: {}", markdown::escaped(line)))
    }
}
