//! Every rank's ledger: ranks that run the same thing are one class, which is planned once.

use super::{Mesh, Parallel, Place, Stack};
use crate::Plan;
use crate::config::Architecture;
use crate::options::Options;
use crate::parallel::stage::parts;
use crate::plan::{Counted, plan_stage};
use peakledger_core::Bytes;
use peakledger_input::Problem;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// What decides which class a rank is in: ranks whose values are the same hold the same bytes at the same moments.
///
/// Ranks of a data or tensor parallel group are taken to be like their first, which has the largest shards where what they
/// share out does not divide; a strategy whose ranks differ by more adds what tells them apart. A rank that is asked for is
/// planned itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Class {
    /// The pipeline stage.
    pub stage: u32,
    /// The place in the context parallel group, on transformers' modules: each attends to other parts of what comes round, and
    /// the last alone makes no mask. Megatron's ranks are taken to be like their first.
    pub cp: Option<u32>,
}

impl Class {
    /// That of a rank that stands there.
    fn of(place: Place, tells_context_apart: bool) -> Class {
        Class { stage: place.pp, cp: tells_context_apart.then_some(place.cp) }
    }
}

/// Ranks that run the same thing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankClass {
    /// What they have in common.
    pub class: Class,
    /// Which they are, in order.
    pub ranks: Vec<Range<u32>>,
    /// The layers that they hold, each part's from the first to the one after the last.
    pub layers: Vec<Range<u32>>,
}

impl RankClass {
    /// How many ranks there are.
    pub fn count(&self) -> u32 {
        self.ranks.iter().map(|ranks| ranks.end - ranks.start).sum()
    }

    /// The first of them, which is planned for all.
    pub fn first(&self) -> u32 {
        self.ranks.first().map_or(0, |ranks| ranks.start)
    }

    /// Whether a rank is one of them.
    pub fn has(&self, rank: u32) -> bool {
        self.ranks.iter().any(|ranks| ranks.contains(&rank))
    }
}

/// The classes of a world, in the order of their first ranks.
///
/// # Errors
/// Says which sizes make no world, or which layers cannot be split.
pub fn classes(parallel: &Parallel, stack: Stack, layers: u32) -> Result<Vec<RankClass>, Problem> {
    let mesh = Mesh::of(parallel)?;
    let apart = mesh.cp > 1 && stack == Stack::Transformers;
    let mut by_class: BTreeMap<Class, Vec<Range<u32>>> = BTreeMap::new();
    for rank in 0..mesh.world {
        let ranges = by_class.entry(Class::of(mesh.place(rank), apart)).or_default();
        match ranges.last_mut() {
            Some(last) if last.end == rank => last.end = rank + 1,
            _ => ranges.push(rank..rank + 1),
        }
    }
    let with_layers = |(class, ranks): (Class, Vec<Range<u32>>)| {
        let parts = parts(parallel, layers, class.stage)?;
        Ok(RankClass { class, ranks, layers: parts.into_iter().map(|part| part.layers()).collect() })
    };
    let mut classes: Vec<RankClass> = by_class.into_iter().map(with_layers).collect::<Result<_, _>>()?;
    classes.sort_by_key(RankClass::first);
    Ok(classes)
}

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

/// Plans every class of ranks once, and lets go of all plans but the one that is shown. `look` says what a rank needs, and what
/// is to be known of its plan.
///
/// # Errors
/// The first problem of any class.
pub fn plan_ranks<T: Send>(
    architecture: &Architecture,
    options: &Options,
    shown: Shown,
    look: impl Fn(&Plan) -> (Bytes, T) + Sync,
) -> Result<Ranks<T>, Problem> {
    let parallel = Parallel { etp: Some(options.mesh()?.etp), ..options.parallel.clone() };
    let classes = classes(&parallel, options.stack, architecture.shape.num_hidden_layers)?;
    if let Shown::Rank(rank) = shown {
        // there may be no such rank
        Mesh::of(&Parallel { rank, ..parallel })?;
    }
    let (next, counted) = (AtomicUsize::new(0), Counted::new());
    let found: Mutex<Found<T>> = Mutex::new(Found { shown, kept: None, each: BTreeMap::new() });
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(class) = classes.get(at) else { break };
            let mut options = options.clone();
            options.parallel.rank = match shown {
                Shown::Rank(rank) if class.has(rank) => rank,
                _ => class.first(),
            };
            let planned = plan_stage(architecture.clone(), options, &counted);
            let planned = planned.map(|plan| (look(&plan), plan));
            if let Ok(mut found) = found.lock() {
                found.add(at, class, planned);
            }
        }
    };
    let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    match classes.len().min(cores).min(AT_ONCE) {
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
    let mut needs = Vec::with_capacity(each.len());
    let mut all = Vec::with_capacity(each.len());
    for (class, planned) in classes.into_iter().zip(each.into_values()) {
        let (needed, looked) = planned?;
        needs.push(needed);
        all.push((class, looked));
    }
    let worst = (0..).zip(&needs).max_by_key(|(at, needed)| (**needed, Reverse(*at))).map_or(0, |(at, _)| at);
    match kept {
        Some((_, shown, plan)) => Ok(Ranks { plan, shown, worst, each: all }),
        None => unreachable!("a world has a rank, and its plan or a problem"),
    }
}

