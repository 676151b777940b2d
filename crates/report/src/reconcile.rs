//! The report of `reconcile`: a plan and a measurement side by side, by phase and category, and the rest by name. The plan
//! never saw the measurement, so what they agree on is shown and not fitted.

use crate::figures::{percent, plus, signed};
use crate::markdown::Column::{Figures, Text};
use crate::table::{Cell, Column, Table, entry, prose};
use crate::{Look, Report, csv_table, markdown, write_json};
use anstyle::Style;
use peakledger_core::sweep::PhaseTotal;
use peakledger_core::{Bytes, Category, Ledger, Phase};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io;

/// A ledger, what the user calls it, and what its file says of itself.
#[derive(Clone, Copy, Debug)]
pub struct Side<'a> {
    /// The name.
    pub name: &'a str,
    /// The ledger.
    pub ledger: &'a Ledger,
    /// The note of the file.
    pub note: Option<&'a str>,
}

/// What is known of a measurement beyond its ledger.
#[derive(Clone, Copy, Debug, Default)]
pub struct MeasuredFacts {
    /// Which step of how many the ledger is, where it is of one alone.
    pub step: Option<(usize, usize)>,
    /// The largest sum of blocks in use, and what these blocks have more than their requests rounded up.
    pub tails: Option<(u64, u64)>,
    /// The most bytes that the caching allocator held.
    pub reserved: Option<u64>,
    /// What of the card neither the allocator held nor was free: the CUDA context, and other processes.
    pub outside: Option<u64>,
}

/// How far off a phase may be: either is enough.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tolerance {
    /// Hundredths of a percent of what is measured.
    pub per_myriad: Option<u64>,
    /// Bytes.
    pub bytes: Option<Bytes>,
}

impl Tolerance {
    fn holds(&self, predicted: Bytes, measured: Bytes) -> bool {
        let off = measured.minus(predicted).unsigned_abs();
        let within = |share: u64| off * 10_000 <= u128::from(share) * u128::from(measured.get());
        self.per_myriad.is_some_and(within) || self.bytes.is_some_and(|most| off <= u128::from(most.get()))
    }
}

/// A plan and a measurement.
#[derive(Clone, Debug)]
pub struct ReconcileReport<'a> {
    plan: Side<'a>,
    measured: Side<'a>,
    facts: MeasuredFacts,
    tolerance: Option<Tolerance>,
    /// Steps in the measurement, and which of them is looked at.
    steps: usize,
    step: usize,
    rows: Vec<Row<'a>>,
    rules: Vec<Rule>,
}

/// A phase of the plan, and the same of the measurement, if it has it.
#[derive(Clone, Debug)]
struct Row<'a> {
    name: String,
    predicted: &'a PhaseTotal,
    measured: Option<&'a PhaseTotal>,
}

/// A rule that a measurement has to keep, to be held against a plan.
#[derive(Clone, Debug, Serialize)]
struct Rule {
    holds: bool,
    rule: String,
}

