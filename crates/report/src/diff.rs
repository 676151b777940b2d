//! The report of `diff`: what grew from one ledger or measurement to another, by who asked for it; and within the second,
//! what grows from step to step, as a leak does.

use crate::figures::{INCOMPLETE, and_more, mib_of_difference, plus, signed, unnumbered};
use crate::markdown::Column::{Figures, Text};
use crate::table::{Cell, Column, Table, entry, prose};
use crate::{Look, Report, csv_table, markdown, write_json};
use anstyle::Style;
use peakledger_core::document::LedgerFile;
use peakledger_core::{Bytes, Device, Ledger, Moment, Phase};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io;

/// Two ledgers, and what became of each group of states.
#[derive(Clone, Debug)]
pub struct DiffReport<'a> {
    sides: [(&'a str, &'a Ledger); 2],
    /// Why each is only a part, where it is.
    incomplete: [Option<&'a str>; 2],
    groups: Vec<Group<'a>>,
    leaks: Vec<Leak<'a>>,
}

/// States of one name but for a number at its end, and their bytes before and after.
#[derive(Clone, Debug)]
struct Group<'a> {
    name: &'a str,
    at_peak: [u64; 2],
    at_end: [u64; 2],
}

/// A group that is larger after each step than after the one before.
#[derive(Clone, Debug)]
struct Leak<'a> {
    name: &'a str,
    /// Its bytes where each step ends.
    after_steps: Vec<u64>,
}

/// The first step makes what stays, so growth is told from two more.
const FEWEST_STEPS: usize = 3;

impl<'a> DiffReport<'a> {
    /// What grew from `before` to `after`.
    pub fn of(before: (&'a str, &'a LedgerFile), after: (&'a str, &'a LedgerFile)) -> DiffReport<'a> {
        let incomplete = [before, after].map(|(_, file)| file.incomplete.as_deref());
        let sides = [before, after].map(|(name, file)| (name, &file.ledger));
        let mut groups: BTreeMap<&str, Group<'a>> = BTreeMap::new();
        for (side, (_, ledger)) in sides.iter().enumerate() {
            let peak = held(ledger, ledger.peak().moment);
            let end = held(ledger, last(ledger));
            for (is_end, held) in [(false, peak), (true, end)] {
                for (name, bytes) in held {
                    let empty = Group { name, at_peak: [0; 2], at_end: [0; 2] };
                    let group = groups.entry(name).or_insert(empty);
                    let sums = if is_end { &mut group.at_end } else { &mut group.at_peak };
                    if let Some(sum) = sums.get_mut(side) {
                        *sum = bytes;
                    }
                }
            }
        }
        let mut groups: Vec<Group<'a>> = groups.into_values().collect();
        groups.retain(|group| growth(group.at_peak) != 0 || growth(group.at_end) != 0);
        // the largest change first
        groups.sort_by_key(|group| (-growth(group.at_peak).abs(), -growth(group.at_end).abs(), group.name));
        DiffReport { sides, incomplete, groups, leaks: leaks(&after.1.ledger) }
    }

    /// The sides that are only a part, each with the reason.
    fn parts(&self) -> impl Iterator<Item = (&'a str, &'a str)> {
        let sides = self.sides.into_iter().zip(self.incomplete);
        sides.filter_map(|((name, _), why)| Some((name, why?)))
    }

    fn peaks(&self) -> [Bytes; 2] {
        self.sides.map(|(_, ledger)| ledger.peak().bytes)
    }

    fn ends(&self) -> [Bytes; 2] {
        self.sides.map(|(_, ledger)| ledger.totals().at(Device::Gpu, last(ledger)))
    }

    fn heading(&self) -> String {
        let [before, after] = self.peaks();
        let change = match after.minus(before) {
            0 => "as before".to_owned(),
            less if less < 0 => format!("{} less", signed(-less)),
            more => format!("{} more", signed(more)),
        };
        format!("peak {after}, {change} ({before} before)")
    }

    fn end_line(&self) -> String {
        let [before, after] = self.ends();
        format!("at the end {after}, {} ({before} before)", plus(after.minus(before)))
    }
}

