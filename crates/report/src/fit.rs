//! The report of `fit`: whether a step fits a card, the largest micro-batch and length with which it does, and the same for
//! what could be changed of it.

use crate::figures::{added_time, signed_seconds, spare_or_short};
use crate::markdown::Column::{Figures, Text};
use crate::plan::{assumptions, assumptions_in_markdown, grouped};
use crate::table::{Cell, Column, Table, clip, entry, prose};
use crate::trade::{Judgement, Offloaded, front};
use crate::{
    Look, OffloadRule, Origins, PlannedOom, Report, Reservation, csv_table, markdown, verdict, write_json,
};
use anstyle::Style;
use peakledger_plan::catalogue::Card;
use peakledger_plan::{Fit, Largest, Limit, Plan, TheoreticalTime};
use serde::Serialize;
use std::io;
use unicode_width::UnicodeWidthStr;

/// The name of the row that changes nothing.
pub const AS_GIVEN: &str = "as given";

/// What fits of a step, and of what could be changed of it.
#[derive(Debug)]
pub struct FitReport<'a> {
    /// What the user calls the model.
    pub name: &'a str,
    /// The step as given.
    pub plan: &'a Plan,
    /// The card.
    pub card: &'a Card,
    /// What fits of the step as given.
    pub fit: &'a Fit,
    /// What the caching allocator reserves for the step as given.
    pub reservation: Option<&'a Reservation>,
    /// What could be changed of it.
    pub rows: &'a [FitRow],
    /// What could not be planned: a name, and why.
    pub left_out: &'a [(String, String)],
    /// The fewest GPUs that share the step out so that it fits, where it is shared out.
    pub fewest_gpus: Option<u32>,
    /// When an offload is worth it.
    pub offload_rule: OffloadRule,
    /// Where the options came from, if configs were read.
    pub origins: Option<&'a Origins>,
}

/// A step with some options changed.
#[derive(Debug)]
pub struct FitRow {
    /// What it is called.
    pub name: String,
    /// The options that are changed.
    pub options: String,
    /// Whether it is several of the other rows at once.
    pub combined: bool,
    /// What fits of it.
    pub fit: Fit,
}

/// A row of the table: the step as given, or a change of it.
struct Line<'a> {
    name: &'a str,
    options: &'a str,
    fit: &'a Fit,
    same_training: bool,
    /// How much longer it takes than the step as given, in picoseconds, where the card's rates are known.
    added: Option<i128>,
    /// Whether it is worth its copies, where it moves more to the host than the step as given does.
    offload: Option<Offloaded>,
    /// Whether no other line takes no more memory and no more time.
    is_on_front: bool,
}

impl Line<'_> {
    fn answer(&self) -> &'static str {
        if self.fit.verdict.fits() { "yes" } else { "no" }
    }

    fn headroom(&self) -> String {
        spare_or_short(self.fit.verdict.headroom())
    }

    /// `+68.80 ms`.
    fn added(&self) -> String {
        self.added.map(added_time).unwrap_or_default()
    }
}

/// An amount in few words: `none`, `12`, `all 2048` of the model's positions, `≥ 65536` where more is not looked for.
fn amount(largest: Largest, look: &Look) -> String {
    match (largest.amount, largest.limit) {
        (None, _) => "none".to_owned(),
        (Some(amount), Limit::Card) => amount.to_string(),
        (Some(amount), Limit::Model) => format!("all {amount}"),
        (Some(amount), Limit::Search) => format!("{} {amount}", if look.ascii { ">=" } else { "≥" }),
    }
}

/// An amount in a sentence.
fn at_most(largest: Largest, one: &str, many: &str) -> String {
    let Some(amount) = largest.amount else {
        return format!("none, not even 1 {one}");
    };
    let unit = if amount == 1 { one } else { many };
    let limit = match largest.limit {
        Limit::Card => "",
        Limit::Model => ", the model's limit",
        Limit::Search => ", and more is not looked for",
    };
    format!("{amount} {unit}{limit}")
}

