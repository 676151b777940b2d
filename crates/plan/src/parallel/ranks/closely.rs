//! Every kind of ranks is planned, and looked at closely as far as that is no more than a second's work: what a caching
//! allocator makes of a step takes a hundred times what the plan takes. Where ranks are of many kinds and their steps long,
//! those alone are looked at closely that need most at the first look.

use super::{RankClass, Ranks, Shown, classes, plan_classes, plan_ranks};
use crate::config::Architecture;
use crate::options::Options;
use crate::plan::Plan;
use peakledger_input::Problem;
use std::cmp::Reverse;

/// How much of a plan is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// What is read off it.
    First,
    /// And what takes a run of all that its steps ask for.
    Close,
}

/// Layers × micro-batches, of all kinds of ranks together, that are looked at closely.
const MOST_BLOCKS: u64 = 1 << 15;

/// As many kinds are looked at closely, however long their steps are.
const FEWEST: usize = 4;

/// Plans every class of ranks as [`plan_ranks`] does, where `look` may take long if it is close. The rank that needs most is one
/// of those that were looked at closely, and so is the one that is shown.
///
/// # Errors
/// The first problem of any class.
pub fn plan_ranks_closely<N: Ord + Clone + Send, T: Send>(
    architecture: &Architecture,
    options: &Options,
    shown: Shown,
    look: impl Fn(&Plan, Look) -> (N, T) + Sync,
) -> Result<Ranks<T>, Problem> {
    let FirstLook { mut each, chosen } =
        match first_look(architecture, options, shown, |plan| look(plan, Look::First))? {
            Some(first) => first,
            None => return plan_ranks(architecture, options, shown, |plan| look(plan, Look::Close)),
        };
    let of = chosen.iter().filter_map(|at| each.get(*at)).map(|(class, _)| class.clone()).collect();
    let close = plan_classes(architecture, options, of, shown, |plan| look(plan, Look::Close))?;
    let place = |at: usize| chosen.get(at).copied().unwrap_or_default();
    let (shown, worst) = (place(close.shown), place(close.worst));
    for (at, looked) in chosen.into_iter().zip(close.each) {
        if let Some(of_class) = each.get_mut(at) {
            *of_class = looked;
        }
    }
    Ok(Ranks { plan: close.plan, shown, worst, each })
}

/// The classes of a world, each with how [`plan_ranks_closely`] looks at it where none is asked for by its number.
///
/// # Errors
/// The first problem of any class.
pub(crate) fn classes_closely(
    architecture: &Architecture,
    options: &Options,
) -> Result<Vec<(RankClass, Look)>, Problem> {
    let needs = |plan: &Plan| (plan.needs(plan.device_needs(), None), ());
    let Some(FirstLook { each, chosen }) = first_look(architecture, options, Shown::Worst, needs)? else {
        let all = classes(architecture, options)?;
        return Ok(all.into_iter().map(|class| (class, Look::Close)).collect());
    };
    let look = |at| if chosen.contains(&at) { Look::Close } else { Look::First };
    Ok(each.into_iter().enumerate().map(|(at, (class, ()))| (class, look(at))).collect())
}

/// Every class with what a first look saw of it, and the places of those that are looked at closely.
struct FirstLook<T> {
    each: Vec<(RankClass, T)>,
    chosen: Vec<usize>,
}

/// Looks at every class once; nothing where they are so few that each is looked at closely straight away.
fn first_look<N: Ord + Clone + Send, T: Send>(
    architecture: &Architecture,
    options: &Options,
    shown: Shown,
    look: impl Fn(&Plan) -> (N, T) + Sync,
) -> Result<Option<FirstLook<T>>, Problem> {
    let few = closely(architecture, options);
    if classes(architecture, options)?.len() <= few {
        return Ok(None);
    }
    let first = plan_ranks(architecture, options, shown, |plan| {
        let (needs, looked) = look(plan);
        (needs.clone(), (needs, looked))
    })?;
    let (needs, each): (Vec<N>, Vec<(RankClass, T)>) =
        first.each.into_iter().map(|(class, (needs, looked))| (needs, (class, looked))).unzip();
    let chosen = that_need_most(&needs, few, first.shown);
    Ok(Some(FirstLook { each, chosen }))
}

