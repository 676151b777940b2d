//! The report of `fit --search`: of all combinations of some options, which cannot be, which fit a card, and which of those
//! no other one beats in both memory and time.

mod beyond;
mod json;
mod table;

pub use beyond::{Beyond, Fixed};

use crate::figures::{count, grouped};
use crate::verdict::{caveats, headroom, short_answer};
use crate::{Look, Origins, Report, csv_table};
use peakledger_core::Bytes;
use peakledger_input::{Place, Problem};
use peakledger_plan::catalogue::Card;
use peakledger_plan::{Picoseconds, Plan, RankCosts, Tried, Verdict};
use std::io;

/// What came of all combinations of some options.
#[derive(Debug)]
pub struct SearchReport<'a> {
    /// What the user calls the model.
    pub name: &'a str,
    /// The card.
    pub card: &'a Card,
    /// The options that differ, and what they may be.
    pub dimensions: &'a [Dimension],
    /// Sequences of a step, those of all ranks together: the same in every combination.
    pub sequences: u64,
    /// Those that can be: first those that fit, then the others; the quickest first, then those that take least.
    pub rows: &'a [SearchRow],
    /// Of those that fit, which no other one beats, by their places among the rows, the quickest first.
    pub front: &'a [usize],
    /// Where none fits: what the search does not vary and that helps, what fits and trains alike first.
    pub beyond: &'a [Beyond],
    /// What was said already of what the search would vary.
    pub fixed: &'a [Fixed],
    /// Why the others cannot be.
    pub refused: &'a [Refused],
    /// The plan of the first row, with the rank that needs most.
    pub plan: Option<&'a Plan>,
    /// The line that plans a row once the row's options follow.
    pub command: &'a str,
    /// Where the options came from, if configs were read.
    pub origins: Option<&'a Origins>,
}

/// An option that differs, or several that go together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dimension {
    /// What it is called.
    pub name: String,
    /// What it may be.
    pub values: Vec<Setting>,
}

/// What an option may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// In a word.
    pub name: String,
    /// As options of the command line, as a shell takes them; nothing where it is what they are without.
    pub options: String,
}

/// A combination that can be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchRow {
    /// Which it is, counted with the values of the last dimension changing first.
    pub number: u64,
    /// Sequences in a micro-batch.
    pub micro_batch_size: u64,
    /// Micro-batches in a step.
    pub gradient_accumulation_steps: u32,
    /// Data parallel ranks.
    pub dp: u32,
    /// Tokens of a step, those of all ranks together.
    pub tokens: u64,
    /// What it takes and costs.
    pub tried: Tried,
    /// Whether what the caching allocator reserves was found out; else it takes at least what is said, by its device peak or by
    /// as much of a replay as a quicker combination beats.
    pub is_replayed: bool,
    /// How often the allocator gives back all that it has cached to make room, of the rank that does so most, where that was
    /// found out; the step waits for it each time.
    pub cache_flushes: u64,
}

/// Combinations that cannot be, for a reason that they share but for its figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// How many.
    pub count: u64,
    /// The option that says so, of the first of them.
    pub option: Option<String>,
    /// Why, of the first of them.
    pub cause: String,
}

impl Refused {
    /// One that has this problem.
    pub fn of(problem: Problem) -> Refused {
        let option = match problem.place {
            Some(Place::Option(option)) => Some(option),
            _ => None,
        };
        Refused { count: 1, option, cause: problem.cause }
    }
}

impl SearchRow {
    /// The order of rows: those that fit, then the quickest, then those that take least, then as they were counted. Steps of
    /// different lengths are compared by what a token takes.
    pub fn order(&self) -> impl Ord + use<> {
        let of_a_token = |time: Picoseconds| time.0.saturating_mul(1 << 32) / u128::from(self.tokens.max(1));
        let time = self.time().map(of_a_token);
        (!self.tried.verdict.fits(), time.is_none(), time, self.tried.verdict.needed, self.number)
    }

    /// What the caching allocator reserves, where it was found out: where it runs out, it is not.
    fn reserved(&self) -> Option<Bytes> {
        let Tried { verdict, outside, .. } = self.tried;
        let reserved = || Bytes::new(verdict.needed.get().saturating_sub(outside.get()));
        (self.is_replayed && verdict.fits()).then(reserved)
    }

    /// The same of how often it gives back what it has cached.
    fn flushes(&self) -> Option<u64> {
        (self.is_replayed && self.tried.verdict.fits()).then_some(self.cache_flushes)
    }