/// What is said of an order.
const CHEAPEST_FIRST: &str = ", those first that cost the least time in theory";

/// What is said of the front.
const PARETO: &str = "memory against time: no other of these takes no more of both";

/// What is said of every largest amount.
const NEXT_TO_NOTHING: &str =
    "at the largest batch or length next to nothing is to spare, also for what is not counted";

impl FitReport<'_> {
    fn lines(&self) -> impl Iterator<Item = Line<'_>> {
        let given = Line {
            name: AS_GIVEN,
            options: "",
            fit: self.fit,
            same_training: true,
            added: None,
            offload: None,
            is_on_front: false,
        };
        let changed = self.rows.iter().map(|row| Line {
            name: &row.name,
            options: &row.options,
            fit: &row.fit,
            same_training: row.fit.trains_as(self.fit),
            added: self.added(row),
            offload: self.offload_rule.judge(
                &row.fit,
                self.fit,
                self.time(&row.fit).zip(self.time(self.fit)),
            ),
            is_on_front: false,
        });
        let mut lines: Vec<Line<'_>> = std::iter::once(given).chain(changed).collect();
        let known = self.time(self.fit).map(|_| 0);
        let trade = |line: &Line<'_>| {
            let added = if line.name == AS_GIVEN { known } else { line.added };
            Some((line.fit.verdict.needed.get(), added?))
        };
        let front = front(&lines.iter().map(trade).collect::<Vec<_>>());
        lines.iter_mut().zip(front).for_each(|(line, is_on_front)| line.is_on_front = is_on_front);
        lines.into_iter()
    }

    /// The least time of a step, where the card's rates are known.
    fn time(&self, fit: &Fit) -> Option<TheoreticalTime> {
        TheoreticalTime::of(&fit.costs, self.card.speeds.as_ref()?)
    }

    /// How much longer a changed step takes than the step as given.
    fn added(&self, row: &FitRow) -> Option<i128> {
        Some(self.time(&row.fit)?.step.minus(self.time(self.fit)?.step))
    }

    fn verdict_line(&self) -> String {
        match self.reservation {
            Some(reservation) => {
                let phase = |out: &PlannedOom| Some(out.phase(self.plan)?.phase.to_string());
                verdict::of_reserved(self.plan, self.card, self.fit.verdict, reservation, phase)
            }
            None => verdict::sentence(self.plan, self.card, self.fit.verdict, self.fit.device_peak),
        }
    }

    /// The largest amounts of the step as given.
    fn largest_lines(&self) -> [String; 2] {
        let fit = self.fit;
        [
            format!(
                "largest micro-batch at {} tokens: {}",
                fit.seq_len,
                at_most(fit.micro_batch, "sequence", "sequences")
            ),
            format!(
                "longest sequence at a micro-batch of {}: {}",
                fit.options.micro_batch_size,
                at_most(fit.length, "token", "tokens")
            ),
        ]
    }

    /// Where the step does not fit: the changes with which it does, in a sentence, or the one that comes closest; and whether
    /// one does.
    fn way_out(&self, look: &Look, name: impl Fn(&str) -> String) -> Option<(String, bool)> {
        if self.fit.verdict.fits() {
            return None;
        }
        let said =
            |row: &FitRow| format!("{} ({})", name(&row.name), spare_or_short(row.fit.verdict.headroom()));
        let fitting = |combined| -> Vec<String> {
            let rows = self.rows.iter().filter(|row| row.combined == combined && row.fit.verdict.fits());
            let mut rows: Vec<&FitRow> = rows.collect();
            rows.sort_by_key(|row| self.added(row)); // in the order of the list where nothing is known
            rows.into_iter().map(said).collect()
        };
        for (combined, opening) in
            [(false, "it fits with"), (true, "no single change makes it fit; it fits with")]
        {
            if let Some(names) = enumerated(fitting(combined), look) {
                let order = if self.costs_are_known() { CHEAPEST_FIRST } else { "" };
                return Some((format!("{opening} {names}{order}"), true));
            }
        }
        // of those that are as close, the one that comes first
        let closest = self.rows.iter().rev().max_by_key(|row| row.fit.verdict.headroom())?;
        Some((format!("no change that was tried makes it fit; the closest is {}", said(closest)), false))
    }

    /// Whether there is a theoretical time for every row.
    fn costs_are_known(&self) -> bool {
        self.rows.iter().all(|row| self.added(row).is_some())
    }

    /// What was not tried and why.
    fn left_out_lines<'b>(&'b self) -> impl Iterator<Item = String> + 'b {
        self.left_out.iter().map(|(name, cause)| format!("{name} is left out: {cause}"))
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

    /// What the rule says of each offload.
    fn judged_lines(&self) -> impl Iterator<Item = String> {
        self.lines().filter_map(|line| Some(format!("{}: {}", line.name, line.offload?.sentence())))
    }

    /// `fewest GPUs at these options: 12`.
    fn fewest_line(&self) -> Option<String> {
        self.fewest_gpus.map(|gpus| format!("fewest GPUs with these options: {gpus}"))
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

/// Some names in a sentence: `a, b and c`; nothing where there are none.
fn enumerated(mut names: Vec<String>, look: &Look) -> Option<String> {
    let more = names.split_off(look.shown(names.len()));
    if !more.is_empty() {
        names.push(format!("{} more", more.len()));
    }
    let last = names.pop()?;
    Some(if names.is_empty() { last } else { format!("{} and {last}", names.join(", ")) })
}

impl Report for FitReport<'_> {
    fn table(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        let text = |out: &mut dyn io::Write, style, text: &str| prose(out, look, style, &look.text(text));
        text(out, look.verdict(self.fit.verdict.fits()), &self.verdict_line())?;
        if let Some((line, fits)) = self.way_out(look, |name| look.name(name).into_owned()) {
            text(out, look.verdict(fits), &line)?;
        }
        for line in self.largest_lines().into_iter().chain(self.fewest_line()) {
            text(out, look.bold(), &line)?;
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
        text(out, look.faint(), NEXT_TO_NOTHING)?;
        for line in self.plan.not_counted(self.reservation.is_some()) {
            entry(out, look, look.faint(), "not counted: ", &look.text(line))?;
        }
        Ok(())
    }

    fn json(&self, out: &mut dyn io::Write) -> io::Result<()> {
        write_json(out, &FitJson::of(self))
    }

    fn csv(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        let titles = [
            "name",
            "options",
            "same_training",
            "device_peak_bytes",
            "fits",
            "headroom_bytes",
            "largest_micro_batch",
            "micro_batch_limited_by",
            "largest_seq_len",
            "seq_len_limited_by",
            "added_theoretical_seconds",
            "pareto",
            "offload",
        ];
        let number = |amount: Option<u64>| amount.map(|amount| amount.to_string()).unwrap_or_default();
        let row = |line: Line<'_>| {
            let fit = line.fit;
            vec![
                line.name.to_owned(),
                line.options.to_owned(),
                line.same_training.to_string(),
                fit.device_peak.get().to_string(),
                fit.verdict.fits().to_string(),
                fit.verdict.headroom().to_string(),
                number(fit.micro_batch.amount),
                fit.micro_batch.limit.as_str().to_owned(),
                number(fit.length.amount),
                fit.length.limit.as_str().to_owned(),
                line.added.map(|added| signed_seconds(added).to_string()).unwrap_or_default(),
                line.is_on_front.to_string(),
                line.offload.map(|offload| offload.judgement.as_str().to_owned()).unwrap_or_default(),
            ]
        };
        csv_table::write(out, look, &titles, self.lines().map(row))
    }

    fn markdown(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        writeln!(out, "**{}**\n", markdown::escaped(&self.verdict_line()))?;
        if let Some((line, _)) = self.way_out(look, markdown::escaped) {
            writeln!(out, "{line}\n")?;
        }
        for line in self.largest_lines().into_iter().chain(self.fewest_line()) {
            writeln!(out, "- {line}")?;
        }
        writeln!(out)?;
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
        for line in self.judged_lines().chain(self.left_out_lines()) {
            writeln!(out, "{}\n", markdown::escaped(&line))?;
        }
        writeln!(out, "{NEXT_TO_NOTHING}")?;
        for line in self.plan.not_counted(self.reservation.is_some()) {
            writeln!(out, "Not counted: {}", markdown::escaped(line))?;
        }
        Ok(())
    }
}

