//! The ranks of a world, class by class: who holds what, and which rank needs most.

use super::PlanReport;
use super::costs::costed;
use super::rows::id;
use crate::figures::grouped;
use crate::markdown::Column::{Figures, Text};
use crate::table::{Cell, Column, Table};
use crate::{Look, Reservation, markdown};
use anstyle::Style;
use peakledger_core::Bytes;
use peakledger_plan::catalogue::Card;
use peakledger_plan::parallel::RankClass;
use peakledger_plan::{Plan, PlannedPhase, RankCosts, Step};
use std::cmp::Reverse;
use std::io;
use std::ops::Range;

/// What is known of the ranks of a class.
#[derive(Clone, Debug)]
pub struct RankFigures {
    /// Parameters that each of them holds.
    pub parameters: u64,
    /// The step with the op-level peak.
    pub step: Step,
    /// The phase with it.
    pub phase: PlannedPhase,
    /// The device-level peak.
    pub device_peak: Bytes,
    /// The most that each has on the cpu.
    pub host_peak: Bytes,
    /// What lies outside the allocator.
    pub outside: Bytes,
    /// What the caching allocator reserves, where that is looked at.
    pub reservation: Option<Reservation>,
    /// What the step costs it whose costs are shown.
    pub costs: RankCosts,
    /// The phases of the steps that are shown.
    pub steps: Vec<(Step, Vec<PlannedPhase>)>,
}

impl RankFigures {
    /// Looks at the plan of one of them.
    pub fn of(
        plan: &Plan,
        card: Option<&Card>,
        step: Option<Step>,
        reservation: Option<Reservation>,
    ) -> RankFigures {
        let at = plan.peak_in(step);
        let shown =
            [Step::First, Step::Steady].into_iter().filter(|one| step.is_none_or(|only| only == *one));
        let steps: Vec<(Step, Vec<PlannedPhase>)> =
            shown.map(|step| (step, plan.step(step).phases.clone())).collect();
        let phases = steps.iter().flat_map(|(_, phases)| phases);
        RankFigures {
            parameters: plan.rank_parameters,
            step: at.step.step,
            phase: at.phase.clone(),
            device_peak: plan.device_peak_in(step).phase.device_peak,
            host_peak: phases.map(|phase| phase.host_peak).max().unwrap_or_default(),
            outside: plan.outside(card),
            reservation,
            costs: RankCosts::of(plan, costed(step), card.and_then(|card| card.speeds.as_ref())),
            steps,
        }
    }

    /// What it is judged by: what is reserved, or the device peak where that is not looked at, and what lies outside.
    pub fn needed(&self) -> Bytes {
        let held = self.reservation.as_ref().map_or(self.device_peak, Reservation::reserved);
        held.checked_add(self.outside).unwrap_or(Bytes::new(u64::MAX))
    }
}

/// All ranks of a world beside the one whose plan is shown.
#[derive(Clone, Copy, Debug)]
pub struct RanksReport<'a> {
    /// Every class.
    pub each: &'a [(RankClass, RankFigures)],
    /// The place of the class whose plan is shown.
    pub shown: usize,
    /// The place of the class that needs most.
    pub worst: usize,
    /// Whether the phases of every class are wanted.
    pub all: bool,
    /// Whether the rank that is shown was asked for by its number.
    pub asked: bool,
}

impl RanksReport<'_> {
    /// Most cpu memory that the ranks of a node take together, and of which node; nothing where none takes any.
    pub(crate) fn node(&self, gpus_per_node: u32) -> Option<(u32, Bytes)> {
        let mut nodes: Vec<u64> = Vec::new();
        for (class, figures) in self.each {
            for rank in class.ranks.iter().cloned().flatten() {
                let node = rank.checked_div(gpus_per_node)? as usize;
                if nodes.len() <= node {
                    nodes.resize(node + 1, 0);
                }
                if let Some(bytes) = nodes.get_mut(node) {
                    *bytes = bytes.saturating_add(figures.host_peak.get());
                }
            }
        }
        let nodes: Vec<(u32, u64)> = (0u32..).zip(nodes).collect();
        let (node, bytes) = nodes.into_iter().rev().max_by_key(|(_, bytes)| *bytes)?;
        (bytes > 0).then(|| (node, Bytes::new(bytes)))
    }
}

