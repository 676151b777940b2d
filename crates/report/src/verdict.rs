//! Whether a step fits a card, in a sentence: what `plan` and `fit` say alike.

use crate::figures::spare_or_short;
use peakledger_core::Bytes;
use peakledger_plan::Verdict;
use peakledger_plan::catalogue::Card;

/// `fits: 7.27 GiB to spare on …`, and what that is made of.
pub(crate) fn sentence(card: &Card, verdict: Verdict, device_peak: Bytes) -> String {
    let answer = if verdict.fits() { "fits" } else { "does not fit" };
    let headroom = spare_or_short(verdict.headroom());
    let (name, context) = (card.full_name.as_deref().unwrap_or(&card.name), Verdict::outside(Some(card)));
    format!(
        "{answer}: {headroom} on {name} ({device_peak} at the device peak and {context} of CUDA context, of {})",
        card.total
    )
}