#[derive(Serialize)]
struct FitJson<'a> {
    model: &'a str,
    parameters: u64,
    gpu: &'a str,
    capacity_bytes: u64,
    outside_bytes: u64,
    micro_batch_size: u64,
    seq_len: u64,
    gradient_accumulation_steps: u32,
    /// The fewest GPUs that share the step out so that it fits; null where it is not shared out, or where none do.
    fewest_gpus: Option<u32>,
    rows: Vec<RowJson<'a>>,
    left_out: Vec<LeftOutJson<'a>>,
    not_counted: Vec<&'static str>,
    /// Where the options came from, if configs were read.
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<&'a Origins>,
}

#[derive(Serialize)]
struct RowJson<'a> {
    name: &'a str,
    options: &'a str,
    same_training: bool,
    device_peak_bytes: u64,
    fits: bool,
    headroom_bytes: i128,
    largest_micro_batch: Option<u64>,
    micro_batch_limited_by: &'static str,
    largest_seq_len: Option<u64>,
    seq_len_limited_by: &'static str,
    /// How much longer a step takes than as given, by the card's peak rates; null where they are not known.
    added_theoretical_seconds: Option<f64>,
    /// Whether no other row takes no more memory and no more time.
    pareto: bool,
    /// What the rule says of an offload; null where nothing more goes to the host.
    offload: Option<Judgement>,
}

