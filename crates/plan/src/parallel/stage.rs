//! Which part of the model a pipeline stage holds.
//!
//! Layers are split as Megatron-LM splits them (`get_num_layers_to_build` and `get_transformer_layer_offset` in
//! `core/transformer/transformer_block.py` and `transformer_layer.py`): the same number for each stage, but for the first and
//! the last where they are given numbers of their own. The embedding stands before the first layer, the last norm and the
//! head after the last; a head that is tied to the embedding has a copy of it where they are on different stages, and the two
//! are kept alike by summing their gradients over an embedding group (`finalize_model_grads.py`).
//!
//! With virtual stages a stage holds several parts: with 2 stages of 2 parts each, stage 0 has the parts 0 and 2, stage 1 the
//! parts 1 and 3. In DualPipe micro-batches run in both directions, and stage `i` of `p` holds the parts `i` and `p - 1 - i`.

use super::{Parallel, Schedule};
use crate::options::refused;
use peakledger_input::Problem;

/// Layers in a row that are run together, and what of the model stands around them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// The first layer, counted over the whole model.
    pub(crate) first: u32,
    /// The layer after the last.
    pub(crate) end: u32,
    /// Whether the embedding comes before them.
    pub(crate) embeds: bool,
    /// Whether the last norm and the head come after them.
    pub(crate) ends: bool,
}

impl Part {
    /// A whole model.
    pub(crate) fn whole(layers: u32) -> Part {
        Part { first: 0, end: layers, embeds: true, ends: true }
    }

    /// Its layers, counted over the whole model.
    pub(crate) fn layers(self) -> std::ops::Range<u32> {
        self.first..self.end
    }
}

/// The parts of a model that a pipeline stage holds, in the order in which schedules count them.
///
/// # Errors
/// Fills in the equation that does not hold.
pub(crate) fn parts(parallel: &Parallel, layers: u32, stage: u32) -> Result<Vec<Part>, Problem> {
    let split = Split::of(parallel, layers)?;
    Ok(match parallel.schedule {
        _ if parallel.pp <= 1 && split.rounds == 1 => vec![Part::whole(layers)],
        Schedule::DualPipe => vec![split.part(0, stage), split.part(0, parallel.pp - 1 - stage)],
        _ => (0..split.rounds).map(|round| split.part(round, stage)).collect(),
    })
}

/// How the layers are split: in each round every stage takes the next layers.
struct Split {
    layers: u32,
    stages: u32,
    /// Parts of a stage.
    rounds: u32,
    /// Layers that the first stage takes in a round, one between, and the last.
    each: [u32; 3],
}

impl Split {
    fn of(parallel: &Parallel, layers: u32) -> Result<Split, Problem> {
        let stages = parallel.pp;
        let rounds = if parallel.schedule == Schedule::DualPipe { 1 } else { parallel.virtual_stages };
        let own = [
            ("--decoder-first-pipeline-num-layers", parallel.first_stage_layers),
            ("--decoder-last-pipeline-num-layers", parallel.last_stage_layers),
        ];
        let mut taken = 0u64;
        for (option, given) in own {
            let Some(given) = given else { continue };
            let cause = match given {
                _ if stages < 2 => "there is one stage, which has all layers".to_owned(),
                0 => "a stage of 0 layers".to_owned(),
                _ if given % rounds != 0 => {
                    format!("{given} layers are no multiple of {rounds} virtual stages")
                }
                _ => {
                    taken += u64::from(given);
                    continue;
                }
            };
            return refused(option, cause, "leave it out, or use another number");
        }
        let others = u64::from(stages) - own.iter().filter(|(_, given)| given.is_some()).count() as u64;
        let parts = others * u64::from(rounds);
        let each = match (u64::from(layers).checked_sub(taken), parts) {
            (Some(0), 0) => 0,
            (Some(left), 1..) if left % parts == 0 && left > 0 => left / parts,
            _ => return Err(Self::uneven(layers, taken, stages, others, rounds)),
        };
        let each = u32::try_from(each).unwrap_or(u32::MAX);
        let of = |given: Option<u32>| given.map_or(each, |given| given / rounds);
        let each = [of(parallel.first_stage_layers), each, of(parallel.last_stage_layers)];
        Ok(Split { layers, stages, rounds, each })
    }

    fn uneven(layers: u32, taken: u64, stages: u32, others: u64, rounds: u32) -> Problem {
        let parts = |stages: u64| match rounds {
            1 => format!("{stages}"),
            _ => format!("{stages} × virtual stages {rounds} = {}", stages * u64::from(rounds)),
        };
        let cause = match taken {
            0 => format!("{layers} layers are no multiple of pp {}", parts(stages.into())),
            _ => format!(
                "{layers} layers less {taken} of the first and last stage are no multiple of the other stages, {}",
                parts(others)
            ),
        };
        let mend = "use a --pp that divides the layers, or give the first or the last stage a number of its own: \
                    --decoder-first-pipeline-num-layers, --decoder-last-pipeline-num-layers";
        Problem::in_option("--pp", cause).mend(mend)
    }

