//! Which ranks hold as much of every parameter, where what they share out by rows does not divide: under tensor parallel, and
//! under FSDP2. Where it divides all of them do.

use crate::config::Architecture;
use crate::nn::{Parameter, Spread};
use crate::options::Options;
use crate::parallel::data::{ShardRanks, own_rows};
use crate::parallel::{Mesh, Parallel};
use crate::plan::checked;
use crate::step::held_parameters;
use peakledger_input::Problem;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Neighbouring places of a group that hold as much as each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) places: Range<u32>,
    /// The first place of all that hold as much: HSDP has the same shards on each set of ranks.
    pub(super) like: u32,
}

/// Places of a tensor parallel group of that stage that hold as much of every parameter; nothing where all do.
///
/// # Errors
/// Names the option that the model does not take.
pub(super) fn tensor_places(
    architecture: &Architecture,
    options: &Options,
    mesh: &Mesh,
    stage: u32,
) -> Result<Option<Vec<Run>>, Problem> {
    if mesh.tp == 1 {
        return Ok(None);
    }
    let sizes = |place| {
        let all = held_at(architecture, options, mesh.rank_at(stage, 0, 0) + place)?;
        Ok(all.iter().map(|parameter| parameter.tensor.sizes().to_vec()).collect::<Vec<_>>())
    };
    // the last has least
    if sizes(0)? == sizes(mesh.tp - 1)? {
        return Ok(None);
    }
    Ok(Some(runs((0..mesh.tp).map(sizes).collect::<Result<Vec<_>, Problem>>()?)))
}

/// Places in the data parallel group of that stage that hold as much under FSDP2; nothing where all do. `tensor` are those of
/// the tensor parallel group that hold as much.
///
/// # Errors
/// Names the option that the model does not take.
pub(super) fn data_places(
    architecture: &Architecture,
    options: &Options,
    mesh: &Mesh,
    (stage, tensor): (u32, Option<&[Run]>),
) -> Result<Option<Vec<Run>>, Problem> {
    let first = mesh.rank_at(stage, 0, 0);
    let places: Vec<u32> = match tensor {
        None => vec![0],
        Some(runs) => runs.iter().map(|run| run.places.start).collect(),
    };
    let rows = |place: u32| -> Result<BTreeSet<(u64, Spread)>, Problem> {
        let all = held_at(architecture, options, first + place)?;
        let rows = |parameter: &Parameter| parameter.tensor.sizes().first().copied().unwrap_or(1);
        Ok(all.iter().map(|parameter| (rows(parameter), parameter.spread)).collect())
    };
    let rows: Vec<(u32, BTreeSet<(u64, Spread)>)> =
        places.into_iter().map(|place| Ok((place, rows(place)?))).collect::<Result<_, Problem>>()?;
    let parallel = &options.parallel;
    let divides = |(rows, spread): &(u64, Spread)| {
        rows.is_multiple_of(ShardRanks::of(parallel, mesh, first, *spread).shards.into())
    };
    if rows.iter().flat_map(|(_, rows)| rows).all(divides) {
        return Ok(None);
    }
    let own = |rank: u32, (rows, spread): &(u64, Spread)| {
        let ranks = ShardRanks::of(parallel, mesh, rank, *spread);
        own_rows(*rows, ranks.shards.into(), ranks.rank.into())
    };
    let held = |dp: u32| -> Vec<u64> {
        let of_group = |cp: u32| {
            let first = mesh.rank_at(stage, dp, cp);
            rows.iter().flat_map(move |(place, rows)| rows.iter().map(move |rows| own(first + place, rows)))
        };
        (0..mesh.cp).flat_map(of_group).collect()
    };
    Ok(Some(runs((0..mesh.dp).map(held))).filter(|runs| runs.len() > 1))
}

fn held_at(architecture: &Architecture, options: &Options, rank: u32) -> Result<Vec<Parameter>, Problem> {
    checked(architecture, options)?;
    let parallel = Parallel { rank, ..options.parallel.clone() };
    held_parameters(architecture, &Options { parallel, ..options.clone() })
}

/// Runs of neighbours that hold the same.
fn runs<T: Ord>(each: impl IntoIterator<Item = T>) -> Vec<Run> {
    let mut firsts: BTreeMap<T, u32> = BTreeMap::new();
    let mut runs: Vec<Run> = Vec::new();
    for (place, held) in (0u32..).zip(each) {
        let like = *firsts.entry(held).or_insert(place);
        match runs.last_mut() {
            Some(run) if run.like == like => run.places.end = place + 1,
            _ => runs.push(Run { places: place..place + 1, like }),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_that_hold_the_same_are_a_run() {
        let run = |places, like| Run { places, like };
        assert_eq!(runs([3, 3, 1, 3, 3, 1]), [run(0..2, 0), run(2..3, 2), run(3..5, 0), run(5..6, 2)]);
        assert_eq!(runs([7; 4]), [run(0..4, 0)]);
    }
}