    /// Whether it gives back what it has cached, as far as is known.
    fn flushes_at_all(&self) -> bool {
        self.flushes().is_some_and(|times| times > 0)
    }

    /// Whether it fits; nothing where it does by its device peak, near the limit, and no replay was run to its end.
    fn is_known_to_fit(&self) -> Option<bool> {
        let is_open = !self.is_replayed && is_near(self.tried.verdict);
        (!is_open).then(|| self.tried.verdict.fits())
    }

    /// How well it fits: `open` where that takes a replay that was not run to its end, `yes`, or `edge` where less is to spare than a CUDA context takes, and `flushes` where caches are
    /// given back for it.
    fn fits(&self) -> String {
        if self.is_known_to_fit().is_none() {
            return "open".to_owned();
        }
        let answer = short_answer(self.tried.verdict);
        match (answer, self.flushes().unwrap_or(0)) {
            (answer, 0) => answer.to_owned(),
            ("yes", _) => "flushes".to_owned(),
            (answer, _) => format!("{answer}, flushes"),
        }
    }

    fn time(&self) -> Option<Picoseconds> {
        self.tried.slowest.time.ok().map(|time| time.step())
    }
}

/// Whether a device peak is so near the limit that what the allocator reserves has to be known: it fits, with less to spare than
/// a quarter of what it takes.
pub fn is_near(verdict: Verdict) -> bool {
    verdict.fits() && verdict.headroom().saturating_mul(4) < i128::from(verdict.needed.get())
}

/// What is said of the front.
const PARETO: &str = "memory against time: no other combination that fits takes no more of both";

/// The same where no time is known: the card's rates are not.
const LEAST: &str = "the one that takes least; there is no time, as the card's rates are not known";

/// The same where they are, but one that is needed.
const LEAST_BY_A_RATE: &str = "the one that takes least; there is no time, as a rate is not known";

/// What the theoretical time has.
const TIME: &str = "in theory: products and copies at the card's peak rates, what is computed again, what is sent within a node and \
                    over the network between nodes, and the waiting of the pipeline, one after the other; what overlaps is not looked \
                    at";

/// Whose the figures are, where ranks may differ.
const WHOSE: &str = "that, and what is sent and moved, is of the rank that takes longest; what is taken is of the rank that needs most";

/// How what a combination takes is known.
const TAKEN: &str = "the reserved bytes of what is shown come from replaying the caching allocator, and so do those of what fits with \
                     less to spare than a quarter of what it takes, but for pipelines, of which it is left open; the others fit or \
                     not by their device peak";

/// What it means that a row fits on the edge.
const EDGE: &str =
    "edge: less is to spare than a CUDA context is taken for; with other drivers or libraries it may not fit";

/// What it means that caches are given back.
const FLUSHES: &str =
    "flushes: it fits once the allocator gives back all that it has cached, and the step waits for that";

/// The row that needs least; of equals the first combination.
pub fn closest(rows: &[SearchRow]) -> Option<&SearchRow> {
    rows.iter().min_by_key(|row| (row.tried.verdict.needed, row.number))
}

