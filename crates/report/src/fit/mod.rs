//! The report of `fit`: whether a step fits a card, the largest micro-batch and length with which it does, and the same for
//! what could be changed of it. What is said of them is here; each way of writing it has its file.

mod machine;
mod markdown;
mod table;

use crate::figures::{added_time, spare_or_too_much};
use crate::trade::{Offloaded, front};
use crate::{Look, OffloadRule, Origins, PlannedOom, Report, Reservation, times, verdict};
use peakledger_plan::catalogue::Card;
use peakledger_plan::options::Options;
use peakledger_plan::{FewestGpus, Fit, Largest, Limit, Plan, Unknown};
use std::io;

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
    pub fewest_gpus: Option<FewestGpus>,
    /// When an offload is worth it.
    pub offload_rule: OffloadRule,
    /// The line that plans the step as given.
    pub command: &'a str,
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
    /// The line that plans it.
    pub command: String,
    /// Whether it is several of the other rows at once.
    pub combined: bool,
    /// What fits of it.
    pub fit: Fit,
}

/// A row of the table: the step as given, or a change of it.
struct Line<'a> {
    name: &'a str,
    options: &'a str,
    command: &'a str,
    fit: &'a Fit,
    same_training: bool,
    /// How much longer it takes than the step as given, in picoseconds, where the card's rates are known.
    added: Option<i128>,
    /// Whether it is worth its copies, where it moves more to the host than the same step without its offload does.
    offload: Option<Offloaded>,
    /// Whether no other line takes no more memory and no more time.
    is_on_front: bool,
}

/// What is said first where the step does not fit.
struct WayOut<'a> {
    line: String,
    /// The command that plans the change that is named first.
    command: &'a str,
    /// Whether it fits so.
    fits: bool,
}

impl Line<'_> {
    fn answer(&self) -> &'static str {
        verdict::short_answer(self.fit.verdict)
    }

    fn headroom(&self) -> String {
        spare_or_too_much(self.fit.verdict.headroom())
    }

    /// `+68.80 ms`.
    fn added(&self) -> String {
        self.added.map(added_time).unwrap_or_default()
    }
}

/// An amount in a sentence. Where ranks share a sequence evenly, the next one is a few more.
fn at_most(largest: Largest, one: &str, many: &str) -> String {
    let Some(amount) = largest.amount else {
        return match largest.step {
            1 => format!("none, not even 1 {one}"),
            step => format!("none, not even {step} {many}"),
        };
    };
    let unit = if amount == 1 { one } else { many };
    let limit = match largest.limit {
        Limit::Card => format!("; {} do not fit", amount.saturating_add(largest.step)),
        Limit::Reserved { up_to } => format!(
            "; {} do not fit, of more some may again, up to {up_to}: what the allocator reserves does not grow evenly",
            amount.saturating_add(largest.step)
        ),
        Limit::Model => ", the model's limit".to_owned(),
        Limit::Search => ", and more is not looked for".to_owned(),
    };
    format!("{amount} {unit}{limit}")
}

/// What is said of an order.
const CHEAPEST_FIRST: &str = ", those first that cost the least time in theory";

/// What is said of the front.
const PARETO: &str = "memory against time: no other of these takes no more of both";

/// What is said of every largest amount.
const NEXT_TO_NOTHING: &str = "each largest is where one more does not fit; at it next to nothing is to spare, also for what is not \
                               counted, and at an edge less than a CUDA context may take";

