//! A combination that can be: whether it fits, how well that is known, and which of several comes first.

use crate::verdict::short_answer;
use peakledger_core::Bytes;
use peakledger_plan::{Picoseconds, Tried, Verdict};

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

impl SearchRow {
    /// The order of rows: those that fit, then the quickest, then those that take least, then as they were counted. Steps of
    /// different lengths are compared by what a token takes.
    pub fn order(&self) -> impl Ord + use<> {
        let of_a_token = |time: Picoseconds| time.0.saturating_mul(1 << 32) / u128::from(self.tokens.max(1));
        let time = self.time().map(of_a_token);
        (!self.tried.verdict.fits(), time.is_none(), time, self.tried.verdict.needed, self.number)
    }

    /// What the caching allocator reserves, where it was found out: where it runs out, it is not.
    pub(super) fn reserved(&self) -> Option<Bytes> {
        let Tried { verdict, outside, .. } = self.tried;
        let reserved = || Bytes::new(verdict.needed.get().saturating_sub(outside.get()));
        (self.is_replayed && verdict.fits()).then(reserved)
    }

    /// The same of how often it gives back what it has cached.
    pub(super) fn flushes(&self) -> Option<u64> {
        (self.is_replayed && self.tried.verdict.fits()).then_some(self.cache_flushes)
    }

    /// Whether it gives back what it has cached, as far as is known.
    pub(super) fn flushes_at_all(&self) -> bool {
        self.flushes().is_some_and(|times| times > 0)
    }

    /// Whether it fits; nothing where it does by its device peak, near the limit, and no replay was run to its end.
    pub(super) fn is_known_to_fit(&self) -> Option<bool> {
        let is_open = !self.is_replayed && is_near(self.tried.verdict);
        (!is_open).then(|| self.tried.verdict.fits())
    }

    /// Whether it is known to fit on the edge.
    pub(super) fn is_known_on_the_edge(&self) -> bool {
        self.is_known_to_fit() == Some(true) && self.tried.verdict.is_on_the_edge()
    }

    /// How well it fits: `open` where that takes a replay that was not run to its end, `yes`, or `edge` where less is to spare
    /// than a CUDA context takes, and `flushes` where caches are given back for it.
    pub(super) fn fits(&self) -> String {
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

    /// How long its step takes in theory.
    pub(super) fn time(&self) -> Option<Picoseconds> {
        self.tried.slowest.time.ok().map(|time| time.step())
    }
}

/// The row that needs least; of equals the first combination.
pub fn closest(rows: &[SearchRow]) -> Option<&SearchRow> {
    rows.iter().min_by_key(|row| (row.tried.verdict.needed, row.number))
}

/// Whether a device peak is so near the limit that what the allocator reserves has to be known: it fits, with less to spare than
/// a quarter of what it takes.
pub fn is_near(verdict: Verdict) -> bool {
    verdict.fits() && verdict.headroom().saturating_mul(4) < i128::from(verdict.needed.get())
}
