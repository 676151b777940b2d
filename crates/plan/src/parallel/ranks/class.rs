//! Classes of ranks: which of them run the same thing.

use super::uneven::{self, Run};
use crate::config::Architecture;
use crate::options::Options;
use crate::parallel::data::parts::Parts;
use crate::parallel::stage::parts;
use crate::parallel::{Mesh, Parallel, Sharding, Stack};
use crate::plan::checked;
use crate::step::trained_numbers;
use peakledger_input::Problem;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// What decides which class a rank is in: ranks whose values are the same hold the same bytes at the same moments.
///
/// Where what is shared out by rows does not divide, ranks with smaller shards need less, but a caching allocator may reserve more
/// for them: they are told apart. Ranks that share out Megatron's distributed optimizer have parts of one size. A rank that is
/// asked for is planned itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Class {
    /// The pipeline stage.
    pub stage: u32,
    /// The place in the context parallel group, on transformers' modules: each attends to other parts of what comes round, and
    /// the last alone makes no mask. Megatron's ranks are taken to be like their first.
    pub cp: Option<u32>,
    /// On transformers' modules, the first place in the data parallel group that has as much: under ZeRO 1 and 2 of the same
    /// parameters, under FSDP2 where shards are uneven.
    pub dp: Option<u32>,
    /// On transformers' modules, the first place in the tensor parallel group that has as much, where parts are uneven.
    pub tp: Option<u32>,
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

/// The ranks of a world, told apart so, with the layers that each class holds.
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

/// What tells ranks of a stage apart.
#[derive(Default)]
struct Apart {
    /// Whether their place in the context parallel group does.
    cp: bool,
    /// Of each stage, the places that are alike.
    stages: Vec<Places>,
}

/// Places of a stage's groups that are alike, one run after the other; nothing where all are.
#[derive(Default)]
struct Places {
    dp: Option<Vec<Run>>,
    tp: Option<Vec<Run>>,
}

impl Apart {
    fn of(architecture: &Architecture, options: &Options, mesh: &Mesh) -> Result<Apart, Problem> {
        let on_transformers = options.stack == Stack::Transformers;
        let mut apart = Apart { cp: mesh.cp > 1 && on_transformers, stages: Vec::new() };
        if on_transformers {
            let places = |stage| Places::of(architecture, options, mesh, stage);
            apart.stages = (0..mesh.pp).map(places).collect::<Result<_, Problem>>()?;
        }
        Ok(apart)
    }

    /// The ranks of a stage, in order, each run of neighbours with their class.
    fn runs(&self, mesh: &Mesh, stage: u32) -> Vec<(Class, Range<u32>)> {
        let places = self.stages.get(stage as usize);
        let (dp, tp) = (places.and_then(|it| it.dp.as_ref()), places.and_then(|it| it.tp.as_ref()));
        let (all_dp, all_tp) = (all(mesh.dp), all(mesh.tp));
        let mut runs = Vec::new();
        for alike in dp.unwrap_or(&all_dp) {
            let class = Class { stage, cp: None, dp: dp.map(|_| alike.like), tp: None };
            let Range { start, end } = alike.places;
            if !self.cp && tp.is_none() {
                runs.push((class, mesh.rank_at(stage, start, 0)..mesh.rank_at(stage, end, 0)));
                continue;
            }
            for (dp, cp) in (start..end).flat_map(|dp| (0..mesh.cp).map(move |cp| (dp, cp))) {
                let (first, cp) = (mesh.rank_at(stage, dp, cp), self.cp.then_some(cp));
                runs.extend(tp.unwrap_or(&all_tp).iter().map(|Run { places, like }| {
                    (Class { cp, tp: tp.map(|_| *like), ..class }, first + places.start..first + places.end)
                }));
            }
        }
        runs
    }
}

/// All places of a group as one run.
fn all(size: u32) -> Vec<Run> {
    vec![Run { places: 0..size, like: 0 }]
}

impl Places {
    fn of(
        architecture: &Architecture,
        options: &Options,
        mesh: &Mesh,
        stage: u32,
    ) -> Result<Places, Problem> {
        let sharding = options.parallel.sharding;
        let tp = uneven::tensor_places(architecture, options, mesh, stage)?;
        let dp = match sharding {
            Sharding::Zero1 | Sharding::Zero2 if mesh.dp > 1 => {
                // cut wherever the parts of any of the tensor parallel places are
                let mut starts: BTreeSet<u32> = BTreeSet::new();
                for run in tp.as_deref().unwrap_or(&all(mesh.tp)) {
                    let place = (stage, run.places.start);
                    let alike = parts_of(architecture, options, mesh, place)?.alike().into_iter();
                    starts.extend(alike.map(|places| places.start));
                }
                let ends = starts.iter().copied().skip(1).chain([mesh.dp]);
                Some(
                    starts
                        .iter()
                        .zip(ends)
                        .map(|(like, end)| Run { like: *like, places: *like..end })
                        .collect(),
                )
            }
            _ if sharding.is_fsdp() && mesh.dp > 1 => {
                uneven::data_places(architecture, options, mesh, (stage, tp.as_deref()))?
            }
            _ => None,
        };
        Ok(Places { dp, tp })
    }
}

/// The parts that data parallel ranks of a stage have, at a place of the tensor parallel group.
pub(super) fn parts_of(
    architecture: &Architecture,
    options: &Options,
    mesh: &Mesh,
    (stage, tp): (u32, u32),
) -> Result<Parts, Problem> {
    checked(architecture, options)?;
    let rank = mesh.rank_at(stage, 0, 0) + tp;
    let parallel = Parallel { rank, ..options.parallel.clone() };
    let sizes = trained_numbers(architecture, &Options { parallel, ..options.clone() })?;
    Ok(Parts::of(sizes, mesh.dp))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parallel::Schedule;

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
