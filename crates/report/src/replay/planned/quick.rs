//! Whether a plan fits, and nothing else of its replay: the quick word by which many candidates are tried.

use super::asked::{put, request};
use super::{Reservation, limited, taken};
use peakledger_allocator::{Allocation, Allocator, Settings};
use peakledger_core::Bytes;
use peakledger_plan::catalogue::Card;
use peakledger_plan::{Asks, Plan, Step, Traffic, Verdict};
use std::ops::ControlFlow;

/// Whether a plan fits a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fits {
    /// What it takes, and what there is.
    pub verdict: Verdict,
    /// How often everything cached is given back to the card to make room.
    pub retries: u64,
    /// Whether that is known of the whole step, where micro-batches of it are left out: it is where those that are planned run out
    /// before what is left out would come.
    pub is_of_whole: bool,
}

impl Reservation {
    /// Whether the load and both steps of a plan fit a card; what a step that does not fit would take is not looked at.
    pub fn fits(plan: &Plan, settings: Settings, card: &Card) -> Fits {
        match Reservation::fits_within(plan, settings, card, Bytes::new(u64::MAX)) {
            Some(fits) => fits,
            None => unreachable!("no sum of 64 bits is more than that"),
        }
    }

    /// Whether a plan fits a card and takes no more than `most` of it; nothing of one that takes more, however much that be: what
    /// is reserved once is taken, so that nothing has to be looked at from there on.
    pub fn fits_within(plan: &Plan, settings: Settings, card: &Card, most: Bytes) -> Option<Fits> {
        let most = most.get().saturating_sub(plan.outside(Some(card)).get());
        let mut allocator = Allocator::new(settings, limited(plan, Some(card)));
        let mut held: Vec<Option<Allocation>> = Vec::new();
        let mut reserved = 0;
        let asked = plan.each_ask(&[Step::First, Step::Steady], |step, Traffic { asks, phase, .. }| {
            match asks {
                Asks::EmptiesCache => allocator.empty_cache(),
                Asks::Frees(storage) => {
                    let allocation = held.get_mut(storage as usize).and_then(Option::take);
                    allocation.into_iter().for_each(|allocation| allocator.free(allocation));
                }
                Asks::Allocates(storage, block) => match allocator.alloc(request(block)) {
                    Ok(allocation) => put(&mut held, storage, allocation),
                    Err(oom) => return ControlFlow::Break(Some((oom, step, phase))),
                },
            }
            reserved = reserved.max(allocator.totals().reserved);
            if reserved > most { ControlFlow::Break(None) } else { ControlFlow::Continue(()) }
        });
        let oom = match asked {
            ControlFlow::Break(None) => return None,
            ControlFlow::Break(Some(oom)) => Some(oom),
            ControlFlow::Continue(()) => None,
        };
        let verdict = taken(plan, card, settings, (reserved, oom.as_ref().map(|(oom, ..)| oom)));
        let end = (Step::Steady, plan.steady.phases.len());
        let (step, phase) = oom.map_or(end, |(_, step, phase)| (step, phase));
        Some(Fits { verdict, retries: allocator.retries(), is_of_whole: plan.is_whole_until(step, phase) })
    }
}
