//! The way from what is predicted to what the card holds: the remainder by name.

use super::ReconcileReport;
use crate::figures::{plus, signed};
use peakledger_core::Bytes;
use serde::Serialize;

/// A part of the way from the plan to the card.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Part {
    pub(super) name: &'static str,
    pub(super) bytes: i128,
    /// Whether it is a sum of those before it.
    pub(super) total: bool,
    pub(super) why: &'static str,
}

impl Part {
    /// A sum as it is, and what is added with its sign.
    pub(super) fn told(&self) -> String {
        if self.total { signed(self.bytes) } else { plus(self.bytes) }
    }
}

impl ReconcileReport<'_> {
    /// From what is predicted to what the card holds, each part by its name.
    pub(super) fn bridge(&self) -> Vec<Part> {
        let Some((row, measured)) = self.peak() else { return Vec::new() };
        let part = |name, bytes: i128, total, why| Part { name, bytes, total, why };
        let of = |bytes: Bytes| i128::from(bytes.get());
        let mut parts = vec![part("predicted", of(row.predicted.total), true, "the plan, at device level")];
        // they are known where most is in use, and nowhere else
        let tails = self.facts.tails.filter(|(at, _)| *at == measured.total.get());
        let tails = tails.map(|(_, tails)| i128::from(tails));
        if let Some(tails) = tails {
            parts.push(part(
                "unsplit tails",
                tails,
                false,
                "blocks that the allocator does not cut to the request",
            ));
        }
        let rest = measured.total.minus(row.predicted.total) - tails.unwrap_or(0);
        parts.push(part("unexplained", rest, false, "what the plan does not know of, or has too much of"));
        parts.push(part("allocated", of(measured.total), true, "measured in use"));
        if let Some(reserved) = self.facts.reserved.map(i128::from) {
            let free = reserved - of(measured.total);
            parts.push(part(
                "reserved beyond",
                free,
                false,
                "what the caching allocator held where it held most",
            ));
            parts.push(part("reserved", reserved, true, "measured, at its own peak"));
            if let Some(outside) = self.facts.outside.map(i128::from) {
                parts.push(part(
                    "context and others",
                    outside,
                    false,
                    "what neither the allocator holds nor is free",
                ));
                parts.push(part("the card", reserved + outside, true, "in use on the device"));
            }
        }
        parts
    }
}
