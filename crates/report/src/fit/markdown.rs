//! What fits, in markdown.

use super::table::amount;
use super::{FitReport, Line, NEXT_TO_NOTHING, WayOut};
use crate::markdown::Column::{Figures, Text};
use crate::plan::assumptions_in_markdown;
use crate::{Look, markdown};
use std::io;

impl FitReport<'_> {
    pub(super) fn write_markdown(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        writeln!(out, "**{}**\n", markdown::escaped(&self.verdict_line()))?;
        if let Some(WayOut { line, command, .. }) = self.way_out(look, markdown::escaped) {
            writeln!(out, "{line}\n")?;
            command.lines().try_for_each(|line| writeln!(out, "    {line}"))?;
            writeln!(out)?;
        }
        for line in self.largest_lines().into_iter().chain(self.fewest_line()) {
            writeln!(out, "- {line}")?;
        }
        writeln!(out)?;
        for line in self.caveats() {
            writeln!(out, "Note: {}\n", markdown::escaped(&line))?;
        }
        assumptions_in_markdown(self.plan, self.origins, out)?;
        writeln!(out)?;
        let columns = [
            Text("step"),
            Text("options"),
            Text("training"),
            Figures("device peak"),
            Text("fits"),
            Figures("max batch"),
            Figures("max tokens"),
            Figures("theoretical cost"),
            Text("pareto"),
        ];
        let row = |line: Line<'_>| {
            vec![
                markdown::escaped(line.name),
                markdown::escaped(line.options),
                if line.same_training { "the same" } else { "another" }.to_owned(),
                line.fit.device_peak.to_string(),
                format!("{}: {}", line.answer(), line.headroom()),
                amount(line.fit.micro_batch, look),
                amount(line.fit.length, look),
                line.added(),
                if line.is_on_front { "yes" } else { "" }.to_owned(),
            ]
        };
        markdown::table(out, &columns, &self.lines().map(row).collect::<Vec<_>>())?;
        writeln!(out)?;
        for line in self.judged_lines().chain(self.left_out_lines()).chain(self.no_time_lines()) {
            writeln!(out, "{}\n", markdown::escaped(&line))?;
        }
        writeln!(out, "{NEXT_TO_NOTHING}")?;
        for line in self.plan.not_counted(self.reservation.is_some()) {
            writeln!(out, "Not counted: {}", markdown::escaped(line))?;
        }
        Ok(())
    }
}