impl Leak<'_> {
    fn line(&self) -> String {
        let steps: Vec<String> =
            self.after_steps.iter().map(|bytes| Bytes::new(*bytes).to_string()).collect();
        let shown = steps.get(steps.len().saturating_sub(5)..).unwrap_or_default();
        format!("{} after the last steps", shown.join(", "))
    }
}

/// The change from before to after.
fn growth([before, after]: [u64; 2]) -> i128 {
    i128::from(after) - i128::from(before)
}

/// The last moment of a ledger.
fn last(ledger: &Ledger) -> Moment {
    ledger.timeline().slots().last().map_or(Moment(0), |slot| slot.last)
}

/// Bytes on the gpu at a moment, by the name of the states but for a number at its end.
fn held(ledger: &Ledger, moment: Moment) -> BTreeMap<&str, u64> {
    let mut held = BTreeMap::new();
    for (_, state) in ledger.resident(Device::Gpu, moment) {
        let sum: &mut u64 = held.entry(unnumbered(&state.name)).or_default();
        *sum = sum.saturating_add(state.bytes.get()); // part of a total that fits
    }
    held
}

/// What grows with every step of a ledger that has several.
fn leaks(ledger: &Ledger) -> Vec<Leak<'_>> {
    let slots = ledger.timeline().slots();
    let ends_of = |phase: &Phase| -> Vec<Moment> {
        slots.iter().filter(|slot| slot.phase == *phase).map(|slot| slot.last).collect()
    };
    let ends = [Phase::ZeroGrad, Phase::Update].iter().map(ends_of).find(|ends| ends.len() >= FEWEST_STEPS);
    let after_steps: Vec<BTreeMap<&str, u64>> =
        ends.into_iter().flatten().map(|end| held(ledger, end)).collect();
    let names = after_steps.last().into_iter().flat_map(BTreeMap::keys).copied();
    let leak = |name| {
        let bytes = |held: &BTreeMap<&str, u64>| held.get(name).copied().unwrap_or(0);
        Leak { name, after_steps: after_steps.iter().map(bytes).collect() }
    };
    let grows = |leak: &Leak<'_>| {
        let later = leak.after_steps.get(1..).unwrap_or_default();
        later.windows(2).all(|pair| matches!(pair, [a, b] if a < b))
    };
    let mut leaks: Vec<Leak<'_>> = names.map(leak).filter(grows).collect();
    leaks.sort_by_key(|leak| (std::cmp::Reverse(leak.after_steps.last().copied()), leak.name));
    leaks
}

impl Report for DiffReport<'_> {
    fn table(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        let [before, after] = self.sides.map(|(name, _)| look.name(name));
        prose(out, look, look.bold(), &self.heading())?;
        for (name, why) in self.parts() {
            let text = format!("{}: {}", look.name(name), look.name(why));
            entry(out, look, look.verdict(false), INCOMPLETE, &text)?;
        }
        prose(out, look, look.faint(), &format!("from {before} to {after}; {}", self.end_line()))?;
        writeln!(out)?;
        if self.groups.is_empty() {
            return prose(out, look, Style::new(), "nothing differs at the peaks or at the ends");
        }
        let mut table = Table::new(vec![
            Column::left("who").cut(),
            Column::right("at the peak"),
            Column::right("now").optional(),
            Column::right("at the end"),
            Column::right("now").optional(),
        ]);
        let shown = look.shown(self.groups.len());
        for group in self.groups.iter().take(shown) {
            let mut cells = vec![Cell::plain(look.name(group.name))];
            for sums @ [_, after] in [group.at_peak, group.at_end] {
                cells.push(Cell::styled(plus(growth(sums)), look.saving(-growth(sums))));
                cells.push(Cell::styled(Bytes::new(after).to_string(), look.faint()));
            }
            table.row(cells);
        }
        table.write(out, look)?;
        let left = self.groups.get(shown..).unwrap_or_default();
        let together: i128 = left.iter().map(|group| growth(group.at_peak)).sum();
        if let Some(more) = and_more(left.len(), plus(together)) {
            prose(out, look, Style::new(), &more)?;
        }
        for leak in self.leaks.iter().take(look.shown(self.leaks.len())) {
            let text = format!("{}: {}", look.name(leak.name), leak.line());
            entry(out, look, look.verdict(false), "grows with every step: ", &text)?;
        }
        Ok(())
    }

    fn json(&self, out: &mut dyn io::Write) -> io::Result<()> {
        write_json(out, &DiffJson::of(self))
    }

    fn csv(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        let titles = [
            "name",
            "peak_before_bytes",
            "peak_after_bytes",
            "peak_growth_bytes",
            "end_before_bytes",
            "end_after_bytes",
            "end_growth_bytes",
        ];
        let rows = self.groups.iter().map(|group| {
            let mut row = vec![group.name.to_owned()];
            for sums in [group.at_peak, group.at_end] {
                row.extend(sums.map(|bytes| bytes.to_string()));
                row.push(growth(sums).to_string());
            }
            row
        });
        csv_table::write(out, look, &titles, rows)
    }

    fn markdown(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        writeln!(out, "**{}**; {}\n", markdown::escaped(&self.heading()), self.end_line())?;
        for (name, why) in self.parts() {
            writeln!(out, "{INCOMPLETE}{}: {}\n", markdown::escaped(name), markdown::escaped(why))?;
        }
        let shown = look.shown(self.groups.len());
        let row = |group: &Group<'_>| {
            vec![markdown::escaped(group.name), plus(growth(group.at_peak)), plus(growth(group.at_end))]
        };
        let rows: Vec<Vec<String>> = self.groups.iter().take(shown).map(row).collect();
        markdown::table(out, &[Text("who"), Figures("at the peak"), Figures("at the end")], &rows)?;
        for leak in &self.leaks {
            writeln!(out, "\nGrows with every step: {}: {}", markdown::escaped(leak.name), leak.line())?;
        }
        Ok(())
    }
}