    /// Layers that a stage takes in a round.
    fn of_stage(&self, stage: u32) -> u32 {
        let [first, between, last] = self.each;
        match stage {
            0 => first,
            stage if stage + 1 == self.stages => last,
            _ => between,
        }
    }

    fn part(&self, round: u32, stage: u32) -> Part {
        let before = |stages: u32| -> u32 { (0..stages).map(|stage| self.of_stage(stage)).sum() };
        let first = round * before(self.stages) + before(stage);
        let end = first + self.of_stage(stage);
        Part { first, end, embeds: first == 0, ends: end == self.layers }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layers(parallel: &Parallel, layers: u32) -> Vec<Vec<(u32, u32)>> {
        let of = |stage| parts(parallel, layers, stage).unwrap();
        (0..parallel.pp).map(|stage| of(stage).iter().map(|part| (part.first, part.end)).collect()).collect()
    }

    fn refused(parallel: &Parallel, layers: u32) -> String {
        parts(parallel, layers, 0).unwrap_err().to_string()
    }

    #[test]
    fn each_stage_has_as_many_layers() {
        let plain = Parallel { pp: 4, ..Parallel::default() };
        assert_eq!(layers(&plain, 8), [[(0, 2)], [(2, 4)], [(4, 6)], [(6, 8)]]);
        let interleaved = Parallel { pp: 2, virtual_stages: 2, ..Parallel::default() };
        assert_eq!(layers(&interleaved, 8), [[(0, 2), (4, 6)], [(2, 4), (6, 8)]]);
        let both_ways = Parallel { pp: 4, schedule: Schedule::DualPipe, ..Parallel::default() };
        let all = layers(&both_ways, 8);
        assert_eq!(all, [[(0, 2), (6, 8)], [(2, 4), (4, 6)], [(4, 6), (2, 4)], [(6, 8), (0, 2)]]);
        assert_eq!(parts(&Parallel::default(), 7, 0).unwrap(), [Part::whole(7)]);
    }

    #[test]
    fn the_ends_may_have_numbers_of_their_own() {
        let first = Parallel { pp: 4, first_stage_layers: Some(3), ..Parallel::default() };
        assert_eq!(layers(&first, 12), [[(0, 3)], [(3, 6)], [(6, 9)], [(9, 12)]]);
        let both = Parallel { last_stage_layers: Some(1), ..first };
        assert_eq!(layers(&both, 8), [[(0, 3)], [(3, 5)], [(5, 7)], [(7, 8)]]);
        let two = Parallel { pp: 2, first_stage_layers: Some(5), last_stage_layers: Some(2), ..both };
        assert_eq!(layers(&two, 7), [[(0, 5)], [(5, 7)]]);
    }

    #[test]
    fn embedding_and_head_are_at_the_ends() {
        let parallel = Parallel { pp: 2, virtual_stages: 2, ..Parallel::default() };
        let around = |stage: u32| -> Vec<(bool, bool)> {
            parts(&parallel, 8, stage).unwrap().iter().map(|part| (part.embeds, part.ends)).collect()
        };
        assert_eq!(around(0), [(true, false), (false, false)]);
        assert_eq!(around(1), [(false, false), (false, true)]);
    }

    #[test]
    fn what_does_not_divide_is_said_with_its_numbers() {
        let three = Parallel { pp: 3, ..Parallel::default() };
        let said = refused(&three, 32);
        assert!(said.contains("32 layers are no multiple of pp 3"), "{said}");
        let said = refused(&Parallel { virtual_stages: 5, ..three.clone() }, 32);
        assert!(said.contains("32 layers are no multiple of pp 3 × virtual stages 5 = 15"), "{said}");
        let said = refused(&Parallel { first_stage_layers: Some(3), ..three.clone() }, 32);
        assert!(said.contains("32 layers less 3 of the first and last stage are no multiple"), "{said}");
        let said = refused(&Parallel { pp: 64, ..Parallel::default() }, 32);
        assert!(said.contains("32 layers are no multiple of pp 64"), "{said}");
        let said = refused(&Parallel { first_stage_layers: Some(3), ..Parallel::default() }, 32);
        assert!(said.contains("there is one stage"), "{said}");
        let said = refused(&Parallel { first_stage_layers: Some(40), ..three }, 32);
        assert!(said.contains("less 40"), "{said}");
    }
}
