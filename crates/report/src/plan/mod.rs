//! The report of `plan`: what was assumed, each phase of the step, where the peak is and who forms it, whether it fits, and
//! what is not counted.

mod candidates;
mod costs;
mod json;
mod ranks;
mod ranks_json;
mod rows;

use crate::figures::{and_more, percent};
use crate::html::Page;
use crate::markdown::Column::{Figures, Text};
use crate::table::{Cell, Column, Table, entry, prose};
use crate::{Look, Origins, PlannedOom, Report, Reservation, csv_table, markdown, plot, verdict, write_json};
use anstyle::Style;
use peakledger_core::{Bytes, Category, Ledger};
use peakledger_plan::catalogue::Card;
use peakledger_plan::{At, Contributor, Plan, PlannedPhase, RankCosts, Step, StepPlan, Verdict};
pub use ranks::{RankFigures, RanksReport};
pub(crate) use rows::id;
use rows::phase_rows;
use std::io;

/// A planned step, the card it is to run on, and other ways to run it.
#[derive(Debug)]
pub struct PlanReport<'a> {
    /// What the user calls the model.
    pub name: &'a str,
    /// The plan.
    pub plan: &'a Plan,
    /// The steps to show; nothing for both.
    pub step: Option<Step>,
    /// The card.
    pub card: Option<&'a Card>,
    /// Plans with other options, by name.
    pub candidates: &'a [(String, Plan)],
    /// Usual candidates that could not be planned: a name, and why.
    pub left_out: &'a [(String, String)],
    /// The other ranks, where there is more than one.
    pub ranks: Option<RanksReport<'a>>,
    /// What the step costs the rank that takes longest: of the plan, then of each candidate.
    pub slowest: &'a [RankCosts],
    /// What the caching allocator reserves: for the plan, then for each candidate. Empty where that is not looked at.
    pub reservations: &'a [Reservation],
    /// Where the options came from, if configs were read.
    pub origins: Option<&'a Origins>,
}

impl PlanReport<'_> {
    fn peak(&self) -> At<'_> {
        self.plan.peak_in(self.step)
    }

    fn steps(&self) -> Vec<&StepPlan> {
        match self.step {
            Some(step) => vec![self.plan.step(step)],
            None => vec![&self.plan.first, &self.plan.steady],
        }
    }

    /// Whether the step fits the card.
    pub fn verdict(&self) -> Option<Verdict> {
        self.verdict_of(self.plan)
    }

    /// Whether the plan, or a candidate's, fits the card.
    pub(crate) fn verdict_of(&self, plan: &Plan) -> Option<Verdict> {
        self.card.map(|card| match self.reservation_of(plan) {
            Some(reservation) => reservation.verdict(plan, card),
            None => Verdict::of(plan, card, self.step),
        })
    }

    /// What the caching allocator reserves for the plan, or for a candidate's.
    pub(crate) fn reservation_of(&self, plan: &Plan) -> Option<&Reservation> {
        self.known_of(self.reservations, plan)
    }

    /// What is known of a plan, or of a candidate's, by things of which the first is the plan's.
    fn known_of<'a, T>(&self, known: &'a [T], plan: &Plan) -> Option<&'a T> {
        let plans = std::iter::once(self.plan).chain(self.candidates.iter().map(|(_, plan)| plan));
        plans.zip(known).find(|(of, _)| std::ptr::eq(*of, plan)).map(|(_, known)| known)
    }

    /// What the figures leave out.
    pub(crate) fn not_counted(&self) -> Vec<&'static str> {
        self.plan.not_counted(self.reservation_of(self.plan).is_some())
    }

    /// `in backward of the steady step`.
    fn whereabouts(&self, at: At<'_>) -> String {
        let phase = id(at.phase, self.plan.options.gradient_accumulation_steps > 1);
        format!("in {phase} of the {} step", at.step.step.as_str())
    }

    /// The verdict in a sentence.
    fn verdict_line(&self) -> Option<String> {
        let (card, verdict) = (self.card?, self.verdict_of(self.plan)?);
        Some(match self.reservation_of(self.plan) {
            Some(reservation) => {
                let several = self.plan.options.gradient_accumulation_steps > 1;
                let phase = |out: &PlannedOom| out.phase(self.plan).map(|phase| rows::id(phase, several));
                verdict::of_reserved(self.plan, card, verdict, reservation, phase)
            }
            None => {
                let device_peak = self.plan.device_peak_in(self.step).phase.device_peak;
                verdict::sentence(self.plan, card, verdict, device_peak)
            }
        })
    }

    /// What must be known beside the verdict.
    pub(crate) fn caveats(&self) -> Vec<String> {
        verdict::caveats(self.plan, self.card, self.verdict_of(self.plan), self.origins)
    }

    /// What is reserved and what that is made of.
    fn reserved_line(&self) -> Option<String> {
        self.reservation_of(self.plan).map(|reservation| reservation.sentence(self.plan))
    }

    /// The largest total on the host in the steps shown.
    fn host_peak(&self) -> Bytes {
        let phases = self.steps().into_iter().flat_map(|step| &step.phases);
        phases.map(|phase| phase.host_peak).max().unwrap_or_default()
    }

    /// What is on the host.
    pub(crate) fn host_line(&self) -> Option<String> {
        let host = self.host_peak();
        (host > Bytes::ZERO).then(|| format!("beside it, up to {host} on the cpu"))
    }

    fn device_line(&self) -> String {
        let at = self.plan.device_peak_in(self.step);
        format!(
            "device peak {} with the batch and kernel memory, {}",
            at.phase.device_peak,
            self.whereabouts(at)
        )
    }
}