/// What classes were planned so far.
struct Found<T> {
    shown: Shown,
    /// What the kept plan needs, and the place of its class.
    kept: Option<(Bytes, usize, Plan)>,
    each: BTreeMap<usize, Result<(Bytes, T), Problem>>,
}

impl<T> Found<T> {
    fn add(&mut self, at: usize, class: &RankClass, planned: Result<((Bytes, T), Plan), Problem>) {
        let looked = planned.map(|((needed, looked), plan)| {
            let is_kept = match (self.shown, &self.kept) {
                (Shown::Rank(rank), _) => class.has(rank),
                (Shown::Worst, Some((most, before, _))) => (needed, Reverse(at)) > (*most, Reverse(*before)),
                (Shown::Worst, None) => true,
            };
            if is_kept {
                self.kept = Some((needed, at, plan));
            }
            (needed, looked)
        });
        self.each.insert(at, looked);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parallel::Schedule;

    #[test]
    fn ten_thousand_ranks_are_as_many_classes_as_stages() {
        let parallel = Parallel { gpus: Some(10_240), tp: 8, pp: 16, ..Parallel::default() };
        assert_eq!(Mesh::of(&parallel).unwrap().dp, 80);
        let classes = classes(&parallel, Stack::Transformers, 80).unwrap();
        assert_eq!(classes.len(), 16);
        assert_eq!(classes.iter().map(RankClass::count).sum::<u32>(), 10_240);
        assert!(classes.iter().all(|class| class.count() == 640 && class.ranks.len() == 1));
        let only = |ranges: &[Range<u32>]| (ranges.len(), ranges[0].clone());
        assert_eq!(only(&classes[3].ranks), (1, 1920..2560));
        assert_eq!(only(&classes[3].layers), (1, 15..20));
        assert!(classes[3].has(1920) && !classes[3].has(2560));
    }

    /// The first and the last stage hold embedding and head; which is worse is found, each class is planned once, and any
    /// rank can be shown in its place.
    #[test]
    fn the_worst_rank_is_kept_or_the_one_that_is_asked_for() {
        let model = crate::catalogue::open_model("qwen2.5-0.5b").unwrap();
        let architecture = Architecture::read(&model.config).unwrap();
        let parallel = Parallel { gpus: Some(16), pp: 4, ..Parallel::default() };
        let options = Options {
            seq_len: Some(64),
            gradient_accumulation_steps: 4,
            parallel: Parallel { dp: Some(1), gpus: None, ..parallel },
            ..Options::default()
        };
        let planned = AtomicUsize::new(0);
        let look = |plan: &Plan| {
            planned.fetch_add(1, Ordering::Relaxed);
            let peak = plan.device_peak().phase.device_peak;
            (peak, peak)
        };
        let ranks = plan_ranks(&architecture, &options, Shown::Worst, look).unwrap();
        let peaks: Vec<Bytes> = ranks.each.iter().map(|(_, peak)| *peak).collect();
        assert_eq!((planned.into_inner(), peaks.len()), (4, 4));
        let most = *peaks.iter().max().unwrap();
        assert_eq!((peaks[ranks.worst], ranks.shown), (most, ranks.worst));
        assert_eq!(ranks.plan.device_peak().phase.device_peak, most);
        let look = |plan: &Plan| (plan.device_peak().phase.device_peak, ());
        let ranks = plan_ranks(&architecture, &options, Shown::Rank(2), look).unwrap();
        assert_eq!((ranks.shown, ranks.plan.options.parallel.rank), (2, 2));
        assert_eq!(ranks.plan.device_peak().phase.device_peak, peaks[2]);
        let refused = plan_ranks(&architecture, &options, Shown::Rank(4), look).unwrap_err();
        assert!(refused.to_string().contains("there is no rank 4 of 4"));
    }

    #[test]
    fn without_stages_all_ranks_are_alike() {
        let parallel = Parallel { gpus: Some(64), tp: 8, ..Parallel::default() };
        let classes = classes(&parallel, Stack::Transformers, 32).unwrap();
        assert_eq!((classes.len(), classes[0].count(), classes[0].first()), (1, 64, 0));
    }

    #[test]
    fn ranks_that_share_a_sequence_are_told_apart() {
        let parallel = Parallel { gpus: Some(16), tp: 2, cp: 4, ..Parallel::default() };
        let apart = classes(&parallel, Stack::Transformers, 32).unwrap();
        assert_eq!(apart.len(), 4);
        assert_eq!(apart[1].ranks, [2..4, 10..12]);
        assert_eq!((apart[1].class.stage, apart[1].class.cp), (0, Some(1)));
        assert_eq!(classes(&parallel, Stack::Megatron, 32).unwrap().len(), 1);
    }

    #[test]
    fn a_stage_of_dual_pipe_has_layers_of_both_ends() {
        let parallel = Parallel { pp: 4, schedule: Schedule::DualPipe, ..Parallel::default() };
        let layers: Vec<_> = classes(&parallel, Stack::Transformers, 8)
            .unwrap()
            .into_iter()
            .map(|class| class.layers)
            .collect();
        assert_eq!(layers[0], [0..2, 6..8]);
        assert_eq!(layers[2], [4..6, 2..4]);
    }
}