impl SearchReport<'_> {
    /// All combinations.
    fn tried(&self) -> u64 {
        let values = self.dimensions.iter().map(|dimension| dimension.values.len() as u64);
        values.fold(1, u64::saturating_mul)
    }

    /// Those that fit.
    fn fitting(&self) -> usize {
        self.rows.iter().filter(|row| row.is_known_to_fit() == Some(true)).count()
    }

    /// How many may, near the limit.
    fn open(&self) -> usize {
        self.rows.iter().filter(|row| row.is_known_to_fit().is_none()).count()
    }

    /// The value of each dimension that a row has.
    fn values(&self, row: &SearchRow) -> Vec<&Setting> {
        let mut rest = row.number;
        let mut values: Vec<&Setting> = Vec::with_capacity(self.dimensions.len());
        for dimension in self.dimensions.iter().rev() {
            let length = (dimension.values.len() as u64).max(1);
            let at = usize::try_from(rest % length).unwrap_or_default();
            values.extend(dimension.values.get(at));
            rest /= length;
        }
        values.reverse();
        values
    }

    /// `tp 8, batch 2`
    fn name_of(&self, row: &SearchRow) -> String {
        let named = self.dimensions.iter().zip(self.values(row));
        let named: Vec<String> = named.map(|(of, value)| format!("{} {}", of.name, value.name)).collect();
        if named.is_empty() { crate::AS_GIVEN.to_owned() } else { named.join(", ") }
    }

    /// What is added to the command line to have it.
    fn options_of(&self, row: &SearchRow) -> String {
        let steps = format!("--gradient-accumulation-steps {}", row.gradient_accumulation_steps);
        let values = self.values(row).into_iter().map(|value| value.options.clone());
        let all: Vec<String> = values.filter(|options| !options.is_empty()).chain([steps]).collect();
        all.join(" ")
    }

    fn front(&self) -> impl Iterator<Item = &SearchRow> + Clone {
        self.front.iter().filter_map(|at| self.rows.get(*at))
    }

    /// `tried 96 combinations: 12 cannot be, 50 do not fit 24GiB, 34 fit`
    fn counts_line(&self) -> String {
        let (tried, fitting) = (self.tried(), self.fitting() as u64);
        let possible = self.rows.len() as u64;
        let card = self.card.full_name.as_deref().unwrap_or(&self.card.name);
        let open = self.open() as u64;
        let misfits = possible.saturating_sub(fitting).saturating_sub(open);
        let may = match open {
            0 => String::new(),
            open => format!(", {} more may, near the limit and not replayed to the end", grouped(open)),
        };
        format!(
            "tried {} combination{}: {} cannot be, {} {} not fit {card}, {} {}{may}",
            grouped(tried),
            if tried == 1 { "" } else { "s" },
            grouped(tried.saturating_sub(possible)),
            grouped(misfits),
            if misfits == 1 { "does" } else { "do" },
            grouped(fitting),
            if fitting == 1 { "fits" } else { "fit" },
        )
    }

    /// `tp 8, batch 1: 1.92 s in theory, 63.90 MiB to spare, on the edge`
    fn said(&self, row: &SearchRow) -> String {
        let time = row.time().map(|time| format!("{time} in theory, ")).unwrap_or_default();
        let flushes = if row.flushes_at_all() { ", flushes its cache" } else { "" };
        format!("{}: {time}{}{flushes}", self.name_of(row), headroom(row.tried.verdict))
    }

    /// The quickest that fits, or the one that comes closest.
    fn best_line(&self) -> Option<String> {
        match self.front().next() {
            Some(row) => {
                let which = match (row.time(), self.differ_in_tokens()) {
                    (None, _) => "least",
                    (Some(_), false) => "quickest",
                    (Some(_), true) => "quickest by the token",
                };
                Some(format!("{which}: {}", self.said(row)))
            }
            None => self.closest().map(|row| format!("none fits; the closest is {}", self.said(row))),
        }
    }

    /// Of the front the first with room to spare, by its place among the rows: neither on the edge nor with caches given back.
    fn roomy(&self) -> Option<usize> {
        let has_room = |at: &usize| {
            let row = self.rows.get(*at);
            row.is_some_and(|row| !row.tried.verdict.is_on_the_edge() && !row.flushes_at_all())
        };
        self.front.iter().copied().find(has_room)
    }

    /// The same where it is not the first of all: there it says nothing more.
    fn roomy_row(&self) -> Option<&SearchRow> {
        self.roomy().filter(|at| self.front.first() != Some(at)).and_then(|at| self.rows.get(at))
    }

    /// `quickest with room to spare: …`
    fn roomy_line(&self) -> Option<String> {
        let by_the_token = if self.differ_in_tokens() { " by the token" } else { "" };
        self.roomy_row().map(|row| format!("quickest{by_the_token} with room to spare: {}", self.said(row)))
    }

    /// Whether their steps are of different lengths: then times of steps say nothing of each other.
    fn differ_in_tokens(&self) -> bool {
        self.rows.windows(2).any(|pair| matches!(pair, [one, other] if one.tokens != other.tokens))
    }

    /// Where none fits, the one that needs least.
    fn closest(&self) -> Option<&SearchRow> {
        closest(self.rows).filter(|_| self.front.is_empty())
    }

    /// The row that is said first.
    fn best(&self) -> Option<&SearchRow> {
        self.front().next().or_else(|| self.closest())
    }

    /// What must be known beside the best row.
    fn caveats(&self) -> Vec<String> {
        let best = self.plan.zip(self.best());
        let caveats =
            best.map(|(plan, row)| caveats(plan, Some(self.card), Some(row.tried.verdict), self.origins));
        caveats.unwrap_or_default()
    }

    /// The whole command that plans a row.
    fn command_of(&self, row: &SearchRow) -> String {
        format!("{} {}", self.command, self.options_of(row))
    }

    /// Of what rows there are, the front's that are shown, and what is said of the others.
    fn shown_front(&self, look: &Look) -> (impl Iterator<Item = &SearchRow> + Clone, Option<String>) {
        let shown = look.shown(self.front.len());
        let more = self.front.len() - shown;
        let more =
            (more > 0).then(|| format!("and {more} more that take less and longer (--all shows them)"));
        (self.front().take(shown), more)
    }

    /// What the marks of rows mean, of those that are there.
    fn legend<'r>(mut rows: impl Iterator<Item = &'r SearchRow> + Clone) -> Vec<&'static str> {
        let edge = rows.clone().any(|row| row.tried.verdict.is_on_the_edge());
        let flushes = rows.any(SearchRow::flushes_at_all);
        let all = [(edge, EDGE), (flushes, FLUSHES)];
        all.into_iter().filter_map(|(there, said)| there.then_some(said)).collect()
    }

    /// Whether combinations sum up their gradients over different numbers of micro-batches.
    fn differ_in_accumulation(&self) -> bool {
        let steps = |row: &SearchRow| row.gradient_accumulation_steps;
        self.rows.windows(2).any(|pair| matches!(pair, [one, other] if steps(one) != steps(other)))
    }

    /// `llama-3.1-70b: 70,553,706,496 parameters; 64 sequences in a step`
    fn step_line(&self, name: &str) -> String {
        let parameters = self.plan.map(|plan| format!("{} parameters; ", grouped(plan.parameters)));
        let sequences = usize::try_from(self.sequences).unwrap_or(usize::MAX);
        let accumulated = match self.differ_in_accumulation() {
            true => {
                " of every combination, and gradient accumulation follows from them (--global-batch-size N says how many they are)"
            }
            false => "",
        };
        format!(
            "{name}: {}{} in a step{accumulated}",
            parameters.unwrap_or_default(),
            count(sequences, "sequence", "sequences")
        )
    }

    /// Why combinations cannot be, the most first.
    fn refused_lines(&self) -> impl Iterator<Item = (String, String)> {
        self.refused.iter().map(|refused| {
            let option = refused.option.as_deref().map(|option| format!("{option}: ")).unwrap_or_default();
            (grouped(refused.count), format!("{option}{}", refused.cause))
        })
    }

    /// What no figure has.
    fn not_counted(&self) -> Vec<&'static str> {
        self.plan.map(|plan| plan.not_counted(true)).unwrap_or_default()
    }

    /// How much longer it takes than the quickest that fits.
    fn added(&self, row: &SearchRow) -> Option<i128> {
        if self.differ_in_tokens() {
            return None;
        }
        Some(row.time()?.minus(self.front().next()?.time()?))
    }
}