impl<'a> ReconcileReport<'a> {
    /// Holds a plan against a step of a measurement: the last one, unless another is named.
    pub fn of(
        plan: Side<'a>,
        measured: Side<'a>,
        facts: MeasuredFacts,
        step: Option<usize>,
        tolerance: Option<Tolerance>,
    ) -> ReconcileReport<'a> {
        let (rows, at, inside) = rows(plan.ledger, measured.ledger, step);
        let (step, steps) = facts.step.unwrap_or((at, inside));
        let mut report =
            ReconcileReport { plan, measured, facts, tolerance, steps, step, rows, rules: Vec::new() };
        report.rules = report.rules();
        report
    }

    /// How many steps the measurement has.
    pub fn steps(&self) -> usize {
        self.steps
    }

    /// Whether every phase is measured and within the tolerance, and every rule holds.
    pub fn agrees(&self) -> bool {
        let within = |row: &Row<'_>| match (row.measured, self.tolerance) {
            (None, _) => false,
            (Some(_), None) => true,
            (Some(measured), Some(tolerance)) => tolerance.holds(row.predicted.total, measured.total),
        };
        self.compared().all(within) && self.rules.iter().all(|rule| rule.holds)
    }

    /// The phases that a tolerance is for: what a step begins with is the end of the one before.
    fn compared(&self) -> impl Iterator<Item = &Row<'a>> {
        self.rows.iter().filter(|row| row.measured.is_some() || row.name != Phase::Load.to_string())
    }

    /// Rules of conformance: phases are there and in order, and what is allocated is at least what tensors take.
    fn rules(&self) -> Vec<Rule> {
        let missing: Vec<&str> =
            self.compared().filter(|row| row.measured.is_none()).map(|row| row.name.as_str()).collect();
        let order = self.rows.iter().filter_map(|row| row.measured).map(|total| total.moment);
        let moments: Vec<_> = order.collect();
        let in_order = moments.windows(2).all(|pair| matches!(pair, [a, b] if a <= b));
        let parameters = |row: &&Row<'_>| row.predicted.by_category.get(Category::Parameter);
        let too_small =
            self.rows.iter().find(|row| row.measured.is_some_and(|total| total.total < parameters(row)));
        vec![
            Rule {
                holds: missing.is_empty(),
                rule: match missing.as_slice() {
                    [] => "every phase of the plan is measured".to_owned(),
                    missing => format!(
                        "not measured: {} (name them in the program: `with torch.profiler.record_function(\"forward\")`)",
                        missing.join(", ")
                    ),
                },
            },
            Rule { holds: in_order, rule: "the phases are in the plan's order".to_owned() },
            Rule {
                holds: too_small.is_none(),
                rule: match too_small {
                    None => "every phase holds at least the parameters that the plan has there".to_owned(),
                    Some(row) => {
                        format!("{} holds less than the parameters there, {}", row.name, parameters(&row))
                    }
                },
            },
        ]
    }

    /// The phase where most is measured.
    fn peak(&self) -> Option<(&Row<'a>, &'a PhaseTotal)> {
        let measured = self.rows.iter().filter_map(|row| Some((row, row.measured?)));
        measured.rev().max_by_key(|(_, measured)| measured.total)
    }

    /// From what is predicted to what the card holds, each part by its name.
    fn bridge(&self) -> Vec<Part> {
        let Some((row, measured)) = self.peak() else { return Vec::new() };
        let part = |name, bytes: i128, total, why| Part { name, bytes, total, why };
        let of = |bytes: Bytes| i128::from(bytes.get());
        let mut parts = vec![part("predicted", of(row.predicted.total), true, "the plan, at device level")];
        // they are known where most is in use, and nowhere else
        let tails = self.facts.tails.filter(|(at, _)| *at == measured.total.get());
        let tails = tails.map(|(_, tails)| i128::from(tails));
        if let Some(tails) = tails {
            parts.push(part(
                "unsplit tails",
                tails,
                false,
                "blocks that the allocator does not cut to the request",
            ));
        }
        let rest = measured.total.minus(row.predicted.total) - tails.unwrap_or(0);
        parts.push(part("unexplained", rest, false, "what the plan does not know of, or has too much of"));
        parts.push(part("allocated", of(measured.total), true, "measured in use"));
        if let Some(reserved) = self.facts.reserved.map(i128::from) {
            let free = reserved - of(measured.total);
            parts.push(part(
                "reserved beyond",
                free,
                false,
                "what the caching allocator held where it held most",
            ));
            parts.push(part("reserved", reserved, true, "measured, at its own peak"));
            if let Some(outside) = self.facts.outside.map(i128::from) {
                parts.push(part(
                    "context and others",
                    outside,
                    false,
                    "what neither the allocator holds nor is free",
                ));
                parts.push(part("the card", reserved + outside, true, "in use on the device"));
            }
        }
        parts
    }

    fn heading(&self) -> String {
        match self.peak() {
            None => "no phase of the plan is measured".to_owned(),
            Some((_, measured)) if measured.total == Bytes::ZERO => "nothing is measured on a gpu".to_owned(),
            Some((row, measured)) => {
                let off = measured.total.minus(row.predicted.total);
                let (predicted, total) = (row.predicted.total, measured.total);
                format!(
                    "measured {total} in {}, predicted {predicted}: {}",
                    row.name,
                    off_in_words(off, total)
                )
            }
        }
    }

    /// Host memory, which is kept apart, and how categories were told.
    fn notes(&self) -> Vec<String> {
        let [predicted, measured] = [self.plan, self.measured].map(|side| side.ledger.cpu_peak());
        let host = [predicted, measured].iter().any(|bytes| *bytes > Bytes::ZERO);
        let host = host
            .then(|| format!("on the cpu, and no part of it: {predicted} predicted, {measured} measured"));
        host.into_iter().chain(self.measured.note.map(str::to_owned)).collect()
    }

    fn judgement(&self) -> Option<&'static str> {
        self.tolerance
            .map(|_| if self.agrees() { "within the tolerance" } else { "not within the tolerance" })
    }

    fn which(&self) -> String {
        match self.steps {
            0 | 1 => String::new(),
            steps => format!(", step {} of {steps}", self.step),
        }
    }
}

