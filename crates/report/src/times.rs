//! Which rate is not known where there is no theoretical time, and how to have one.

use peakledger_plan::catalogue::Card;
use peakledger_plan::{Dtype, Unknown};

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
