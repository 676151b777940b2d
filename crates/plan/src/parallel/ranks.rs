//! Every rank's ledger: ranks that run the same thing are one class, which is planned once.

use super::data::leaving::Leaving;
use super::data::parts::{Keeping, Parts};
use super::{Mesh, Parallel, Sharding, Stack};
use crate::Plan;
use crate::config::Architecture;
use crate::options::Options;
use crate::parallel::stage::parts;
use crate::plan::{Counted, checked, plan_stage};
use crate::step::trained_numbers;
use peakledger_input::Problem;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

/// What decides which class a rank is in: ranks whose values are the same hold the same bytes at the same moments.
///
/// Ranks of a tensor parallel group, and those that shard by FSDP2 or Megatron's distributed optimizer, are taken to be like
/// their first, which has the largest shards where what they share out does not divide; a strategy whose ranks differ by more
/// adds what tells them apart. A rank that is asked for is planned itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Class {
    /// The pipeline stage.
    pub stage: u32,
    /// The place in the context parallel group, on transformers' modules: each attends to other parts of what comes round, and
    /// the last alone makes no mask. Megatron's ranks are taken to be like their first.
    pub cp: Option<u32>,
    /// Under ZeRO 1 and 2 of transformers' modules, the first place in the data parallel group whose part is of as much of the
    /// same parameters.
    pub dp: Option<u32>,
}

/// What tells ranks of a stage apart.
#[derive(Default)]
struct Apart {
    /// Whether their place in the context parallel group does.
    cp: bool,
    /// Of each stage, the places in the data parallel group that are alike, one run after the other; one run of all where
    /// nothing tells them apart.
    dp: Option<Vec<Vec<Range<u32>>>>,
}

impl Apart {
    fn of(architecture: &Architecture, options: &Options, mesh: &Mesh) -> Result<Apart, Problem> {
        let on_transformers = options.stack == Stack::Transformers;
        let mut apart = Apart { cp: mesh.cp > 1 && on_transformers, dp: None };
        let in_parts = matches!(options.parallel.sharding, Sharding::Zero1 | Sharding::Zero2);
        if mesh.dp > 1 && on_transformers && in_parts {
            let parts = |stage| Ok(parts_of(architecture, options, mesh, stage)?.alike());
            apart.dp = Some((0..mesh.pp).map(parts).collect::<Result<_, Problem>>()?);
        }
        Ok(apart)
    }

    /// The ranks of a stage, in order, each run of neighbours with their class.
    fn runs(&self, mesh: &Mesh, stage: u32) -> Vec<(Class, Range<u32>)> {
        let of_stage = self.dp.as_ref().and_then(|dp| dp.get(stage as usize));
        let all = 0..mesh.dp;
        let mut runs = Vec::new();
        for alike in of_stage.map_or(std::slice::from_ref(&all), Vec::as_slice) {
            let class = Class { stage, cp: None, dp: of_stage.map(|_| alike.start) };
            if !self.cp {
                runs.push((class, mesh.rank_at(stage, alike.start, 0)..mesh.rank_at(stage, alike.end, 0)));
                continue;
            }
            let places = alike.clone().flat_map(|dp| (0..mesh.cp).map(move |cp| (dp, cp)));
            runs.extend(places.map(|(dp, cp)| {
                let first = mesh.rank_at(stage, dp, cp);
                (Class { cp: Some(cp), ..class }, first..first + mesh.tp)
            }));
        }
        runs
    }
}