/// A part of the way from the plan to the card.
#[derive(Clone, Debug, Serialize)]
struct Part {
    name: &'static str,
    bytes: i128,
    /// Whether it is a sum of those before it.
    total: bool,
    why: &'static str,
}

impl Part {
    /// A sum as it is, and what is added with its sign.
    fn told(&self) -> String {
        if self.total { signed(self.bytes) } else { plus(self.bytes) }
    }
}

fn off_in_words(off: i128, measured: Bytes) -> String {
    let share = Bytes::new(u64::try_from(off.unsigned_abs()).unwrap_or(u64::MAX));
    format!("{} ({})", plus(off), percent(share, measured))
}

/// The sums of a ledger's phases, by phase and in order.
type ByPhase<'a> = BTreeMap<String, Vec<&'a PhaseTotal>>;

fn by_phase(ledger: &Ledger) -> ByPhase<'_> {
    let mut phases: ByPhase<'_> = BTreeMap::new();
    for (slot, total) in ledger.phases() {
        phases.entry(slot.phase.to_string()).or_default().push(total);
    }
    phases
}

/// How often the measurement has what the plan has once.
fn steps(plan: &ByPhase<'_>, measured: &ByPhase<'_>) -> usize {
    let times = |phase: &Phase| {
        let [once, all] = [plan, measured].map(|phases| phases.get(&phase.to_string()).map_or(0, Vec::len));
        all.checked_div(once).filter(|times| *times > 0)
    };
    [Phase::Forward, Phase::Backward, Phase::Update].iter().filter_map(times).min().unwrap_or(1)
}

/// Each phase of the plan with the same of that step. Where the loss is not told apart it is part of forward.
fn rows<'a>(plan: &'a Ledger, measured: &'a Ledger, step: Option<usize>) -> (Vec<Row<'a>>, usize, usize) {
    let (planned, found) = (by_phase(plan), by_phase(measured));
    let steps = steps(&planned, &found);
    let step = step.unwrap_or(steps.saturating_sub(1));
    let loss = Phase::Loss.to_string();
    let joined = !found.contains_key(&loss);
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut rows = Vec::new();
    for (slot, predicted) in plan.phases() {
        let phase = slot.phase.to_string();
        let times = seen.entry(phase.clone()).or_default();
        let index = *times;
        *times += 1;
        if joined && phase == loss {
            continue;
        }
        let at = |phases: &ByPhase<'a>, phase: &str, at: usize| {
            phases.get(phase).and_then(|all| all.get(at)).copied()
        };
        let in_a_step = planned.get(&phase).map_or(0, Vec::len);
        let measured = at(&found, &phase, step.saturating_mul(in_a_step).saturating_add(index));
        let with = at(&planned, &loss, index).filter(|_| joined && slot.phase == Phase::Forward);
        rows.push(match with {
            Some(loss) => {
                let predicted = if loss.total > predicted.total { loss } else { predicted };
                Row { name: format!("{} with the loss", slot.id()), predicted, measured }
            }
            None => Row { name: slot.id(), predicted, measured },
        });
    }
    if rows.iter().all(|row| row.measured.is_none()) {
        rows.extend(whole(plan, measured));
    }
    (rows, step, steps)
}

