//! The report of `plan` in markdown.

use super::rows::phase_rows;
use super::{PlanReport, assumed, more};
use crate::figures::percent;
use crate::markdown::Column::{Figures, Text};
use crate::{Look, Origins, markdown};
use peakledger_plan::{Contributor, Plan};
use std::io;

impl PlanReport<'_> {
    pub(super) fn write_markdown(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        let peak = self.peak();
        let (whereabouts, place) = (self.whereabouts(peak), markdown::escaped(&peak.phase.place()));
        writeln!(out, "**Peak {} {}**, at {place}\n", peak.phase.peak, markdown::escaped(&whereabouts))?;
        if let Some(line) = self.rank_line() {
            writeln!(out, "{}\n", markdown::escaped(&line))?;
        }
        if let Some(line) = self.verdict_line() {
            writeln!(out, "{}\n", markdown::escaped(&line))?;
        }
        if let Some((line, _)) = self.way_out(look, markdown::escaped) {
            writeln!(out, "{line}\n")?;
        }
        for line in self.caveats() {
            writeln!(out, "Note: {}\n", markdown::escaped(&line))?;
        }
        assumptions_in_markdown(self.plan, self.origins, out)?;
        writeln!(out)?;
        let mut columns = vec![Text("phase")];
        columns.extend(self.steps().iter().map(|step| Figures(step.step.as_str())));
        let rows: Vec<Vec<String>> = phase_rows(self.plan)
            .into_iter()
            .map(|row| {
                let mut cells = vec![markdown::escaped(&row.name)];
                cells.extend(
                    self.steps()
                        .iter()
                        .map(|step| row.phase(step).map(|p| p.peak.to_string()).unwrap_or_default()),
                );
                cells
            })
            .collect();
        markdown::table(out, &columns, &rows)?;
        writeln!(out, "\nAt the peak:\n")?;
        let contributors = self.plan.contributors_at(peak);
        let shown = look.shown(contributors.len());
        let row = |c: &Contributor| {
            vec![
                markdown::escaped(&c.name),
                c.category.to_string(),
                c.bytes.to_string(),
                percent(c.bytes, peak.phase.peak),
            ]
        };
        let rows: Vec<Vec<String>> = contributors.iter().take(shown).map(row).collect();
        let columns = [Text("who"), Text("category"), Figures("size"), Figures("share")];
        markdown::table(out, &columns, &rows)?;
        if let Some(more) = more(&contributors, shown) {
            writeln!(out, "\n{more}")?;
        }
        self.ranks_in_markdown(out)?;
        if !self.candidates.is_empty() {
            writeln!(out)?;
            self.candidates_in_markdown(out)?;
        }
        for line in self.left_out_lines() {
            writeln!(out, "\n{}", markdown::escaped(&line))?;
        }
        writeln!(out, "\n{}", markdown::escaped(&self.device_line()))?;
        for line in self.host_line().into_iter().chain(self.host_of_ranks_line()) {
            writeln!(out, "\n{}", markdown::escaped(&line))?;
        }
        if let Some(line) = self.reserved_line() {
            writeln!(out, "\n{}", markdown::escaped(&line))?;
        }
        writeln!(out, "\n{}\n", markdown::escaped(&self.costs_line()))?;
        for line in self.not_counted() {
            writeln!(out, "Not counted: {}", markdown::escaped(line))?;
        }
        Ok(())
    }
}

/// What is assumed, and what configs said.
pub(crate) fn assumptions_in_markdown(
    plan: &Plan,
    origins: Option<&Origins>,
    out: &mut dyn io::Write,
) -> io::Result<()> {
    let row = |(topic, value): (&str, String)| vec![markdown::escaped(topic), markdown::escaped(&value)];
    let rows: Vec<Vec<String>> = assumed(plan, origins).map(row).collect();
    markdown::table(out, &[Text("assumed"), Text("")], &rows)
}
