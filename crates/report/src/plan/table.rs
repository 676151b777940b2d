//! The report of `plan` on a terminal.

use super::rows::phase_rows;
use super::{PlanReport, assumed, ledger_of, more};
use crate::figures::{grouped, percent};
use crate::table::{Cell, Column, Table, entry, prose};
use crate::{Look, Origins, plot};
use anstyle::Style;
use peakledger_core::Bytes;
use peakledger_plan::{Contributor, Plan, Step};
use std::io;

impl PlanReport<'_> {
    pub(super) fn write_table(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        let peak = self.peak();
        let text = |out: &mut dyn io::Write, style, text: &str| prose(out, look, style, &look.text(text));
        text(out, look.bold(), &format!("peak {} {}", peak.phase.peak, self.whereabouts(peak)))?;
        text(out, Style::new(), &format!("at {}", peak.phase.place()))?;
        if let Some(line) = self.rank_line() {
            text(out, Style::new(), &line)?;
        }
        if let (Some(line), Some(verdict)) = (self.verdict_line(), self.verdict_of(self.plan)) {
            text(out, look.verdict(verdict.fits()), &line)?;
        }
        if let Some((line, fits)) = self.way_out(look, |name| look.name(name).into_owned()) {
            text(out, look.verdict(fits), &line)?;
        }
        for line in self.caveats() {
            entry(out, look, Style::new(), "note: ", &look.text(&line))?;
        }
        let mut parameters = grouped(self.plan.parameters);
        if self.plan.trainable != self.plan.parameters {
            parameters = format!("{parameters} parameters, {} of them trained", grouped(self.plan.trainable));
        } else {
            parameters.push_str(" parameters");
        }
        text(out, look.faint(), &format!("{}: {parameters}", look.name(self.name)))?;
        writeln!(out)?;
        assumptions(self.plan, self.origins, out, look)?;
        writeln!(out)?;
        let (phases, more) = self.phases(look);
        phases.write(out, look)?;
        if let Some(more) = more {
            text(out, look.faint(), &more)?;
        }
        if look.plot {
            writeln!(out)?;
            plot::ledger(&ledger_of(self.plan, peak.step.step)?, out, look)?;
        }
        writeln!(out)?;
        text(out, look.bold(), "at the peak")?;
        self.contributors(out, look)?;
        if let Some((ranks, more)) = self.ranks_table(look) {
            writeln!(out)?;
            text(out, look.bold(), "ranks")?;
            ranks.write(out, look)?;
            if let Some(more) = more {
                text(out, look.faint(), &more)?;
            }
        }
        if !self.candidates.is_empty() {
            writeln!(out)?;
            text(out, look.bold(), "candidates")?;
            self.candidate_table(look).write(out, look)?;
        }
        for line in self.left_out_lines() {
            text(out, look.faint(), &line)?;
        }
        writeln!(out)?;
        text(out, look.faint(), &self.device_line())?;
        for line in self.host_line().into_iter().chain(self.host_of_ranks_line()) {
            text(out, look.faint(), &line)?;
        }
        if let Some(line) = self.reserved_line() {
            text(out, look.faint(), &line)?;
        }
        text(out, look.faint(), &self.costs_line())?;
        for line in self.not_counted() {
            entry(out, look, look.faint(), "not counted: ", &look.text(line))?;
        }
        Ok(())
    }

    /// The phases with the peaks of both steps side by side; the bar is the step's that holds the peak.
    fn phases(&self, look: &Look) -> (Table, Option<String>) {
        let peak = self.peak();
        let steps = self.steps();
        let mut columns = vec![Column::left(""), Column::left("phase").cut()];
        for step in &steps {
            let column = Column::right(if step.step == Step::First { "first step" } else { "steady step" });
            let held = step.step == peak.step.step;
            columns.push(if held { column } else { column.optional() });
        }
        columns.push(Column::right("device").optional());
        let host = self.host_peak() > Bytes::ZERO;
        columns.extend(host.then(|| Column::right("cpu").optional()));
        columns.push(Column::bar(peak.phase.peak.get()));
        let mut table = Table::new(columns);
        let rows = phase_rows(self.plan);
        let at = rows.iter().position(|row| row.covers(peak)).unwrap_or(0);
        let (shown, more) = look.rows(rows.len(), at, "phases");
        for at in shown {
            let Some(row) = at.and_then(|at| rows.get(at)) else {
                table.row(vec![Cell::plain(""), Cell::plain(look.ellipsis())]);
                continue;
            };
            let at_peak = row.covers(peak);
            let style = if at_peak { look.bold() } else { Style::new() };
            let mut cells = vec![
                Cell::styled(if at_peak { look.marker() } else { "" }, style),
                Cell::styled(look.text(&row.name), style),
            ];
            for step in &steps {
                let total = row.phase(step).map(|phase| phase.peak.to_string()).unwrap_or_default();
                let style = if step.step == peak.step.step { style } else { look.faint() };
                cells.push(Cell::styled(total, style));
            }
            let phase = row.phase(peak.step);
            let device = phase.map(|phase| phase.device_peak.to_string()).unwrap_or_default();
            cells.push(Cell::styled(device, look.faint()));
            let on_host = || phase.map(|phase| phase.host_peak.to_string()).unwrap_or_default();
            cells.extend(host.then(|| Cell::styled(on_host(), look.faint())));
            let held = phase.map(|phase| phase.by_category).unwrap_or_default();
            cells.push(Cell::categories(&held, look));
            table.row(cells);
        }
        (table, more)
    }

    fn contributors(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        let peak = self.peak();
        contributor_table(&self.plan.contributors_at(peak), peak.phase.peak, out, look)
    }
}

/// Who forms a peak, with bars.
pub(crate) fn contributor_table(
    contributors: &[Contributor],
    peak: Bytes,
    out: &mut dyn io::Write,
    look: &Look,
) -> io::Result<()> {
    let shown = look.shown(contributors.len());
    let mut table = Table::new(vec![
        Column::left("").cut(),
        Column::right(""),
        Column::right("").optional(),
        Column::bar(peak.get()),
    ]);
    for contributor in contributors.iter().take(shown) {
        let style = look.category(contributor.category);
        table.row(vec![
            Cell::plain(look.text(&contributor.name)),
            Cell::plain(contributor.bytes.to_string()),
            Cell::plain(percent(contributor.bytes, peak)),
            Cell::Bar(vec![(contributor.bytes.get(), style)]),
        ]);
    }
    table.write(out, look)?;
    match more(contributors, shown) {
        Some(more) => prose(out, look, Style::new(), &more),
        None => Ok(()),
    }
}

/// What is assumed, a line for each topic, and what configs said.
pub(crate) fn assumptions(
    plan: &Plan,
    origins: Option<&Origins>,
    out: &mut dyn io::Write,
    look: &Look,
) -> io::Result<()> {
    for (topic, value) in assumed(plan, origins) {
        entry(out, look, look.faint(), &format!("{topic:<11}"), &look.text(&value))?;
    }
    Ok(())
}
