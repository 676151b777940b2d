//! What changes of a step trade: memory against time. Which of them no other one beats in both, and whether an offload is
//! worth its copies.

use crate::figures::percent;
use peakledger_core::Bytes;
use peakledger_plan::{Fit, Picoseconds};
use serde::Serialize;

/// When an offload is worth it, in per cent.
#[derive(Clone, Copy, Debug)]
pub struct OffloadRule {
    /// The share of the device peak that it has to save.
    pub least_saving: u8,
    /// The share of the step's theoretical time, the pipeline's waiting with it, that the copies of the rank that takes longest
    /// may take.
    pub most_time: u8,
}

/// What is to be done with an offload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Judgement {
    /// It saves enough, and the step can hide its copies.
    Accept,
    /// It saves enough, but its copies take long: offload fewer layers, or more seldom.
    Tune,
    /// It does not save enough.
    Reject,
}

impl Judgement {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Judgement::Accept => "accept",
            Judgement::Tune => "tune",
            Judgement::Reject => "reject",
        }
    }
}

/// An offload beside the step that does without it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offloaded {
    pub(crate) judgement: Judgement,
    saved: i128,
    of_peak: Bytes,
    copies: Picoseconds,
    of_step: Picoseconds,
}

impl OffloadRule {
    /// Judges a step that moves more to the host than another does; nothing where it moves no more, or where times are not
    /// known.
    pub(crate) fn judge(self, step: &Fit, before: &Fit) -> Option<Offloaded> {
        let (time, time_before) = (step.slowest.time.ok()?, before.slowest.time.ok()?);
        let (copies, of_step) = (time.busy.host, time_before.step());
        if copies <= time_before.busy.host {
            return None;
        }
        let saved = before.device_peak.minus(step.device_peak);
        let of_peak = before.device_peak;
        let hundredfold = |part: i128| part.saturating_mul(100);
        let enough = hundredfold(saved) >= i128::from(of_peak.get()) * i128::from(self.least_saving);
        let quick = copies.0.saturating_mul(100) <= of_step.0.saturating_mul(u128::from(self.most_time));
        let judgement = match (enough, quick) {
            (false, _) => Judgement::Reject,
            (true, false) => Judgement::Tune,
            (true, true) => Judgement::Accept,
        };
        Some(Offloaded { judgement, saved, of_peak, copies, of_step })
    }
}

impl Offloaded {
    /// `accept: it saves 3.20 GiB (21.3 %) of the device peak for 120.00 ms over the host link (9.8 % of the step)`.
    pub(crate) fn sentence(&self) -> String {
        let saved = Bytes::new(u64::try_from(self.saved).unwrap_or_default());
        format!(
            "{}: it saves {} ({}) of the device peak for {} over the host link, {} of the step's theoretical time",
            self.judgement.as_str(),
            saved,
            percent(saved, self.of_peak),
            self.copies,
            in_percent(self.copies.0, self.of_step.0),
        )
    }
}

/// `9.8 %`
fn in_percent(part: u128, whole: u128) -> String {
    let per_mille = part.saturating_mul(1000).checked_div(whole).unwrap_or_default();
    format!("{}.{} %", per_mille / 10, per_mille % 10)
}

/// Which of some trades no other one beats: none takes no more of both and less of one. Where time is not known there is no
/// front.
pub(crate) fn front(trades: &[Option<(u64, i128)>]) -> Vec<bool> {
    let is_beaten = |(bytes, time): (u64, i128)| {
        let beats =
            |other: &(u64, i128)| other.0 <= bytes && other.1 <= time && (other.0 < bytes || other.1 < time);
        trades.iter().flatten().any(beats)
    };
    trades.iter().map(|trade| trade.is_some_and(|trade| !is_beaten(trade))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_front_is_what_none_beats() {
        let trades = [(90, 0), (60, 20), (60, 30), (70, 20), (40, 80), (95, -5), (40, 80)];
        let trades: Vec<Option<(u64, i128)>> = trades.into_iter().map(Some).chain([None]).collect();
        assert_eq!(front(&trades), [true, true, false, false, true, true, true, false]);
        assert!(front(&[]).is_empty());
    }
}