#[derive(Serialize)]
struct LeftOutJson<'a> {
    name: &'a str,
    cause: &'a str,
}

impl<'a> FitJson<'a> {
    fn of(report: &'a FitReport<'_>) -> FitJson<'a> {
        let row = |line: Line<'a>| RowJson {
            name: line.name,
            options: line.options,
            same_training: line.same_training,
            device_peak_bytes: line.fit.device_peak.get(),
            fits: line.fit.verdict.fits(),
            headroom_bytes: line.fit.verdict.headroom(),
            largest_micro_batch: line.fit.micro_batch.amount,
            micro_batch_limited_by: line.fit.micro_batch.limit.as_str(),
            largest_seq_len: line.fit.length.amount,
            seq_len_limited_by: line.fit.length.limit.as_str(),
            added_theoretical_seconds: line.added.map(signed_seconds),
            pareto: line.is_on_front,
            offload: line.offload.map(|offload| offload.judgement),
        };
        FitJson {
            model: report.name,
            parameters: report.plan.parameters,
            gpu: &report.card.name,
            capacity_bytes: report.card.total.get(),
            outside_bytes: report.plan.outside(Some(report.card)).get(),
            micro_batch_size: report.fit.options.micro_batch_size,
            seq_len: report.fit.seq_len,
            gradient_accumulation_steps: report.fit.options.gradient_accumulation_steps,
            fewest_gpus: report.fewest_gpus,
            rows: report.lines().map(row).collect(),
            left_out: report.left_out.iter().map(|(name, cause)| LeftOutJson { name, cause }).collect(),
            not_counted: report.plan.not_counted(report.reservation.is_some()),
            from: report.origins,
        }
    }
}
