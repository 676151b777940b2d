//! What fits, for a terminal.

use super::{AS_GIVEN, FitReport, Line, NEXT_TO_NOTHING, PARETO, WayOut};
use crate::figures::grouped;
use crate::plan::assumptions;
use crate::table::{Cell, Column, Table, clip, entry, prose};
use crate::{Look, command_line};
use anstyle::Style;
use peakledger_plan::{Largest, Limit};
use std::io;
use unicode_width::UnicodeWidthStr;

/// An amount in few words: `none`, `12`, `all 2048` of the model's positions, `≥ 65536` where more is not looked for.
pub(super) fn amount(largest: Largest, look: &Look) -> String {
    match (largest.amount, largest.limit) {
        (None, _) => "none".to_owned(),
        (Some(amount), Limit::Card | Limit::Reserved { .. }) => amount.to_string(),
        (Some(amount), Limit::Model) => format!("all {amount}"),
        (Some(amount), Limit::Search) => format!("{} {amount}", if look.ascii { ">=" } else { "≥" }),
    }
}

impl FitReport<'_> {
    pub(super) fn write_table(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        let text = |out: &mut dyn io::Write, style, text: &str| prose(out, look, style, &look.text(text));
        text(out, look.verdict(self.fit.verdict.fits()), &self.verdict_line())?;
        if let Some(WayOut { line, command, fits }) = self.way_out(look, |name| look.name(name).into_owned())
        {
            text(out, look.verdict(fits), &line)?;
            command_line::write(out, look, command)?;
        }
        for line in self.largest_lines().into_iter().chain(self.fewest_line()) {
            text(out, look.bold(), &line)?;
        }
        for line in self.caveats() {
            entry(out, look, Style::new(), "note: ", &look.text(&line))?;
        }
        let parameters = grouped(self.plan.parameters);
        text(out, look.faint(), &format!("{}: {parameters} parameters", look.name(self.name)))?;
        writeln!(out)?;
        assumptions(self.plan, self.origins, out, look)?;
        writeln!(out)?;
        self.amounts(look).write(out, look)?;
        self.trades(out, look)?;
        self.changes(out, look)?;
        writeln!(out)?;
        for line in self.left_out_lines() {
            text(out, look.faint(), &line)?;
        }
        for line in self.no_time_lines() {
            text(out, look.faint(), &line)?;
        }
        text(out, look.faint(), NEXT_TO_NOTHING)?;
        for line in self.plan.not_counted(self.reservation.is_some()) {
            entry(out, look, look.faint(), "not counted: ", &look.text(line))?;
        }
        Ok(())
    }

    fn amounts(&self, look: &Look) -> Table {
        let mut table = Table::new(vec![
            Column::left("").cut(),
            Column::left("fits"),
            Column::left("").optional(),
            Column::right("device peak").optional(),
            Column::right("max batch"),
            Column::right("max tokens"),
            Column::right("theoretical cost").optional(),
        ]);
        for line in self.lines() {
            let style = if line.name == AS_GIVEN { look.bold() } else { Style::new() };
            let verdict = look.verdict(line.fit.verdict.fits());
            table.row(vec![
                Cell::styled(look.name(line.name), style),
                Cell::styled(line.answer(), verdict),
                Cell::styled(line.headroom(), verdict),
                Cell::styled(line.fit.device_peak.to_string(), style),
                Cell::styled(amount(line.fit.micro_batch, look), style),
                Cell::styled(amount(line.fit.length, look), style),
                Cell::plain(line.added()),
            ]);
        }
        table
    }

    /// Memory against time: the lines that no other one beats, in the order of their time.
    fn trades(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        let mut best: Vec<Line<'_>> = self.lines().filter(|line| line.is_on_front).collect();
        if best.len() > 1 {
            best.sort_by_key(|line| line.added.unwrap_or_default());
            writeln!(out)?;
            prose(out, look, look.bold(), PARETO)?;
            let mut table = Table::new(vec![
                Column::left("").cut(),
                Column::right("takes"),
                Column::right("theoretical cost"),
                Column::left("fits"),
            ]);
            for line in &best {
                table.row(vec![
                    Cell::plain(look.name(line.name)),
                    Cell::plain(line.fit.verdict.needed.to_string()),
                    Cell::plain(line.added()),
                    Cell::styled(line.answer(), look.verdict(line.fit.verdict.fits())),
                ]);
            }
            table.write(out, look)?;
        }
        let judged: Vec<String> = self.judged_lines().collect();
        if !judged.is_empty() {
            writeln!(out)?;
        }
        judged.iter().try_for_each(|line| prose(out, look, Style::new(), &look.text(line)))
    }

    /// What the rows change, those apart that change more than memory.
    fn changes(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        let name = |line: &Line<'_>| clip(&look.name(line.name), look.width / 2, look);
        let changed = || self.lines().filter(|line| line.name != AS_GIVEN);
        let widest = changed().map(|line| name(&line).width()).max().unwrap_or_default();
        for (same, heading) in [
            (true, "these keep the training as it is, up to rounding"),
            (false, "these change the training itself, not only its memory"),
        ] {
            let mut lines = changed().filter(|line| line.same_training == same).peekable();
            if lines.peek().is_some() {
                writeln!(out)?;
                prose(out, look, look.bold(), heading)?;
            }
            for line in lines {
                let name = name(&line);
                let blank = widest - name.width() + 2;
                entry(out, look, Style::new(), &format!("{name}{:blank$}", ""), &look.name(line.options))?;
            }
        }
        Ok(())
    }
}
