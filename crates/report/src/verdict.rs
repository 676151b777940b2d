//! Whether a step fits a card, in a sentence: what `plan` and `fit` say alike.

use crate::figures::spare_or_too_much;
use crate::{Origins, PlannedOom, Reservation};
use peakledger_core::Bytes;
use peakledger_plan::catalogue::Card;
use peakledger_plan::{Plan, Verdict};

/// `300.00 MiB of CUDA context`, and what communicators take beside it.
fn outside(plan: &Plan, card: &Card) -> String {
    let context = Verdict::context(Some(card));
    let groups = plan.communicators();
    match groups.iter().fold(0u64, |sum, group| sum.saturating_add(group.bytes.get())) {
        0 => format!("{context} of CUDA context"),
        bytes => {
            let several = if groups.len() == 1 { "" } else { "s" };
            format!(
                "{context} of CUDA context and {} of {} communicator{several}",
                Bytes::new(bytes),
                groups.len()
            )
        }
    }
}

/// `fits`, in the words of a sentence.
pub(crate) fn answer(verdict: Verdict) -> &'static str {
    match (verdict.fits(), verdict.is_on_the_edge()) {
        (true, true) => "fits, on the edge",
        (true, false) => "fits",
        (false, _) => "does not fit",
    }
}

/// `yes`, as a cell has it.
pub(crate) fn short_answer(verdict: Verdict) -> &'static str {
    match (verdict.fits(), verdict.is_on_the_edge()) {
        (true, true) => "edge",
        (true, false) => "yes",
        (false, _) => "no",
    }
}

/// `7.27 GiB to spare, on the edge`.
pub(crate) fn headroom(verdict: Verdict) -> String {
    let edge = if verdict.is_on_the_edge() { ", on the edge" } else { "" };
    spare_or_too_much(verdict.headroom()) + edge
}

/// What is said beside a verdict, or beside the peak where no card is named.
pub(crate) fn caveats(
    plan: &Plan,
    card: Option<&Card>,
    verdict: Option<Verdict>,
    origins: Option<&Origins>,
) -> Vec<String> {
    let edge = verdict.filter(Verdict::is_on_the_edge).map(|verdict| {
        format!(
            "{} to spare is less than drivers and libraries differ by: another CUDA context, and it does not fit",
            Bytes::new(u64::try_from(verdict.headroom()).unwrap_or(0))
        )
    });
    let left_out = origins.and_then(Origins::left_out);
    let not_understood = origins.and_then(Origins::not_understood);
    edge.into_iter()
        .chain(left_out)
        .chain(not_understood)
        .chain(plan.caveats(card))
        .chain(plan.idle_ranks())
        .collect()
}

/// `on` a card there is something to spare, or it is too much `for` it.
fn on_or_for(verdict: Verdict) -> &'static str {
    if verdict.fits() { "on" } else { "for" }
}

/// `fits: 7.27 GiB to spare on …`, and what that is made of.
pub(crate) fn sentence(plan: &Plan, card: &Card, verdict: Verdict, device_peak: Bytes) -> String {
    let (answer, headroom) = (answer(verdict), spare_or_too_much(verdict.headroom()));
    let (name, outside) = (card.full_name.as_deref().unwrap_or(&card.name), outside(plan, card));
    format!(
        "{answer}: {headroom} {} {name} ({device_peak} at the device peak and {outside}, of {})",
        on_or_for(verdict),
        card.total
    )
}

/// The same by what the caching allocator reserves, on a larger card where this one runs out; and where it does, and what was
/// asked for there.
pub(crate) fn of_reserved(
    plan: &Plan,
    card: &Card,
    verdict: Verdict,
    reservation: &Reservation,
    phase: impl Fn(&PlannedOom) -> Option<String>,
) -> String {
    let answer = answer(verdict);
    let (headroom, reserved) = (spare_or_too_much(verdict.headroom()), reservation.reserved());
    let (name, outside) = (card.full_name.as_deref().unwrap_or(&card.name), outside(plan, card));
    let allowed = if verdict.capacity < card.total { " allowed" } else { "" };
    let larger = if reservation.oom.is_some() { " on a larger card" } else { "" };
    let mut text = format!(
        "{answer}: {headroom} {} {name} ({reserved} reserved{larger} and {outside}, of {}{allowed})",
        on_or_for(verdict),
        verdict.capacity
    );
    if reservation.retries > 0 && reservation.oom.is_none() {
        let times = if reservation.retries == 1 {
            "once".to_owned()
        } else {
            format!("{} times", reservation.retries)
        };
        text += &format!("; to make room, cached memory is given back {times}, and the step waits for that");
    }
    if let Some((out, phase)) = reservation.oom.as_ref().and_then(|out| Some((out, phase(out)?))) {
        let (asked, unused) = (Bytes::new(out.oom.segment), Bytes::new(out.oom.unused.unwrap_or(0)));
        text += &format!(
            "; it runs out in {phase} of the {} step: {asked} asked for with {unused} left",
            out.step.as_str()
        );
        let allocated = Bytes::new(reservation.allocated);
        if allocated.checked_add(plan.outside(Some(card))).is_some_and(|needed| needed <= verdict.capacity) {
            let free = Bytes::new(out.oom.totals.free());
            text += &format!(
                ", though no more than {allocated} is ever allocated: {free} of what is reserved is free"
            );
        }
    }
    text
}