/// How many kinds of ranks are looked at closely.
fn closely(architecture: &Architecture, options: &Options) -> usize {
    let each = blocks(architecture, options).max(1);
    usize::try_from(MOST_BLOCKS / each).unwrap_or(usize::MAX).max(FEWEST)
}

/// Layers × micro-batches of a rank.
pub(super) fn blocks(architecture: &Architecture, options: &Options) -> u64 {
    let layers = architecture.shape.num_hidden_layers.div_ceil(options.parallel.pp.max(1));
    u64::from(layers).saturating_mul(options.gradient_accumulation_steps.into())
}

/// Those that need most, in their order, and the one that is shown among them. Of those that need the same, the first and the
/// last come first: their parts are of the largest parameters, the embedding and the head, and the last has padding.
fn that_need_most<N: Ord>(needs: &[N], few: usize, shown: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..needs.len()).collect();
    let from_an_end = |at: usize| at.min(needs.len() - 1 - at);
    order.sort_by_key(|at| (Reverse(needs.get(*at)), from_an_end(*at), *at));
    order.sort_by_key(|at| *at != shown); // stable: the others stay in order
    order.truncate(few);
    order.sort_unstable();
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::open_model;
    use crate::parallel::{Parallel, Sharding};

    #[test]
    fn ends_come_before_others_that_need_the_same() {
        assert_eq!(that_need_most(&[1, 1, 1, 1, 1, 1], 3, 0), [0, 1, 5]);
        assert_eq!(that_need_most(&[1, 1, 2, 1, 1, 1], 2, 2), [0, 2]);
        assert_eq!(
            that_need_most(&[1, 1, 2, 1, 1, 1], 3, 3),
            [0, 2, 3],
            "the one that is shown is among them"
        );
        assert_eq!(that_need_most(&[3, 1], 4, 1), [0, 1]);
    }

    /// Each rank's part of ZeRO 1 is of other parameters. Of long steps few are looked at closely, of short ones all.
    #[test]
    fn the_worst_is_one_that_was_looked_at_closely() {
        let architecture = Architecture::read(&open_model("llama-3.1-8b").unwrap().config).unwrap();
        let parallel = Parallel { dp: Some(16), sharding: Sharding::Zero1, ..Parallel::default() };
        let looked = |steps, shown| {
            let options = Options {
                seq_len: Some(20),
                gradient_accumulation_steps: steps,
                parallel: parallel.clone(),
                ..Options::default()
            };
            // the second is worst by what only the close look sees
            let rank_1 = |plan: &Plan| u64::from(plan.options.parallel.rank == 1);
            let ranks = plan_ranks_closely(&architecture, &options, shown, |plan, look| match look {
                Look::First => (0, look),
                Look::Close => (rank_1(plan), look),
            });
            let Ranks { plan, shown, worst, each } = ranks.unwrap();
            let [shown, worst] = [shown, worst].map(|at| (each[at].0.first(), each[at].1));
            let close = each.iter().filter(|(_, look)| *look == Look::Close).count();
            (plan.options.parallel.rank, shown, worst, close < each.len(), close)
        };
        let second = (1, Look::Close);
        let (rank, shown, worst, is_few, _) = looked(1, Shown::Worst);
        assert_eq!((rank, shown, worst, is_few), (1, second, second, false));
        assert_eq!(looked(1024, Shown::Worst), (1, second, second, true, FEWEST));
        assert_eq!(looked(1024, Shown::Rank(7)), (7, (7, Look::Close), second, true, FEWEST));
    }
}
