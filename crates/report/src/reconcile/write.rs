//! The report for people, and its rows as csv.

use super::ReconcileReport;
use super::bridge::Part;
use super::json::ReconcileJson;
use super::pairs::{Row, by_category};
use crate::figures::{INCOMPLETE, plus};
use crate::markdown::Column::{Figures, Text};
use crate::table::{Cell, Column, Table, entry, prose};
use crate::{Look, Report, csv_table, markdown, write_json};
use anstyle::Style;
use peakledger_core::{Bytes, Category};
use std::io;

impl Report for ReconcileReport<'_> {
    fn table(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        prose(out, look, look.bold(), &self.heading())?;
        let names = [self.plan, self.measured].map(|side| look.name(side.name));
        let names = format!("{} against {}{}", names[0], names[1], self.which());
        prose(out, look, look.faint(), &names)?;
        if let Some(why) = self.measured.incomplete {
            entry(out, look, look.verdict(false), INCOMPLETE, &look.text(why))?;
        }
        writeln!(out)?;
        let mut table = Table::new(vec![
            Column::left("phase").cut(),
            Column::right("predicted"),
            Column::right("measured"),
            Column::right("difference"),
        ]);
        for row in &self.rows {
            let (measured, off) = row.told();
            let within = match (row.measured, self.tolerance) {
                (Some(measured), Some(tolerance)) => {
                    look.verdict(tolerance.holds(row.predicted.total, measured.total))
                }
                _ => Style::new(),
            };
            table.row(vec![
                Cell::plain(look.text(&row.name)),
                Cell::plain(row.predicted.total.to_string()),
                Cell::plain(measured),
                Cell::styled(off, within),
            ]);
        }
        table.write(out, look)?;
        if let Some((row, measured)) = self.peak() {
            writeln!(out)?;
            prose(out, look, look.bold(), &format!("at the peak, in {}", row.name))?;
            let mut table = Table::new(
                ["category", "predicted", "measured", "difference"]
                    .map(|title| if title == "category" { Column::left(title) } else { Column::right(title) })
                    .into(),
            );
            for (category, [predicted, measured]) in by_category(row.predicted, measured) {
                let cells = [predicted.to_string(), measured.to_string(), plus(measured.minus(predicted))];
                let mut all = vec![Cell::styled(category.as_str(), look.category(category))];
                all.extend(cells.map(Cell::plain));
                table.row(all);
            }
            table.write(out, look)?;
            writeln!(out)?;
            let mut table =
                Table::new(vec![Column::left(""), Column::right(""), Column::left("").cut().optional()]);
            for part in self.bridge() {
                let style = if part.total { look.bold() } else { Style::new() };
                let bytes = part.told();
                table.row(vec![
                    Cell::styled(part.name, style),
                    Cell::styled(bytes, style),
                    Cell::styled(part.why, look.faint()),
                ]);
            }
            table.write(out, look)?;
        }
        writeln!(out)?;
        for rule in &self.rules {
            let label = if rule.holds { "holds: " } else { "broken: " };
            entry(out, look, look.verdict(rule.holds), label, &look.text(&rule.rule))?;
        }
        for note in self.notes() {
            entry(out, look, look.faint(), "note: ", &look.text(&note))?;
        }
        match self.judgement() {
            Some(text) => prose(out, look, look.verdict(self.agrees()), text),
            None => Ok(()),
        }
    }

    fn json(&self, out: &mut dyn io::Write) -> io::Result<()> {
        write_json(out, &ReconcileJson::of(self))
    }

    fn csv(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        let titles = ["phase", "category", "predicted_bytes", "measured_bytes", "difference_bytes"];
        let rows = self.rows.iter().flat_map(|row| {
            let line = |category: &str, predicted: Bytes, measured: Option<Bytes>| {
                vec![
                    row.name.clone(),
                    category.to_owned(),
                    predicted.get().to_string(),
                    measured.map(|bytes| bytes.get().to_string()).unwrap_or_default(),
                    measured.map(|bytes| bytes.minus(predicted).to_string()).unwrap_or_default(),
                ]
            };
            let mut lines = vec![line("", row.predicted.total, row.measured.map(|total| total.total))];
            lines.extend(row.measured.into_iter().flat_map(|measured| {
                let parts = by_category(row.predicted, measured);
                parts.into_iter().map(|(category, [predicted, measured])| {
                    line(category.as_str(), predicted, Some(measured))
                })
            }));
            lines
        });
        csv_table::write(out, look, &titles, rows)
    }

    fn markdown(&self, out: &mut dyn io::Write, _look: &Look) -> io::Result<()> {
        let [plan, measured] = [self.plan, self.measured].map(|side| markdown::escaped(side.name));
        writeln!(
            out,
            "**{}**, {plan} against {measured}{}\n",
            markdown::escaped(&self.heading()),
            self.which()
        )?;
        let row = |row: &Row<'_>| {
            let (measured, off) = row.told();
            vec![markdown::escaped(&row.name), row.predicted.total.to_string(), measured, off]
        };
        let rows: Vec<Vec<String>> = self.rows.iter().map(row).collect();
        let columns = [Text("phase"), Figures("predicted"), Figures("measured"), Figures("difference")];
        markdown::table(out, &columns, &rows)?;
        if let Some((row, measured)) = self.peak() {
            writeln!(out, "\nAt the peak, in {}:\n", markdown::escaped(&row.name))?;
            let cells = |(category, [predicted, measured]): (Category, [Bytes; 2])| {
                let cells = [predicted.to_string(), measured.to_string(), plus(measured.minus(predicted))];
                std::iter::once(category.to_string()).chain(cells).collect()
            };
            let rows: Vec<Vec<String>> =
                by_category(row.predicted, measured).into_iter().map(cells).collect();
            let columns =
                [Text("category"), Figures("predicted"), Figures("measured"), Figures("difference")];
            markdown::table(out, &columns, &rows)?;
        }
        writeln!(out)?;
        let part = |part: Part| vec![part.name.to_owned(), part.told(), part.why.to_owned()];
        let rows: Vec<Vec<String>> = self.bridge().into_iter().map(part).collect();
        markdown::table(out, &[Text("part"), Figures("bytes"), Text("")], &rows)?;
        writeln!(out)?;
        for rule in &self.rules {
            let holds = if rule.holds { "Holds" } else { "Broken" };
            writeln!(out, "- {holds}: {}", markdown::escaped(&rule.rule))?;
        }
        for note in self.notes().into_iter().chain(self.judgement().map(str::to_owned)) {
            writeln!(out, "\n{}", markdown::escaped(&note))?;
        }
        Ok(())
    }
}
