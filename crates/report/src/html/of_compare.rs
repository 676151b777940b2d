//! The page of a comparison: the baseline, and each candidate on the same axes.

use super::document::{Exact, Measure, Moved, Page, Role};
use super::series::{Room, series};
use super::states::short;
use crate::figures::count;
use crate::{Candidate, CompareReport};

/// The candidates that are drawn, the first of them.
const MOST_CANDIDATES: usize = 64;
/// The moved states of a candidate that are listed.
const MOST_MOVED: usize = 50;

impl CompareReport<'_> {
    /// Its page.
    pub(crate) fn html_page(&self) -> Page {
        let of_peak = self.baseline.phases().map(|(slot, _)| {
            let at_peak = std::ptr::eq(slot, self.baseline.peak().slot);
            self.baseline_op.filter(|_| at_peak)
        });
        let mut all = vec![series(self.baseline_name, Role::Subject, self.baseline, of_peak, Room::SUBJECT)];
        let drawn = self.candidates.get(..MOST_CANDIDATES).unwrap_or(&self.candidates);
        let room = Room::shared(drawn.len());
        all.extend(drawn.iter().map(|candidate| {
            let Candidate { name, ledger, comparison } = candidate;
            let mut one = series(name, Role::Candidate, ledger, std::iter::empty(), room);
            one.saving = Some(comparison.saving);
            let moved = comparison.moved.iter().take(MOST_MOVED.min(room.states / 8));
            one.moved = moved
                .map(|moved| Moved {
                    name: short(moved.name).into_owned(),
                    before: Exact(moved.before.get()),
                    after: Exact(moved.after.get()),
                    change: moved.change.as_str(),
                })
                .collect();
            one
        }));
        Page {
            version: env!("CARGO_PKG_VERSION"),
            title: short(self.baseline_name).into_owned(),
            subtitle: Some(count(self.candidates.len(), "candidate", "candidates")),
            measure: Measure::Ledger,
            series: all,
            series_left_out: self.candidates.len() - drawn.len(),
            ..Page::default()
        }
    }
}
