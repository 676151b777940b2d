//! The step beside its candidates: each one's peak, whether it fits the card, what it saves, and which of them are a way out.

use super::PlanReport;
use crate::figures::{signed, spare_or_too_much};
use crate::markdown::Column::{Figures, Text};
use crate::table::{Cell, Column, Table};
use crate::{Look, markdown, verdict};
use anstyle::Style;
use peakledger_core::{ByCategory, Category};
use peakledger_plan::{Plan, Verdict};
use std::io;

/// A row of the table: the step as it is, or a candidate.
struct Row<'a> {
    name: &'a str,
    peak: String,
    verdict: Option<Verdict>,
    /// Nothing for the step as it is.
    saving: Option<i128>,
    /// `backward, steady`.
    whereabouts: String,
    moved: String,
    costs: String,
    /// What is computed again or sent over the host link for it.
    price: String,
}

impl Row<'_> {
    /// `yes: 7.27 GiB to spare`.
    fn fits(&self) -> Option<String> {
        let verdict = self.verdict?;
        let answer = verdict::short_answer(verdict);
        Some(format!("{answer}: {}", spare_or_too_much(verdict.headroom())))
    }

    fn saves(&self) -> String {
        self.saving.map(signed).unwrap_or_default()
    }
}

impl PlanReport<'_> {
    /// What each candidate saves at the peak.
    pub(crate) fn savings(&self) -> impl Iterator<Item = i128> + '_ {
        let before = self.peak().phase.peak;
        self.candidates.iter().map(move |(_, plan)| before.minus(plan.peak_in(self.step).phase.peak))
    }

    fn rows(&self) -> Vec<Row<'_>> {
        let before = self.peak().phase.by_category;
        let row = |name, plan: &Plan, saving| {
            let at = plan.peak_in(self.step);
            Row {
                name,
                peak: at.phase.peak.to_string(),
                verdict: self.verdict_of(plan),
                saving,
                whereabouts: format!("{}, {}", at.phase.phase, at.step.step.as_str()),
                moved: most_moved(&before, &at.phase.by_category),
                costs: saving.map_or_else(|| self.own_costs_cell(), |_| self.added_cell(plan)),
                price: self.price_cell(plan),
            }
        };
        let mut rows = vec![row("baseline", self.plan, None)];
        let candidates = self.candidates.iter().zip(self.savings());
        rows.extend(candidates.map(|((name, plan), saving)| row(name, plan, Some(saving))));
        rows
    }

    pub(super) fn candidate_table(&self, look: &Look) -> Table {
        let rows = self.rows();
        let mut columns = vec![Column::left("").cut(), Column::right("peak")];
        // where there is no room for both, the verdict is kept: what is saved can be told from the peaks
        columns.extend(self.card.map(|_| Column::left("fits").optional()));
        columns.push(Column::right("saves").optional());
        columns.extend([Column::right(self.costs_title()).optional(), Column::left("in").optional()]);
        columns.push(Column::left("most moved").optional());
        let has_price = rows.iter().any(|row| !row.price.is_empty());
        columns.extend(has_price.then(|| Column::left("for it").optional()));
        let mut table = Table::new(columns);
        for row in rows {
            let style = if row.saving.is_none() { look.bold() } else { Style::new() };
            let mut cells = vec![Cell::styled(look.name(row.name), style), Cell::styled(&*row.peak, style)];
            let color = row.verdict.map(|verdict| look.verdict(verdict.fits())).unwrap_or_default();
            cells.extend(row.fits().map(|fits| Cell::styled(fits, color)));
            cells.push(Cell::styled(row.saves(), look.saving(row.saving.unwrap_or_default())));
            cells.extend([row.costs, row.whereabouts].map(Cell::plain));
            cells.push(Cell::plain(look.text(&row.moved)));
            cells.extend(has_price.then(|| Cell::plain(row.price)));
            table.row(cells);
        }
        table
    }

    pub(super) fn candidates_in_markdown(&self, out: &mut dyn io::Write) -> io::Result<()> {
        let mut columns = vec![Text("candidate"), Figures("peak")];
        columns.extend(self.card.map(|_| Text("fits")));
        columns.extend([Figures("saves"), Figures(self.costs_title()), Text("in")]);
        columns.extend([Text("most moved"), Text("for it")]);
        let cells = |row: &Row<'_>| {
            let mut cells = vec![markdown::escaped(row.name), row.peak.clone()];
            cells.extend(row.fits());
            cells.push(row.saves());
            let rest = [&row.costs, &row.whereabouts, &row.moved, &row.price];
            cells.extend(rest.map(|cell| markdown::escaped(cell)));
            cells
        };
        markdown::table(out, &columns, &self.rows().iter().map(cells).collect::<Vec<_>>())
    }

    /// Where the step does not fit: the candidates that do, in a sentence, or the one that comes closest; and whether one
    /// does.
    pub(super) fn way_out(&self, look: &Look, name: impl Fn(&str) -> String) -> Option<(String, bool)> {
        if self.verdict_of(self.plan)?.fits() {
            return None;
        }
        let verdicts = self.candidates.iter().map(|(name, plan)| Some((name, self.verdict_of(plan)?)));
        let verdicts: Vec<(&String, Verdict)> = verdicts.collect::<Option<_>>()?;
        let said = |(candidate, verdict): &(&String, Verdict)| {
            format!("{} ({})", name(candidate), verdict::headroom(*verdict))
        };
        let (surely, barely) = verdicts
            .iter()
            .filter(|(_, verdict)| verdict.fits())
            .partition::<Vec<_>, _>(|(_, verdict)| !verdict.is_on_the_edge());
        let mut fitting: Vec<String> = surely.into_iter().chain(barely).map(said).collect();
        let more = fitting.split_off(look.shown(fitting.len()));
        if !more.is_empty() {
            fitting.push(format!("{} more", more.len()));
        }
        match fitting.pop() {
            Some(last) if fitting.is_empty() => Some((format!("it fits with {last}"), true)),
            Some(last) => Some((format!("it fits with {} and {last}", fitting.join(", ")), true)),
            None => {
                // of those that are as close, the one that was given first
                let closest = verdicts.iter().rev().max_by_key(|(_, verdict)| verdict.headroom())?;
                let closest = said(closest);
                let text = format!(
                    "no candidate fits; the closest is {closest}; `peakledger fit` tries several together"
                );
                Some((text, false))
            }
        }
    }
}

/// The category whose part in the peak changed most: `activation -21.50 GiB`.
fn most_moved(before: &ByCategory, after: &ByCategory) -> String {
    let changes = Category::ALL.map(|c| (c, after.get(c).minus(before.get(c))));
    match changes.into_iter().max_by_key(|(c, change)| (change.unsigned_abs(), std::cmp::Reverse(*c))) {
        Some((category, change)) if change != 0 => {
            let sign = if change > 0 { "+" } else { "" };
            format!("{category} {sign}{}", signed(change))
        }
        _ => String::new(),
    }
}
