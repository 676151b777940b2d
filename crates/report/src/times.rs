//! Theoretical times as JSON; and which rate is not known where there is none, and how to have one.

use crate::figures::seconds;
use peakledger_plan::catalogue::Card;
use peakledger_plan::{Dtype, StepTime, Unknown};
use serde::Serialize;

/// The time of a step by its slowest rank.
#[derive(Serialize)]
#[allow(clippy::struct_field_names)] // the unit of each
pub(crate) struct TimeJson {
    /// All that keeps the rank busy, and the bubble.
    step_seconds: f64,
    recompute_seconds: f64,
    host_seconds: f64,
    communicated_seconds: f64,
    /// What of that is spent in groups that span nodes.
    between_nodes_seconds: f64,
    /// How long the stages of a pipeline wait for each other.
    bubble_seconds: f64,
}

impl From<StepTime> for TimeJson {
    fn from(time: StepTime) -> TimeJson {
        TimeJson {
            step_seconds: seconds(time.step()),
            recompute_seconds: seconds(time.busy.recompute),
            host_seconds: seconds(time.busy.host),
            communicated_seconds: seconds(time.busy.sent),
            between_nodes_seconds: seconds(time.busy.between_nodes),
            bubble_seconds: seconds(time.bubble),
        }
    }
}

/// Which rates are not known, each once, with all that have no time for it.
pub(crate) fn lacking<T>(
    times: impl Iterator<Item = (T, Result<StepTime, Unknown>)>,
) -> Vec<(Unknown, Vec<T>)> {
    let mut lacking: Vec<(Unknown, Vec<T>)> = Vec::new();
    for (whose, time) in times {
        let Err(unknown) = time else { continue };
        match lacking.iter_mut().find(|(other, _)| *other == unknown) {
            Some((_, all)) => all.push(whose),
            None => lacking.push((unknown, vec![whose])),
        }
    }
    lacking
}

/// Why there is no time on a card, with the mend: `Tesla T4 has no rate for bf16 …`. Nothing where all its rates are not known,
/// or no card is named: who writes 80GiB asks for no time.
pub(crate) fn not_known(unknown: Unknown, card: &Card) -> Option<String> {
    let name = card.full_name.as_deref().unwrap_or(&card.name);
    match unknown {
        Unknown::Rates => None,
        Unknown::Type(dtype) => {
            let has_fp16 = card.speeds.as_ref().is_some_and(|speeds| speeds.fp16.is_some());
            let other = if has_fp16 && dtype != Dtype::F16 { "fp16-mixed" } else { "fp32" };
            Some(format!("{name} has no rate for {} (it has one for `--precision {other}`)", dtype.as_str()))
        }
        Unknown::Network => Some(format!(
            "the rate of the network between nodes of {name} is not known (`--network-gbps-per-gpu` says it)"
        )),
    }
}