impl Report for SearchReport<'_> {
    fn table(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        self.write_table(out, look)
    }

    fn json(&self, out: &mut dyn io::Write) -> io::Result<()> {
        self.write_json(out)
    }

    fn csv(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        let dimensions = self.dimensions.iter().map(|dimension| dimension.name.as_str());
        let titles: Vec<&str> = dimensions
            .chain([
                "options",
                "fits",
                "on_the_edge",
                "headroom_bytes",
                "device_peak_bytes",
                "reserved_bytes",
                "cache_flushes",
                "theoretical_seconds",
                "recomputed_flops",
                "to_host_bytes",
                "from_host_bytes",
                "communicated_bytes",
                "between_nodes_bytes",
                "pareto",
            ])
            .collect();
        let rows = self.rows.iter().enumerate().map(|(at, row)| {
            let Tried { device_peak, verdict, slowest: RankCosts { costs, .. }, .. } = row.tried;
            let values = self.values(row).into_iter().map(|value| value.name.clone());
            let figures = [
                self.options_of(row),
                verdict.fits().to_string(),
                verdict.is_on_the_edge().to_string(),
                verdict.headroom().to_string(),
                device_peak.get().to_string(),
                row.reserved().map(|bytes| bytes.get().to_string()).unwrap_or_default(),
                row.flushes().map(|times| times.to_string()).unwrap_or_default(),
                row.time().map(|time| crate::figures::seconds(time).to_string()).unwrap_or_default(),
                costs.recomputed.total().to_string(),
                costs.host.to_host.to_string(),
                costs.host.from_host.to_string(),
                costs.communicated().to_string(),
                costs.sent.between_nodes.to_string(),
                self.front.contains(&at).to_string(),
            ];
            values.chain(figures).collect()
        });
        csv_table::write(out, look, &titles, rows)
    }

    fn markdown(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        self.write_markdown(out, look)
    }
}
