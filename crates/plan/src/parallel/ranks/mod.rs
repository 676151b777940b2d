//! Every rank's ledger: ranks that run the same thing are one class, which is planned once.

mod class;
mod closely;
#[cfg(test)]
mod tests;
mod uneven;
mod worst;

pub use class::{Class, RankClass, classes};
pub(crate) use closely::classes_closely;
pub use closely::{Look, plan_ranks_closely};
pub(crate) use worst::classes_that_may_need_most;

use super::{Mesh, Parallel};
use crate::Plan;
use crate::config::Architecture;
use crate::options::Options;
use crate::plan::{Counted, plan_stage};
use peakledger_input::Problem;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

/// Which rank's plan is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// The first of those that need most.
    Worst,
    /// This one.
    Rank(u32),
}

/// The plan of one rank, and what was looked at of every class.
#[derive(Debug)]
pub struct Ranks<T> {
    /// The plan that is shown.
    pub plan: Plan,
    /// The place of its class in [`Ranks::each`].
    pub shown: usize,
    /// The place of the class that needs most.
    pub worst: usize,
    /// Every class, in the order of their first ranks.
    pub each: Vec<(RankClass, T)>,
}

/// Plans of two classes are made at once: each takes a core, and memory for its tape.
const AT_ONCE: usize = 2;

/// Layers × micro-batches of a rank beside which there is memory for another's: what asks for every storage writes them down.
const MOST_BESIDE: u64 = 1 << 14;

/// Plans every class of ranks once, and lets go of all plans but the one that is shown. `look` says what a rank needs, which may
/// be several amounts of which the first that differs decides, and what is to be known of its plan.
///
/// # Errors
/// The first problem of any class.
pub fn plan_ranks<N: Ord + Send, T: Send>(
    architecture: &Architecture,
    options: &Options,
    shown: Shown,
    look: impl Fn(&Plan) -> (N, T) + Sync,
) -> Result<Ranks<T>, Problem> {
    if let Shown::Rank(rank) = shown {
        // there may be no such rank
        let etp = Some(options.mesh()?.etp);
        Mesh::of(&Parallel { rank, etp, ..options.parallel.clone() })?;
    }
    plan_classes(architecture, options, classes(architecture, options)?, shown, look)
}

/// Plans some classes of ranks, as [`plan_ranks`] does all.
pub(crate) fn plan_classes<N: Ord + Send, T: Send>(
    architecture: &Architecture,
    options: &Options,
    classes: Vec<RankClass>,
    shown: Shown,
    look: impl Fn(&Plan) -> (N, T) + Sync,
) -> Result<Ranks<T>, Problem> {
    let (next, counted, is_refused) = (AtomicUsize::new(0), Counted::new(), AtomicBool::new(false));
    let found: Mutex<Found<N, T>> = Mutex::new(Found { shown, kept: None, each: BTreeMap::new() });
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            // classes are taken in their order, so that the first that is refused is among those that were
            let Some(class) = classes.get(at).filter(|_| !is_refused.load(Ordering::Relaxed)) else { break };
            let mut options = options.clone();
            options.parallel.rank = match shown {
                Shown::Rank(rank) if class.has(rank) => rank,
                _ => class.first(),
            };
            let planned = plan_stage(architecture.clone(), options, &counted);
            let planned = planned.map(|plan| (look(&plan), plan));
            is_refused.fetch_or(planned.is_err(), Ordering::Relaxed);
            if let Ok(mut found) = found.lock() {
                found.add(at, class, planned);
            }
        }
    };
    let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let at_once = if closely::blocks(architecture, options) > MOST_BESIDE { 1 } else { AT_ONCE };
    match classes.len().min(cores).min(at_once) {
        0 | 1 => work(),
        threads => thread::scope(|scope| {
            for _ in 1..threads {
                scope.spawn(work);
            }
            work();
        }),
    }
    let Found { kept, each, .. } = match found.into_inner() {
        Ok(found) => found,
        Err(poisoned) => poisoned.into_inner(),
    };
    let mut worst: Option<(N, usize)> = None;
    let mut all = Vec::with_capacity(each.len());
    for (at, (class, planned)) in classes.into_iter().zip(each.into_values()).enumerate() {
        let (needed, looked) = planned?;
        if worst.as_ref().is_none_or(|(most, _)| needed > *most) {
            worst = Some((needed, at));
        }
        all.push((class, looked));
    }
    let worst = worst.map_or(0, |(_, at)| at);
    match kept {
        Some((shown, plan)) => Ok(Ranks { plan, shown, worst, each: all }),
        None => unreachable!("a world has a rank, and its plan or a problem"),
    }
}

/// What classes were planned so far.
struct Found<N, T> {
    shown: Shown,
    /// The plan that is kept, and the place of its class.
    kept: Option<(usize, Plan)>,
    each: BTreeMap<usize, Result<(N, T), Problem>>,
}

impl<N: Ord, T> Found<N, T> {
    fn add(&mut self, at: usize, class: &RankClass, planned: Result<((N, T), Plan), Problem>) {
        let looked = planned.map(|((needed, looked), plan)| {
            let before =
                self.kept.as_ref().and_then(|(at, _)| Some((&self.each.get(at)?.as_ref().ok()?.0, *at)));
            let is_kept = match (self.shown, before) {
                (Shown::Rank(rank), _) => class.has(rank),
                (Shown::Worst, Some((most, before))) => (&needed, Reverse(at)) > (most, Reverse(before)),
                (Shown::Worst, None) => true,
            };
            if is_kept {
                self.kept = Some((at, plan));
            }
            (needed, looked)
        });
        self.each.insert(at, looked);
    }
}
