//! How a number came about: the storages behind a name, each with its shape and type, the op that made it, why it is kept,
//! and from when to when. The step is run once more for it, with what a plan does not record.

mod names;
mod pattern;
mod study;
#[cfg(test)]
mod tests;
mod why;

use crate::contributors::{Contributor, GroupKey, Places};
use crate::plan::{Plan, Step};
use crate::step;
use crate::torch::Dtype;
use crate::torch::facts::Facts;
use crate::torch::tape::Stored;
use pattern::Pattern;
use peakledger_core::{Bytes, Category, Detail, Phase};
use peakledger_input::{Problem, near, quoted};
use study::Study;

/// The storages behind a name, those that are alike together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The step that they are looked for in.
    pub step: Step,
    /// Whether they are those at the op-level peak, or all of the step.
    pub at_peak: bool,
    /// What they are, largest together first, then by name.
    pub parts: Vec<Explained>,
    /// Their bytes together; of storages that never meet, too.
    pub bytes: Bytes,
}

/// Storages that differ in nothing but their layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explained {
    /// What each is called, with `*` for the layer where there are several: `model.layers.*.mlp.act_fn: silu`.
    pub name: String,
    /// Their category.
    pub category: Category,
    /// The finer word.
    pub detail: Option<Detail>,
    /// The sizes of each.
    pub shape: Vec<u64>,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Bytes that each asks for: its sizes times the width of an element.
    pub requested: Bytes,
    /// Bytes of each, rounded up to blocks of 512.
    pub each: Bytes,
    /// How many there are.
    pub count: u64,
    /// Their bytes together.
    pub bytes: Bytes,
    /// The op that made it; nothing for what was there before.
    pub op: Option<&'static str>,
    /// Why it is there, in a sentence.
    pub why: String,
    /// The file that says so, for memory inside kernels.
    pub source: Option<&'static str>,
    /// When it comes; nothing where it is there before the step.
    pub from: Option<When>,
    /// When it goes; nothing where it stays.
    pub until: Option<When>,
}

/// A moment of a step, of any micro-batch and any layer: the op that runs, and where.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct When {
    /// The phase.
    pub phase: Phase,
    /// The module, with `*` for the layer.
    pub module: String,
    /// The op, by torch's name.
    pub op: &'static str,
}

impl Plan {
    /// Explains a contributor, a category, or the states of a name or pattern (`*` and `?`). A name may be cut short at its end,
    /// and where nothing begins so, it may be any part of one: a module without what it is in, or an op.
    ///
    /// # Errors
    /// Says that nothing has the name, and which one is near.
    pub fn explain(&self, asked: &str, step: Option<Step>) -> Result<Explanation, Problem> {
        let steps = self.options.gradient_accumulation_steps;
        let (outcome, facts) = step::run_recording(
            &self.architecture,
            &self.options,
            self.seq_len,
            steps,
            Some(Facts::default()),
        )?;
        let at = self.peak_in(step);
        let asked = Pattern::of(asked);
        let study = Study::new(&outcome.folded.run, facts.unwrap_or_default(), at.step.step);
        let at_peak = self.standing_groups(at.step.step, Some(at.phase.moment));
        let in_step = self.standing_groups(at.step.step, None);
        let wanted = |asked: &Pattern, groups: &[(GroupKey, Contributor)]| -> Vec<GroupKey> {
            // a name that is said whole means that alone
            let is = |c: &Contributor| asked.is(&c.name) || asked.is(c.category.as_str());
            let fits = |c: &Contributor| asked.fits(&c.name) || asked.fits(c.category.as_str());
            let whole = groups.iter().any(|(_, contributor)| is(contributor));
            let meant = groups.iter().filter(|(_, c)| if whole { is(c) } else { fits(c) });
            meant.map(|(key, _)| *key).collect()
        };
        let places = Places::of(&outcome.folded.run);
        let is_of = |keys: &[GroupKey], stored: &Stored| keys.contains(&places.group_key(stored).0);
        // what forms the peak first, then what is named so at another time, then states by their own names
        let found = |asked: &Pattern| match (wanted(asked, &at_peak), wanted(asked, &in_step)) {
            (keys, _) if !keys.is_empty() => {
                study.of(Some(at.phase.moment), |stored, _| is_of(&keys, stored))
            }
            (_, keys) if !keys.is_empty() => study.of(None, |stored, _| is_of(&keys, stored)),
            _ => study.of(None, |stored, name| {
                asked.fits(name) || stored.detail.is_some_and(|detail| asked.fits(detail.as_str()))
            }),
        };
        let explanation = match (found(&asked), asked.anywhere()) {
            (explanation, Some(part)) if explanation.parts.is_empty() => found(&part),
            (explanation, _) => explanation,
        };
        if explanation.parts.is_empty() {
            let names: Vec<&str> = in_step.iter().map(|(_, c)| c.name.as_str()).collect();
            return Err(unknown(&asked.text, &names));
        }
        Ok(explanation)
    }
}

fn unknown(asked: &str, names: &[&str]) -> Problem {
    let categories = Category::ALL.map(Category::as_str);
    let known = || names.iter().copied().chain(categories);
    let lower: Vec<String> = known().map(str::to_lowercase).collect();
    let near = near(asked, lower.iter().map(String::as_str));
    let near = near.and_then(|near| known().find(|name| name.to_lowercase() == near));
    let problem = Problem::in_option("--explain", format!("nothing of this step is named {}", quoted(asked)));
    problem.mend(match near {
        Some(near) => format!("did you mean `{near}`?"),
        None => "name a contributor of the plan, a category, or a module such as `model.layers.0.mlp`; `*` stands for any letters".to_owned(),
    })
}
