//! What is said of a search: how many combinations fit, which one is the quickest, and what its figures are.

use super::{SearchReport, SearchRow};
use crate::figures::{count, grouped};
use crate::verdict::headroom;
use crate::{Look, times};

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
                     less to spare than a quarter of what it takes; where stages or ranks differ or micro-batches are many, that is \
                     left open but for what is shown: `plan` of a row's command, which JSON and CSV have the options of, settles it; the others fit \
                     or not by their device peak";

/// What it means that a row fits on the edge.
const EDGE: &str =
    "edge: less is to spare than a CUDA context is taken for; with other drivers or libraries it may not fit";

/// What it means that caches are given back.
const FLUSHES: &str =
    "flushes: it fits once the allocator gives back all that it has cached, and the step waits for that";

impl SearchReport<'_> {
    /// `tried 96 combinations: 12 cannot be, 50 do not fit 24GiB, 34 fit`
    pub(super) fn counts_line(&self) -> String {
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
    pub(super) fn best_line(&self) -> Option<String> {
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

    /// `quickest with room to spare: …`
    pub(super) fn roomy_line(&self) -> Option<String> {
        let by_the_token = if self.differ_in_tokens() { " by the token" } else { "" };
        self.roomy_row().map(|row| format!("quickest{by_the_token} with room to spare: {}", self.said(row)))
    }

    /// `llama-3.1-70b: 70,553,706,496 parameters; 64 sequences in a step`
    pub(super) fn step_line(&self, name: &str) -> String {
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

    /// Whether combinations sum up their gradients over different numbers of micro-batches.
    fn differ_in_accumulation(&self) -> bool {
        let steps = |row: &SearchRow| row.gradient_accumulation_steps;
        self.rows.windows(2).any(|pair| matches!(pair, [one, other] if steps(one) != steps(other)))
    }

    /// What is said above the front.
    pub(super) fn heading(&self) -> &'static str {
        match self.front().any(|row| row.time().is_some()) {
            true => PARETO,
            false if self.card.speeds.is_none() => LEAST,
            false => LEAST_BY_A_RATE,
        }
    }

    /// Which rate is not known where combinations have no time, each once.
    fn no_time_lines(&self) -> impl Iterator<Item = String> {
        let lacking = times::lacking(self.rows.iter().map(|row| (row.number, row.tried.slowest.time)));
        lacking.into_iter().filter_map(|(unknown, rows)| {
            let why = times::not_known(unknown, self.card)?;
            let of = if rows.len() == 1 { "combination has" } else { "combinations have" };
            Some(format!("{} {of} no time: {why}", grouped(rows.len() as u64)))
        })
    }

    /// What is said of the figures.
    pub(super) fn notes(&self) -> impl Iterator<Item = String> {
        let has_time = self.rows.iter().any(|row| row.time().is_some());
        let has_ranks = self.plan.is_some_and(|plan| plan.mesh.world > 1);
        let time = has_time.then_some(TIME).into_iter().chain((has_time && has_ranks).then_some(WHOSE));
        time.map(str::to_owned).chain(self.no_time_lines()).chain([TAKEN.to_owned()])
    }

    /// Of what rows there are, the front's that are shown, and what is said of the others.
    pub(super) fn shown_front(
        &self,
        look: &Look,
    ) -> (impl Iterator<Item = &SearchRow> + Clone, Option<String>) {
        let shown = look.shown(self.front.len());
        let more = self.front.len() - shown;
        let more =
            (more > 0).then(|| format!("and {more} more that take less and longer (--all shows them)"));
        (self.front().take(shown), more)
    }

    /// What the marks of rows mean, of those that are there.
    pub(super) fn legend<'r>(mut rows: impl Iterator<Item = &'r SearchRow> + Clone) -> Vec<&'static str> {
        let edge = rows.clone().any(|row| row.tried.verdict.is_on_the_edge());
        let flushes = rows.any(SearchRow::flushes_at_all);
        let all = [(edge, EDGE), (flushes, FLUSHES)];
        all.into_iter().filter_map(|(there, said)| there.then_some(said)).collect()
    }

    /// Why combinations cannot be, the most first.
    pub(super) fn refused_lines(&self) -> impl Iterator<Item = (String, String)> {
        self.refused.iter().map(|refused| {
            let option = refused.option.as_deref().map(|option| format!("{option}: ")).unwrap_or_default();
            (grouped(refused.count), format!("{option}{}", refused.cause))
        })
    }
}