impl Report for PlanReport<'_> {
    fn table(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
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

    fn json(&self, out: &mut dyn io::Write) -> io::Result<()> {
        write_json(out, &json::PlanJson::of(self))
    }

    fn csv(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        let mut titles = vec![
            "step",
            "phase",
            "micro_batch",
            "peak_bytes",
            "end_bytes",
            "device_peak_bytes",
            "host_peak_bytes",
        ];
        titles.extend(Category::ALL.map(Category::as_str));
        titles.extend(["is_peak", "module", "op", "flops", "recomputed_flops", "bytes_moved"]);
        titles.extend(["to_host_bytes", "from_host_bytes"]);
        let peak = self.peak().phase;
        let own = self.plan.options.parallel.rank;
        let mut all: Vec<(u32, Step, &[PlannedPhase])> =
            self.steps().into_iter().map(|step| (own, step.step, step.phases.as_slice())).collect();
        titles.extend(self.ranks.iter().flat_map(|_| ["communicated_bytes", "rank"]));
        all.extend(self.phases_of_others());
        let rows = all.into_iter().flat_map(|(rank, step, phases)| {
            phases.iter().map(move |phase| {
                let mut row = vec![
                    step.as_str().to_owned(),
                    phase.phase.to_string(),
                    phase.micro_batch.map(|i| i.to_string()).unwrap_or_default(),
                    phase.peak.get().to_string(),
                    phase.end.get().to_string(),
                    phase.device_peak.get().to_string(),
                    phase.host_peak.get().to_string(),
                ];
                row.extend(Category::ALL.map(|c| phase.by_category.get(c).get().to_string()));
                let is_peak = std::ptr::eq(phase, peak);
                row.extend([is_peak.to_string(), phase.module.clone(), phase.op.to_owned()]);
                let costs = phase.costs;
                let counts = [costs.flops.total(), costs.recomputed.total(), costs.bytes_moved()];
                row.extend(
                    counts
                        .into_iter()
                        .chain([costs.host.to_host, costs.host.from_host])
                        .map(|n| n.to_string()),
                );
                let of_ranks = || [costs.communicated().to_string(), rank.to_string()];
                row.extend(self.ranks.iter().flat_map(|_| of_ranks()));
                row
            })
        });
        csv_table::write(out, look, &titles, rows)
    }

    fn markdown(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
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

    fn page(&self) -> io::Result<Option<Page>> {
        self.html_page().map(Some)
    }
}

impl PlanReport<'_> {
    /// What was not tried and why.
    fn left_out_lines(&self) -> impl Iterator<Item = String> {
        self.left_out.iter().map(|(name, cause)| format!("{name} is left out: {cause}"))
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

/// The same in markdown.
pub(crate) fn assumptions_in_markdown(
    plan: &Plan,
    origins: Option<&Origins>,
    out: &mut dyn io::Write,
) -> io::Result<()> {
    let row = |(topic, value): (&str, String)| vec![markdown::escaped(topic), markdown::escaped(&value)];
    let rows: Vec<Vec<String>> = assumed(plan, origins).map(row).collect();
    markdown::table(out, &[Text("assumed"), Text("")], &rows)
}

/// Topics and what is said of each.
pub(crate) fn assumed(
    plan: &Plan,
    origins: Option<&Origins>,
) -> impl Iterator<Item = (&'static str, String)> {
    let said = origins.map(Origins::lines).unwrap_or_default();
    plan.assumptions().into_iter().map(|assumption| (assumption.topic, assumption.value)).chain(said)
}

/// The op-level ledger of a step, for pictures.
pub(crate) fn ledger_of(plan: &Plan, step: Step) -> io::Result<Ledger> {
    plan.op_ledger(step).map_err(|error| io::Error::other(error.to_string()))
}

/// What is said of the contributors that are not listed.
fn more(contributors: &[Contributor], shown: usize) -> Option<String> {
    let rest = contributors.get(shown..)?;
    let bytes = rest.iter().map(|c| c.bytes.get()).sum(); // part of a total that fits
    and_more(rest.len(), Bytes::new(bytes))
}

/// A number with a comma every three digits.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