/// The name of a column and its cell.
type PlaceColumn = (&'static str, fn(&RankClass) -> String);

/// Where in the model and in a sequence ranks are: the column's name and cell; nothing where all are in the same place.
fn place_column(stages: u32, each: &[(RankClass, RankFigures)]) -> Option<PlaceColumn> {
    match each.iter().any(|(class, _)| class.class.cp.is_some()) {
        _ if stages > 1 => Some(("stage", stage_and_place)),
        true => Some(("cp", |class| class.class.cp.map(|cp| cp.to_string()).unwrap_or_default())),
        false => None,
    }
}

/// A row of the table: the places of classes whose figures read the same.
struct Alike {
    classes: Vec<usize>,
    cells: Vec<String>,
}

/// `0`, or `0, cp 1` where ranks of a context parallel group differ.
fn stage_and_place(class: &RankClass) -> String {
    let stage = class.class.stage;
    class.class.cp.map_or_else(|| stage.to_string(), |cp| format!("{stage}, cp {cp}"))
}

impl PlanReport<'_> {
    /// `rank 0, stage 0 of 4 (and 15 like it): needs most of 64 ranks`.
    pub(crate) fn rank_line(&self) -> Option<String> {
        let ranks = self.ranks?;
        let (class, shown) = ranks.each.get(ranks.shown)?;
        let rank = self.plan.options.parallel.rank;
        let world = self.plan.mesh.world;
        let whose = format!("rank {rank}{}", self.stage(class));
        if class.count() == world {
            return Some(format!("{whose}: all {world} ranks are alike"));
        }
        let like = match class.count() {
            1 => String::new(),
            count => format!(" and {} like it", count - 1),
        };
        if ranks.shown == ranks.worst {
            // by what is reserved, which need not be where most is allocated
            let highest = ranks.each.iter().max_by_key(|(class, it)| (it.phase.peak, Reverse(class.first())));
            let higher = highest.filter(|(_, figures)| figures.phase.peak > shown.phase.peak);
            let higher = higher.map(|(class, figures)| {
                let (rank, stage, peak) = (class.first(), self.stage(class), figures.phase.peak);
                let reserved = |of: &RankFigures| of.reservation.as_ref().map(|it| it.reserved());
                match (reserved(shown), reserved(figures)) {
                    // its blocks fit worse into what others have left
                    (Some(most), Some(less)) if most > less => format!(
                        ", for the allocator reserves most there, {most}; rank {rank}{stage} peaks higher, at {peak}, and \
                         reserves {less}"
                    ),
                    _ => format!(" by what it needs of the card; rank {rank}{stage} peaks higher, at {peak}"),
                }
            });
            return Some(format!("{whose}{like}: the worst of {world} ranks{}", higher.unwrap_or_default()));
        }
        let (worst, figures) = ranks.each.get(ranks.worst)?;
        let held = match &figures.reservation {
            Some(reservation) => format!("{} reserved", reservation.reserved()),
            None => format!("a device peak of {}", figures.device_peak),
        };
        Some(format!(
            "{whose}{like}; the worst of {world} ranks is rank {}{} with {held}, in {} of the {} step",
            worst.first(),
            self.stage(worst),
            self.phase_of(figures),
            figures.step.as_str(),
        ))
    }

    /// `, stage 0 of 4, cp 1 of 2`.
    fn stage(&self, class: &RankClass) -> String {
        let stage = match self.plan.mesh.pp {
            1 => String::new(),
            stages => format!(", stage {} of {stages}", class.class.stage),
        };
        match class.class.cp {
            None => stage,
            Some(cp) => format!("{stage}, cp {cp} of {}", self.plan.mesh.cp),
        }
    }

    fn phase_of(&self, figures: &RankFigures) -> String {
        id(&figures.phase, self.plan.options.gradient_accumulation_steps > 1)
    }

    /// What the ranks of a node have on its cpu together.
    pub(crate) fn host_of_ranks_line(&self) -> Option<String> {
        let gpus = self.plan.options.parallel.gpus_per_node;
        let (node, bytes) = self.ranks?.node(gpus)?;
        // the last node may be smaller
        let before = node.saturating_mul(gpus);
        let ranks = gpus.min(self.plan.mesh.world.saturating_sub(before));
        Some(format!("on the cpu of node {node}, of {ranks} ranks together: up to {bytes}"))
    }

    /// The classes of ranks; nothing where all are alike.
    pub(super) fn ranks_table(&self, look: &Look) -> Option<(Table, Option<String>)> {
        let ranks = self.ranks.filter(|ranks| ranks.each.len() > 1)?;
        let has_host = ranks.each.iter().any(|(_, figures)| figures.host_peak > Bytes::ZERO);
        let of_reserved = ranks.each.iter().filter(|(_, figures)| figures.reservation.is_some()).count();
        let has_reserved = of_reserved > 0;
        let place = place_column(self.plan.mesh.pp, ranks.each);
        let mut columns = vec![Column::left(""), Column::left("ranks").cut()];
        columns.extend(place.map(|(name, _)| Column::left(name).optional()));
        columns.extend([
            Column::left("layers").optional(),
            Column::right("parameters").optional(),
            Column::right("peak"),
            Column::left("in").optional(),
            Column::right("device").optional(),
        ]);
        columns.extend(has_reserved.then(|| Column::right("reserved").optional()));
        columns.extend(has_host.then(|| Column::right("cpu").optional()));
        let mut table = Table::new(columns);
        let alike = self.rows_of_alike(&ranks, has_reserved, has_host);
        let worst = alike.iter().position(|row| row.classes.contains(&ranks.worst)).unwrap_or_default();
        let (rows, more) = match ranks.all {
            true => ((0..alike.len()).map(Some).collect(), None),
            false => look.rows(alike.len(), worst, "rows of ranks"),
        };
        for at in rows {
            let Some(row) = at.and_then(|at| alike.get(at)) else {
                table.row(vec![Cell::plain(""), Cell::plain(look.ellipsis())]);
                continue;
            };
            let is_worst = at == Some(worst);
            let style = if is_worst { look.bold() } else { Style::new() };
            let mut cells = vec![Cell::styled(if is_worst { look.marker() } else { "" }, style)];
            cells.extend(row.cells.iter().map(|cell| Cell::styled(look.text(cell), style)));
            table.row(cells);
        }
        let is_alike = alike.len() < ranks.each.len();
        let alike =
            is_alike.then(|| "ranks whose figures read the same share a row; JSON has each".to_owned());
        let is_left_open = has_reserved && of_reserved < ranks.each.len();
        let open = is_left_open.then(|| {
            let kinds = ranks.each.len();
            format!(
                "reserved is looked at for the {of_reserved} of {kinds} kinds of ranks that need most on the device"
            )
        });
        let said: Vec<String> = more.into_iter().chain(alike).chain(open).collect();
        Some((table, (!said.is_empty()).then(|| said.join("; "))))
    }

    /// The rows: classes beside each other whose figures read the same in one, the worst in one of its own.
    fn rows_of_alike(&self, ranks: &RanksReport<'_>, reserved: bool, host: bool) -> Vec<Alike> {
        let place = place_column(self.plan.mesh.pp, ranks.each);
        let mut rows: Vec<Alike> = Vec::new();
        for (at, (class, figures)) in ranks.each.iter().enumerate() {
            let mut cells: Vec<String> = place.map(|(_, cell)| cell(class)).into_iter().collect();
            cells.extend(self.rank_row(class, figures, reserved, host).into_iter().skip(2));
            match rows.last_mut() {
                Some(row)
                    if row.cells == cells && at != ranks.worst && !row.classes.contains(&ranks.worst) =>
                {
                    row.classes.push(at);
                }
                _ => rows.push(Alike { classes: vec![at], cells }),
            }
        }
        for row in &mut rows {
            let classes = row.classes.iter().filter_map(|at| ranks.each.get(*at));
            let all = joined(classes.flat_map(|(class, _)| class.ranks.iter().cloned()).collect());
            row.cells.insert(0, ranges(&all));
        }
        rows
    }

    fn rank_row(&self, class: &RankClass, figures: &RankFigures, reserved: bool, host: bool) -> Vec<String> {
        let mut row = vec![
            ranges(&class.ranks),
            stage_and_place(class),
            ranges(&class.layers),
            grouped(figures.parameters),
            figures.phase.peak.to_string(),
            format!("{}, {}", self.phase_of(figures), figures.step.as_str()),
            figures.device_peak.to_string(),
        ];
        let reserved_bytes = figures.reservation.as_ref().map(|it| it.reserved().to_string());
        row.extend(reserved.then(|| reserved_bytes.unwrap_or_default()));
        row.extend(host.then(|| figures.host_peak.to_string()));
        row
    }

    pub(super) fn ranks_in_markdown(&self, out: &mut dyn io::Write) -> io::Result<()> {
        let Some(ranks) = self.ranks.filter(|ranks| ranks.each.len() > 1) else { return Ok(()) };
        let columns = [
            Text("ranks"),
            Text("stage"),
            Text("layers"),
            Figures("parameters"),
            Figures("peak"),
            Text("in"),
            Figures("device"),
            Figures("reserved"),
            Figures("cpu"),
        ];
        let row = |(class, figures): &(RankClass, RankFigures)| {
            let mut row = self.rank_row(class, figures, false, false);
            let reserved = figures.reservation.as_ref().map(|it| it.reserved().to_string());
            row.extend([reserved.unwrap_or_default(), figures.host_peak.to_string()]);
            row.iter().map(|cell| markdown::escaped(cell)).collect()
        };
        writeln!(out)?;
        markdown::table(out, &columns, &ranks.each.iter().map(row).collect::<Vec<Vec<String>>>())
    }

    /// The phases of the classes that are not shown, by their first ranks, where all are wanted.
    pub(super) fn phases_of_others(&self) -> Vec<(u32, Step, &[PlannedPhase])> {
        let Some(ranks) = self.ranks.filter(|ranks| ranks.all) else { return Vec::new() };
        let others = ranks.each.iter().enumerate().filter(|(at, _)| *at != ranks.shown);
        let steps = others.flat_map(|(_, (class, figures))| {
            figures.steps.iter().map(|(step, phases)| (class.first(), *step, phases.as_slice()))
        });
        steps.collect()
    }

    /// The classes as facts of a page: a line for each.
    pub(crate) fn rank_facts(&self) -> Vec<(String, String)> {
        let mut facts: Vec<(String, String)> =
            self.rank_line().map(|line| ("rank".to_owned(), line)).into_iter().collect();
        let Some(ranks) = self.ranks.filter(|ranks| ranks.each.len() > 1) else { return facts };
        let line = |(class, figures): &(RankClass, RankFigures)| {
            let layers = ranges(&class.layers);
            let (peak, device) = (figures.phase.peak, figures.device_peak);
            let said = format!(
                "stage {}, layers {layers}: {peak} in {} of the {} step, device peak {device}",
                stage_and_place(class),
                self.phase_of(figures),
                figures.step.as_str()
            );
            (format!("ranks {}", ranges(&class.ranks)), said)
        };
        facts.extend(ranks.each.iter().map(line));
        facts
    }
}

/// Ranges in order, with those that touch in one.
fn joined(mut ranges: Vec<Range<u32>>) -> Vec<Range<u32>> {
    ranges.sort_by_key(|range| range.start);
    let mut joined: Vec<Range<u32>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => joined.push(range),
        }
    }
    joined
}

/// Most ranges that are written out in a cell.
const MOST_RANGES: usize = 4;

/// `0–15`, `0–1, 14–15`; the first of many.
pub(super) fn ranges(ranges: &[Range<u32>]) -> String {
    let one = |range: &Range<u32>| match range.end - range.start {
        1 => range.start.to_string(),
        _ => format!("{}–{}", range.start, range.end - 1),
    };
    let mut written: Vec<String> = ranges.iter().take(MOST_RANGES).map(one).collect();
    if ranges.len() > MOST_RANGES {
        written.push("…".to_owned());
    }
    written.join(", ")
}