/// The parts that data parallel ranks of a stage have.
fn parts_of(
    architecture: &Architecture,
    options: &Options,
    mesh: &Mesh,
    stage: u32,
) -> Result<Parts, Problem> {
    checked(architecture, options)?;
    let rank = mesh.rank_at(stage, 0, 0);
    let parallel = Parallel { rank, ..options.parallel.clone() };
    let sizes = trained_numbers(architecture, &Options { parallel, ..options.clone() })?;
    Ok(Parts::of(sizes, mesh.dp))
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
pub fn classes(architecture: &Architecture, options: &Options) -> Result<Vec<RankClass>, Problem> {
    let mesh = options.mesh()?;
    let parallel = Parallel { etp: Some(mesh.etp), ..options.parallel.clone() };
    sorted(&parallel, architecture.shape.num_hidden_layers, &Apart::of(architecture, options, &mesh)?)
}

/// Those of them that one may look at alone for the device peak: the others keep no more, and no earlier.
///
/// # Errors
/// As [`classes`].
pub(crate) fn classes_that_may_need_most(
    architecture: &Architecture,
    options: &Options,
) -> Result<Vec<RankClass>, Problem> {
    let mut all = classes(architecture, options)?;
    if all.iter().any(|class| class.class.dp.is_some()) {
        let mesh = options.mesh()?;
        let of_stage = |stage| {
            let parts = parts_of(architecture, options, &mesh, stage)?;
            Ok(parts_that_may_need_most(options, &parts))
        };
        let most: Vec<Option<Vec<u32>>> = (0..mesh.pp).map(of_stage).collect::<Result<_, Problem>>()?;
        // the places are the first of their runs, as those of classes are
        all.retain(|RankClass { class, .. }| match (most.get(class.stage as usize), &class.dp) {
            (Some(Some(most)), Some(dp)) => most.contains(dp),
            _ => true,
        });
    }
    Ok(all)
}

/// The places whose parts may need most, where that is surely known.
fn parts_that_may_need_most(options: &Options, parts: &Parts) -> Option<Vec<u32>> {
    let (is_stage_1, width) = (options.parallel.sharding == Sharding::Zero1, options.implied().width());
    match (options.offload.optimizer, options.grad_dtype) {
        (false, None) => Some(parts.that_may_need_most(Keeping { last_comes_first: !is_stage_1, width })),
        (true, None) if is_stage_1 => {
            let bucket = options.parallel.data.zero.reduce_bucket_size;
            Some(Leaving { bucket, width, stepped: options.stepped_in().width() }.that_may_need_most(parts))
        }
        // summed in fp32, or sent to the host while backward runs, gradients are there in pieces, at moments of which none is
        // surely the worst
        _ => None,
    }
}

fn sorted(parallel: &Parallel, layers: u32, apart: &Apart) -> Result<Vec<RankClass>, Problem> {
    let mesh = Mesh::of(parallel)?;
    let mut by_class: BTreeMap<Class, Vec<Range<u32>>> = BTreeMap::new();
    for (class, run) in (0..mesh.pp).flat_map(|stage| apart.runs(&mesh, stage)) {
        by_class.entry(class).or_default().push(run);
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

/// The same of some classes.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{Offload, Precision};
    use crate::parallel::Schedule;
    use crate::torch::Dtype;
    use peakledger_core::Bytes;
    use peakledger_input::Source;

    #[test]
    fn ten_thousand_ranks_are_as_many_classes_as_stages() {
        let parallel = Parallel { gpus: Some(10_240), tp: 8, pp: 16, ..Parallel::default() };
        assert_eq!(Mesh::of(&parallel).unwrap().dp, 80);
        let classes = sorted(&parallel, 80, &Apart::default()).unwrap();
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

    /// Of ranks that need the same, the next amount decides, for the plan that is kept and for the place that is named.
    #[test]
    fn a_tie_is_decided_alike_everywhere() {
        let model = crate::catalogue::open_model("qwen2.5-0.5b").unwrap();
        let architecture = Architecture::read(&model.config).unwrap();
        let parallel = Parallel { pp: 4, ..Parallel::default() };
        let options =
            Options { seq_len: Some(64), gradient_accumulation_steps: 4, parallel, ..Options::default() };
        let tied = |plan: &Plan| {
            let peak = plan.device_peak().phase.device_peak;
            ((0, peak), peak)
        };
        let ranks = plan_ranks(&architecture, &options, Shown::Worst, tied).unwrap();
        let most = ranks.each.iter().map(|(_, peak)| *peak).max().unwrap();
        assert_ne!(ranks.each[0].1, most);
        assert_eq!((ranks.each[ranks.worst].1, ranks.shown), (most, ranks.worst));
        assert_eq!(ranks.plan.device_peak().phase.device_peak, most);
    }

    /// Of a model cut into four parts each rank is planned by itself, and is as its class says; the worst is the worst of all,
    /// and among those that may need most at the device.
    #[test]
    fn ranks_with_parts_of_other_parameters_are_told_apart() {
        let config = r#"{"model_type": "llama", "vocab_size": 500, "hidden_size": 64, "intermediate_size": 160,
            "num_hidden_layers": 3, "num_attention_heads": 4, "max_position_embeddings": 256,
            "tie_word_embeddings": TIED}"#;
        let device_peak = |plan: &Plan| plan.device_peak().phase.device_peak;
        let (mut told_apart, mut left_out) = (0, [0; 2]);
        for (tied, sharding, dp, bucket, micro_batches) in [
            ("false", Sharding::Zero2, 4, 500_000_000, 1),
            ("false", Sharding::Zero2, 4, 5_000, 2),
            ("true", Sharding::Zero2, 16, 20_000, 1),
            ("false", Sharding::Zero1, 4, 500_000_000, 2),
            ("true", Sharding::Zero1, 16, 5_000, 1),
        ] {
            for (grad_dtype, offload, pp, precision) in [
                (None, false, 1, Precision::Bf16Mixed),
                (Some(Dtype::F32), false, 1, Precision::Bf16Mixed),
                (None, true, 1, Precision::Bf16Mixed),
                (None, true, 1, Precision::Bf16),
                (None, false, 3, Precision::Bf16Mixed),
            ] {
                let is_refused = match sharding {
                    Sharding::Zero2 => pp > 1,
                    _ => grad_dtype.is_some(),
                };
                if is_refused {
                    continue;
                }
                let text = config.replace("TIED", if pp > 1 { "false" } else { tied });
                let architecture = Architecture::read(&Source::from_text("config.json", text)).unwrap();
                let mut parallel = Parallel { dp: Some(dp), pp, sharding, ..Parallel::default() };
                parallel.data.zero.reduce_bucket_size = bucket;
                let options = Options {
                    seq_len: Some(64),
                    precision,
                    gradient_accumulation_steps: micro_batches,
                    grad_dtype,
                    offload: Offload { optimizer: offload, ..Offload::default() },
                    parallel,
                    ..Options::default()
                };
                let look = |plan: &Plan| (device_peak(plan), device_peak(plan));
                let ranks = plan_ranks(&architecture, &options, Shown::Worst, look).unwrap();
                told_apart += usize::from(ranks.each.len() > pp as usize);
                let mut most = Bytes::ZERO;
                for rank in 0..dp * pp {
                    let parallel = Parallel { rank, ..options.parallel.clone() };
                    let alone = crate::plan(architecture.clone(), Options { parallel, ..options.clone() });
                    let peak = device_peak(&alone.unwrap());
                    let (_, of_class) = ranks.each.iter().find(|(class, _)| class.has(rank)).unwrap();
                    assert_eq!(peak, *of_class, "rank {rank} of {options:?}");
                    most = most.max(peak);
                }
                assert_eq!(device_peak(&ranks.plan), most);
                let few = classes_that_may_need_most(&architecture, &options).unwrap();
                left_out[usize::from(offload)] += ranks.each.len() - few.len();
                let of_few = plan_classes(&architecture, &options, few, Shown::Worst, look).unwrap();
                assert_eq!(device_peak(&of_few.plan), most, "{options:?}");
            }
        }
        assert!(told_apart > 10 && left_out[0] > 10 && left_out[1] > 10, "{told_apart} {left_out:?}");
    }

    #[test]
    fn without_stages_all_ranks_are_alike() {
        let parallel = Parallel { gpus: Some(64), tp: 8, ..Parallel::default() };
        let classes = sorted(&parallel, 32, &Apart::default()).unwrap();
        assert_eq!((classes.len(), classes[0].count(), classes[0].first()), (1, 64, 0));
    }

    #[test]
    fn ranks_that_share_a_sequence_are_told_apart() {
        let parallel = Parallel { gpus: Some(16), tp: 2, cp: 4, ..Parallel::default() };
        let apart = sorted(&parallel, 32, &Apart { cp: true, ..Apart::default() }).unwrap();
        assert_eq!(apart.len(), 4);
        assert_eq!(apart[1].ranks, [2..4, 10..12]);
        assert_eq!((apart[1].class.stage, apart[1].class.cp), (0, Some(1)));
        assert_eq!(sorted(&parallel, 32, &Apart::default()).unwrap().len(), 1);
    }

    #[test]
    fn a_stage_of_dual_pipe_has_layers_of_both_ends() {
        let parallel = Parallel { pp: 4, schedule: Schedule::DualPipe, ..Parallel::default() };
        let layers: Vec<_> =
            sorted(&parallel, 8, &Apart::default()).unwrap().into_iter().map(|class| class.layers).collect();
        assert_eq!(layers[0], [0..2, 6..8]);
        assert_eq!(layers[2], [4..6, 2..4]);
    }
}
