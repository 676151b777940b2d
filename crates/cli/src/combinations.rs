//! Every combination of values of a step's options. A value is understood once, by the parser that candidates have, and then
//! said of as many steps as it is part of: an option that is new needs nothing here.

use crate::from::in_shell;
use crate::step_args::{Said, StepArgs};
use crate::usage::Asker;
use peakledger_input::{Problem, quoted};
use peakledger_report::{Dimension, Setting};

/// Combinations beyond this are not tried: each is planned, and what is known of each is kept.
const MOST: u64 = 200_000;

/// A value as it is shown, and the options that set it.
pub(crate) type Value = (String, String);

/// An option, or several that go together, with what it may be.
pub(crate) struct Varied {
    pub(crate) name: String,
    values: Vec<(Setting, Said)>,
}

impl Varied {
    /// Of words and options for each value, none where it is what it is without.
    ///
    /// # Errors
    /// What is wrong with a value, or that it is there twice.
    pub(crate) fn of(name: &str, values: Vec<Value>) -> Result<Varied, Problem> {
        let mut varied = Varied { name: name.to_owned(), values: Vec::with_capacity(values.len()) };
        for (value, options) in values {
            if varied.values.iter().any(|(there, _)| there.name == value) {
                let cause = format!("{} is there twice among {name}", quoted(&value));
                return Err(Problem::in_option("--among", cause).mend("name each value once"));
            }
            let words = options.split_whitespace().map(str::to_owned);
            let said = Said::of(words, Asker::Step("a combination")).map_err(|mut problem| {
                let mend = problem.mend.take().unwrap_or_else(|| "check its values".to_owned());
                Problem::in_option("--among", problem.to_string()).mend(mend)
            })?;
            let words: Vec<String> = options.split_whitespace().map(in_shell).collect();
            varied.values.push((Setting { name: value, options: words.join(" ") }, said));
        }
        Ok(varied)
    }

    /// Its values as they are shown, with their options.
    pub(crate) fn settings(&self) -> impl Iterator<Item = &Setting> {
        self.values.iter().map(|(setting, _)| setting)
    }

    /// The options that its values set.
    pub(crate) fn options(&self) -> Vec<String> {
        let mut options: Vec<String> = self.values.iter().flat_map(|(_, said)| said.options()).collect();
        options.sort();
        options.dedup();
        options
    }
}

/// All combinations, by number: the values of the last option change first.
pub(crate) struct Combinations {
    varied: Vec<Varied>,
    count: usize,
}

impl Combinations {
    /// All combinations of these.
    ///
    /// # Errors
    /// Says that two are of one option, or that there are too many.
    pub(crate) fn of(varied: Vec<Varied>) -> Result<Combinations, Problem> {
        for (at, one) in varied.iter().enumerate() {
            let options = one.options();
            let same = |other: &&Varied| {
                other.name == one.name || other.options().iter().any(|option| options.contains(option))
            };
            if let Some(other) = varied.iter().take(at).find(same) {
                let cause =
                    format!("there are two lists of values of one option, {} and {}", other.name, one.name);
                return Err(Problem::in_option("--among", cause).mend("write them as one"));
            }
        }
        let count = varied.iter().fold(1_u64, |count, one| count.saturating_mul(one.values.len() as u64));
        match usize::try_from(count).ok().filter(|_| count <= MOST) {
            Some(count) => Ok(Combinations { varied, count }),
            None => {
                let of_each = varied.iter().map(|one| format!("{} {}", one.values.len(), one.name));
                let product = of_each.collect::<Vec<_>>().join(" × ");
                let cause = format!("{product} are {count} combinations, more than {MOST}");
                Err(Problem::in_option("--among", cause).mend("name fewer values, or search in several runs"))
            }
        }
    }

    /// The options that differ, by their own names.
    pub(crate) fn options(&self) -> Vec<String> {
        self.varied.iter().flat_map(Varied::options).collect()
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// The step as it is given, with what one of them says.
    pub(crate) fn step(&self, number: usize, given: &StepArgs) -> Result<StepArgs, Problem> {
        let (mut step, mut rest) = (given.clone(), number);
        for varied in self.varied.iter().rev() {
            let length = varied.values.len().max(1);
            if let Some((_, said)) = varied.values.get(rest % length) {
                step.take(said)?;
            }
            rest /= length;
        }
        Ok(step)
    }

    /// Which value of each option one of them has.
    pub(crate) fn places(&self, number: u64) -> Vec<u64> {
        let mut rest = number;
        let place = |varied: &Varied| {
            let length = (varied.values.len() as u64).max(1);
            let place = rest % length;
            rest /= length;
            place
        };
        let mut places: Vec<u64> = self.varied.iter().rev().map(place).collect();
        places.reverse();
        places
    }

    /// What a report shows of them.
    pub(crate) fn dimensions(&self) -> Vec<Dimension> {
        let dimension = |varied: &Varied| Dimension {
            name: varied.name.clone(),
            values: varied.settings().cloned().collect(),
        };
        self.varied.iter().map(dimension).collect()
    }
}