#[derive(Serialize)]
struct DiffJson<'a> {
    before: SideJson<'a>,
    after: SideJson<'a>,
    peak_growth_bytes: i128,
    peak_growth_mb: f64,
    end_growth_bytes: i128,
    groups: Vec<GroupJson<'a>>,
    grows_with_every_step: Vec<LeakJson<'a>>,
}

#[derive(Serialize)]
struct SideJson<'a> {
    name: &'a str,
    peak_phase: String,
    peak_bytes: u64,
    end_bytes: u64,
    incomplete: Option<&'a str>,
}

#[derive(Serialize)]
struct GroupJson<'a> {
    name: &'a str,
    peak_before_bytes: u64,
    peak_after_bytes: u64,
    peak_growth_bytes: i128,
    end_before_bytes: u64,
    end_after_bytes: u64,
    end_growth_bytes: i128,
}

#[derive(Serialize)]
struct LeakJson<'a> {
    name: &'a str,
    after_steps_bytes: &'a [u64],
}

impl<'a> DiffJson<'a> {
    fn of(report: &'a DiffReport<'a>) -> DiffJson<'a> {
        let [peak_growth, end_growth] =
            [report.peaks(), report.ends()].map(|[before, after]| after.minus(before));
        let side = |(name, ledger): (&'a str, &'a Ledger), end: Bytes, incomplete| SideJson {
            name,
            peak_phase: ledger.peak().slot.id(),
            peak_bytes: ledger.peak().bytes.get(),
            end_bytes: end.get(),
            incomplete,
        };
        let ([before, after], [before_end, after_end]) = (report.sides, report.ends());
        let [of_before, of_after] = report.incomplete;
        let group = |group: &Group<'a>| {
            let ([peak_before, peak_after], [end_before, end_after]) = (group.at_peak, group.at_end);
            GroupJson {
                name: group.name,
                peak_before_bytes: peak_before,
                peak_after_bytes: peak_after,
                peak_growth_bytes: growth(group.at_peak),
                end_before_bytes: end_before,
                end_after_bytes: end_after,
                end_growth_bytes: growth(group.at_end),
            }
        };
        let leak = |leak: &'a Leak<'a>| LeakJson { name: leak.name, after_steps_bytes: &leak.after_steps };
        DiffJson {
            before: side(before, before_end, of_before),
            after: side(after, after_end, of_after),
            peak_growth_bytes: peak_growth,
            peak_growth_mb: mib_of_difference(peak_growth),
            end_growth_bytes: end_growth,
            groups: report.groups.iter().map(group).collect(),
            grows_with_every_step: report.leaks.iter().map(leak).collect(),
        }
    }
}