/// Both peaks, where the measurement does not tell phases apart.
fn whole<'a>(plan: &'a Ledger, measured: &'a Ledger) -> Option<Row<'a>> {
    let [predicted, measured] = [plan, measured].map(|ledger| {
        let peak = ledger.peak().moment;
        ledger.phases().find(|(slot, _)| slot.first <= peak && peak <= slot.last).map(|(_, total)| total)
    });
    Some(Row { name: WHOLE.to_owned(), predicted: predicted?, measured })
}

/// All that is measured, whatever the phase.
const WHOLE: &str = "all of it";

impl Report for ReconcileReport<'_> {
    fn table(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        prose(out, look, look.bold(), &self.heading())?;
        let names = [self.plan, self.measured].map(|side| look.name(side.name));
        let names = format!("{} against {}{}", names[0], names[1], self.which());
        prose(out, look, look.faint(), &names)?;
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

impl Row<'_> {
    /// What is measured, and how far off that is, in words.
    fn told(&self) -> (String, String) {
        match self.measured {
            None => ("not measured".to_owned(), String::new()),
            Some(measured) => {
                let off = measured.total.minus(self.predicted.total);
                (measured.total.to_string(), off_in_words(off, measured.total))
            }
        }
    }
}

/// Categories that either side holds, predicted and measured.
fn by_category(predicted: &PhaseTotal, measured: &PhaseTotal) -> Vec<(Category, [Bytes; 2])> {
    let both = |category| (category, [predicted, measured].map(|total| total.by_category.get(category)));
    Category::ALL.map(both).into_iter().filter(|(_, bytes)| *bytes != [Bytes::ZERO; 2]).collect()
}

#[derive(Serialize)]
struct ReconcileJson<'a> {
    plan: &'a str,
    measured: &'a str,
    steps: usize,
    step: usize,
    phases: Vec<PhaseJson<'a>>,
    remainder: Vec<Part>,
    rules: &'a [Rule],
    notes: Vec<String>,
    agrees: Option<bool>,
}

#[derive(Serialize)]
struct PhaseJson<'a> {
    phase: &'a str,
    predicted_bytes: u64,
    measured_bytes: Option<u64>,
    difference_bytes: Option<i128>,
    within_tolerance: Option<bool>,
    by_category: Vec<CategoryJson>,
}

#[derive(Serialize)]
struct CategoryJson {
    category: &'static str,
    predicted_bytes: u64,
    measured_bytes: u64,
    difference_bytes: i128,
}

impl<'a> ReconcileJson<'a> {
    fn of(report: &'a ReconcileReport<'a>) -> ReconcileJson<'a> {
        let category = |(category, [predicted, measured]): (Category, [Bytes; 2])| CategoryJson {
            category: category.as_str(),
            predicted_bytes: predicted.get(),
            measured_bytes: measured.get(),
            difference_bytes: measured.minus(predicted),
        };
        let phase = |row: &'a Row<'a>| {
            let measured = row.measured.map(|total| total.total);
            let within = |tolerance: Tolerance| Some(tolerance.holds(row.predicted.total, measured?));
            PhaseJson {
                phase: &row.name,
                predicted_bytes: row.predicted.total.get(),
                measured_bytes: measured.map(Bytes::get),
                difference_bytes: measured.map(|bytes| bytes.minus(row.predicted.total)),
                within_tolerance: report.tolerance.and_then(within),
                by_category: row
                    .measured
                    .into_iter()
                    .flat_map(|measured| by_category(row.predicted, measured))
                    .map(category)
                    .collect(),
            }
        };
        ReconcileJson {
            plan: report.plan.name,
            measured: report.measured.name,
            steps: report.steps,
            step: report.step,
            phases: report.rows.iter().map(phase).collect(),
            remainder: report.bridge(),
            rules: &report.rules,
            notes: report.notes(),
            agrees: report.tolerance.map(|_| report.agrees()),
        }
    }
}