impl FitReport<'_> {
    fn lines(&self) -> impl Iterator<Item = Line<'_>> {
        let given = Line {
            name: AS_GIVEN,
            options: "",
            command: self.command,
            fit: self.fit,
            same_training: true,
            added: None,
            offload: None,
            is_on_front: false,
        };
        let changed = self.rows.iter().map(|row| Line {
            name: &row.name,
            options: &row.options,
            command: &row.command,
            fit: &row.fit,
            same_training: row.fit.trains_as(self.fit),
            added: self.added(row),
            offload: self
                .without_offload(&row.fit)
                .and_then(|before| self.offload_rule.judge(&row.fit, before)),
            is_on_front: false,
        });
        let mut lines: Vec<Line<'_>> = std::iter::once(given).chain(changed).collect();
        let known = self.fit.slowest.time.ok().map(|_| 0);
        let trade = |line: &Line<'_>| {
            let added = if line.name == AS_GIVEN { known } else { line.added };
            Some((line.fit.verdict.needed.get(), added?))
        };
        let front = front(&lines.iter().map(trade).collect::<Vec<_>>());
        lines.iter_mut().zip(front).for_each(|(line, is_on_front)| line.is_on_front = is_on_front);
        lines.into_iter()
    }

    /// The same step that offloads what the step as given does: what else a change makes of it is not the offload's.
    fn without_offload(&self, fit: &Fit) -> Option<&Fit> {
        let Options { offload, offload_layers, offload_prefetch, .. } = self.fit.options;
        let without = Options { offload, offload_layers, offload_prefetch, ..fit.options.clone() };
        std::iter::once(self.fit).chain(self.rows.iter().map(|row| &row.fit)).find(|it| it.options == without)
    }

    /// How much longer a changed step takes than the step as given.
    fn added(&self, row: &FitRow) -> Option<i128> {
        Some(row.fit.slowest.time.ok()?.step().minus(self.fit.slowest.time.ok()?.step()))
    }

    /// Which rate is not known where steps have no theoretical time, each once.
    fn no_time_lines(&self) -> Vec<String> {
        let times = self.rows.iter().map(|row| (row.name.as_str(), row.fit.slowest.time));
        let times = std::iter::once((AS_GIVEN, self.fit.slowest.time)).chain(times);
        let said = |(unknown, names): (Unknown, Vec<&str>)| {
            let why = times::not_known(unknown, self.card)?;
            // what is added to a step whose own time is not known is not known either
            let whose = match names.first() {
                Some(&AS_GIVEN) => String::new(),
                _ => format!(" for {}", names.join(", ")),
            };
            Some(format!("there is no theoretical cost{whose}: {why}"))
        };
        times::lacking(times).into_iter().filter_map(said).collect()
    }

    /// What must be known beside the verdict.
    fn caveats(&self) -> Vec<String> {
        verdict::caveats(self.plan, Some(self.card), Some(self.fit.verdict), self.origins)
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

    /// Where the step does not fit: the changes with which it does, in a sentence, or the one that comes closest.
    fn way_out(&self, look: &Look, name: impl Fn(&str) -> String) -> Option<WayOut<'_>> {
        if self.fit.verdict.fits() {
            return None;
        }
        let said = |row: &FitRow| format!("{} ({})", name(&row.name), verdict::headroom(row.fit.verdict));
        let fitting = |combined| -> Vec<&FitRow> {
            let rows = self.rows.iter().filter(|row| row.combined == combined && row.fit.verdict.fits());
            let mut rows: Vec<&FitRow> = rows.collect();
            // in the order of the list where nothing is known of their time
            rows.sort_by_key(|row| (row.fit.verdict.is_on_the_edge(), self.added(row)));
            rows
        };
        for (combined, opening) in
            [(false, "it fits with"), (true, "no single change makes it fit; it fits with")]
        {
            let rows = fitting(combined);
            let are_ordered = rows.len() > 1 && self.costs_are_known();
            let names = enumerated(rows.iter().copied().map(said).collect(), look);
            if let Some((names, first)) = names.zip(rows.first()) {
                let order = if are_ordered { CHEAPEST_FIRST } else { "" };
                return Some(WayOut {
                    line: format!("{opening} {names}{order}"),
                    command: &first.command,
                    fits: true,
                });
            }
        }
        // of those that are as close, the one that comes first
        let closest = self.rows.iter().rev().max_by_key(|row| row.fit.verdict.headroom())?;
        Some(WayOut {
            line: format!("no change that was tried makes it fit; the closest is {}", said(closest)),
            command: &closest.command,
            fits: false,
        })
    }

    /// Whether there is a theoretical time for every row.
    fn costs_are_known(&self) -> bool {
        self.rows.iter().all(|row| self.added(row).is_some())
    }

    /// What was not tried and why.
    fn left_out_lines<'b>(&'b self) -> impl Iterator<Item = String> + 'b {
        self.left_out.iter().map(|(name, cause)| format!("{name} is left out: {cause}"))
    }

    /// What the rule says of each offload.
    fn judged_lines(&self) -> impl Iterator<Item = String> {
        self.lines().filter_map(|line| Some(format!("{}: {}", line.name, line.offload?.sentence())))
    }

    /// `fewest GPUs with these options: 18; in whole nodes 24, on 3 of 8`: nobody rents a part of a node beside a whole one.
    fn fewest_line(&self) -> Option<String> {
        let (fewest, of_node) = (self.fewest_gpus?, self.plan.options.parallel.gpus_per_node.max(1));
        let nodes = match fewest.in_whole_nodes {
            None => String::new(),
            Some(whole) if whole == fewest.gpus => format!(", on {} nodes of {of_node}", whole / of_node),
            Some(whole) => format!("; in whole nodes {whole}, on {} of {of_node}", whole / of_node),
        };
        Some(format!("fewest GPUs with these options: {}{nodes}", fewest.gpus))
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
        self.write_table(out, look)
    }

    fn json(&self, out: &mut dyn io::Write) -> io::Result<()> {
        self.write_json(out)
    }

    fn csv(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        self.write_csv(out, look)
    }

    fn markdown(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        self.write_markdown(out, look)
    }
}
