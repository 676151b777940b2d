//! The report of `fit --search`: of all combinations of some options, which cannot be, which fit a card, and which of those
//! no other one beats in both memory and time.

mod beyond;
mod csv;
mod json;
mod row;
mod table;
mod words;

pub use beyond::{Beyond, Fixed};
pub use row::{SearchRow, closest, is_near};

use crate::verdict::caveats;
use crate::{Look, Origins, Report};
use peakledger_input::{Place, Problem};
use peakledger_plan::Plan;
use peakledger_plan::catalogue::Card;
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

    /// Whether their steps are of different lengths: then times of steps say nothing of each other.
    fn differ_in_tokens(&self) -> bool {
        self.rows.windows(2).any(|pair| matches!(pair, [one, other] if one.tokens != other.tokens))
    }

    /// How much longer it takes than the quickest that fits.
    fn added(&self, row: &SearchRow) -> Option<i128> {
        if self.differ_in_tokens() {
            return None;
        }
        Some(row.time()?.minus(self.front().next()?.time()?))
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

    /// What no figure has.
    fn not_counted(&self) -> Vec<&'static str> {
        self.plan.map(|plan| plan.not_counted(true)).unwrap_or_default()
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
        self.write_csv(out, look)
    }

    fn markdown(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        self.write_markdown(out, look)
    }
}
