//! A step as it was run, with few of what is alike in it: what the rest adds is counted, and written down only for those who
//! ask for every storage.
//!
//! Where layers or micro-batches are left out, they are all left out at one place of each pass: a cut. A storage that is made
//! before a cut and goes after another was made once more by each that is left out, and all of these are there from the one cut to
//! the other. That is all that they add: what is made and goes between the same cuts is, wherever one looks, there as often as
//! it was run. So sums on the tape that was run, with that added, are those of the whole step at every moment that was run; and
//! in what was left out they lie on a straight line between those at its two ends, and peak at one of them.
//!
//! That rests on units that are alike: `is_alike` compares what they make and when it goes, and where both are added up
//! (`crate::plan`), a unit has to change the sums as often as it is left out by what it changed them when it was run.

use super::layers::Repeat;
use super::left_out::OfLayers;
use super::micro_batches::repeated;
use super::postponed::{Postponed, put_in_place};
use super::rounds::Rounds;
use super::turns::Turns;
use crate::torch::Costs;
use crate::torch::tape::{ModuleId, Ran, StorageId, Stored, Tape};
use crate::torch::trail::Trail;
use peakledger_core::Moment;
use std::ops::Range;

/// A step with few of what is alike in it run.
#[derive(Debug)]
pub(crate) struct Folded {
    /// What was run.
    pub(crate) run: Tape,
    /// Storages of the tape that stood for gradients of layers that were not run; these are counted in `more`.
    pub(crate) stand_ins: Range<usize>,
    /// What was not run adds these: first what layers add, so many, and then what micro-batches add.
    pub(crate) more: Vec<More>,
    pub(super) of_layers: usize,
    /// Batches of micro-batches that were not run.
    pub(super) unseen: Vec<StorageId>,
    /// Where layers are left out.
    pub(crate) cuts: Vec<Cut>,
    /// What layers that are left out cost, by phase of the tape that was run; empty where all were run.
    pub(crate) costs: Vec<Costs>,
    /// What ran in a layer for another, which in the whole step is one that was not run.
    pub(crate) ran_for: Vec<(Moment, ModuleId)>,
    /// What was made in a layer for another, which in the whole step is one that was not run.
    pub(crate) made_for: Vec<(StorageId, ModuleId)>,
    /// The phases of the whole step.
    pub(crate) phases: Vec<PhaseRun>,
    /// What was postponed while layers were left out, where something was.
    pub(crate) postponed: Option<Postponed>,
    pub(super) layers: Option<(Repeat, Trail)>,
    pub(super) rounds: Option<Rounds>,
}

/// Storages that are like one that was run, there from one moment of the tape to another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct More {
    pub(crate) like: StorageId,
    pub(crate) birth: Moment,
    pub(crate) death: Moment,
    /// How many.
    pub(crate) copies: u32,
    /// How many layers later the last of them is.
    pub(crate) layers: u32,
}

/// A moment that what is left out comes before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    pub(crate) at: Moment,
    /// How many moments are left out.
    pub(crate) moments: u32,
    /// How often it is left out.
    pub(crate) copies: u32,
}

/// A phase of the whole step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PhaseRun {
    /// Which phase of the tape it was run as.
    pub(crate) mark: usize,
    /// How many micro-batches later it is.
    pub(crate) later: u32,
    /// Where it was not run: it lies between that phase and this one.
    pub(crate) between: Option<Between>,
}

/// So many steps of the way from one phase to another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Between {
    pub(crate) next: usize,
    pub(crate) step: u32,
    pub(crate) of: u32,
}

impl More {
    /// As one storage; sizes past 64 bits saturate, and are refused.
    pub(crate) fn together(&self, like: &Stored) -> Stored {
        let tracked = if like.is_tracked() { self.birth } else { like.tracked };
        let bytes = like.bytes.saturating_mul(u64::from(self.copies));
        Stored { bytes, birth: self.birth, tracked, death: self.death, ..*like }
    }
}

impl Folded {
    /// A step of which all was run.
    pub(crate) fn of(run: Tape) -> Folded {
        let phases = (0..run.marks.len()).map(|mark| PhaseRun { mark, later: 0, between: None }).collect();
        Folded {
            run,
            stand_ins: 0..0,
            more: Vec::new(),
            of_layers: 0,
            unseen: Vec::new(),
            cuts: Vec::new(),
            costs: Vec::new(),
            ran_for: Vec::new(),
            made_for: Vec::new(),
            phases,
            postponed: None,
            layers: None,
            rounds: None,
        }
    }

    /// A step of which layers were not run; nothing where those that were are not alike.
    pub(crate) fn without_layers(run: Tape, repeat: Repeat, trail: Trail) -> Option<Folded> {
        let OfLayers { stand_ins, more, cuts, costs, ran_for, made_for } = repeat.adds(&run, &trail)?;
        let layers = Some((repeat, trail));
        let of_layers = more.len();
        Some(Folded { stand_ins, more, of_layers, cuts, costs, ran_for, made_for, layers, ..Folded::of(run) })
    }

    /// The step without micro-batches that are like others; nothing where those that were run are not alike.
    pub(crate) fn without_micro_batches(mut self, rounds: Rounds) -> Option<Folded> {
        let turns = Turns::of(&self.run, &rounds, &self.stand_ins)?;
        let adds = turns.adds(&self.more)?;
        self.more.extend(adds.more);
        self.phases = adds.phases;
        for (storage, seen) in adds.seen {
            if let Some(stored) = self.run.get_mut(storage) {
                stored.tracked = seen;
                self.unseen.push(storage);
            }
        }
        Some(Folded { rounds: Some(rounds), ..self })
    }

    /// Whether all was run.
    pub(crate) fn is_whole(&self) -> bool {
        self.layers.is_none() && self.rounds.is_none()
    }

    /// Every storage of the whole step; nothing where that cannot be written down.
    pub(crate) fn unfolded(&self) -> Option<Tape> {
        let layers = match (&self.layers, &self.postponed) {
            (Some((repeat, trail)), Some(it)) => Some(put_in_place(&repeat.whole(&it.as_run, trail)?)?),
            (Some((repeat, trail)), None) => Some(repeat.whole(&self.run, trail)?),
            (None, _) => None,
        };
        match &self.rounds {
            Some(rounds) => repeated(layers.as_ref().unwrap_or(&self.run), rounds),
            None => layers,
        }
    }

    /// All storages of the whole step as far as sums stand on them, those that were not run as one with what they are like.
    pub(crate) fn storages(&self) -> impl Iterator<Item = Stored> + Clone + '_ {
        let run = self.run.stored.iter().enumerate();
        let run = run.filter(|(at, _)| !self.stand_ins.contains(at)).map(|(_, stored)| *stored);
        run.chain(self.together(&self.more))
    }

    fn together<'a>(&'a self, more: &'a [More]) -> impl Iterator<Item = Stored> + Clone + 'a {
        more.iter().filter_map(|more| Some(more.together(self.run.get(more.like)?)))
    }

    /// The storages of what was run, with what layers add to it or without.
    pub(crate) fn run_alone(&self, with_layers: bool) -> impl Iterator<Item = Stored> + Clone + '_ {
        let is_run = |at: &usize| {
            let id = StorageId(u32::try_from(*at).unwrap_or(u32::MAX));
            !self.stand_ins.contains(at) && self.unseen.binary_search(&id).is_err()
        };
        let run = self.run.stored.iter().enumerate();
        let run = run.filter(move |(at, _)| is_run(at)).map(|(_, stored)| *stored);
        let of_layers = self.more.get(..self.of_layers).filter(|_| with_layers).unwrap_or_default();
        run.chain(self.together(of_layers))
    }

    /// What ran at a moment of the tape.
    pub(crate) fn ran(&self, moment: Moment) -> Option<Ran> {
        let ran = self.run.ran.get(moment.index())?;
        let at = self.ran_for.binary_search_by_key(&moment, |(moment, _)| *moment);
        let module = at.ok().and_then(|at| self.ran_for.get(at)).map(|(_, module)| *module);
        Some(Ran { module: module.unwrap_or(ran.module), ..*ran })
    }

    /// A storage of the tape, in the module that it is of in the whole step.
    pub(crate) fn stored(&self, storage: StorageId) -> Option<Stored> {
        let stored = self.run.get(storage)?;
        let at = self.made_for.binary_search_by_key(&storage, |(storage, _)| *storage);
        let module = at.ok().and_then(|at| self.made_for.get(at)).map(|(_, module)| *module);
        Some(Stored { module: module.unwrap_or(stored.module), ..*stored })
    }

    /// Where layers are left out of what was run, as it was run; and what is kept from there on of what was postponed in them.
    pub(crate) fn cuts_as_run(&self) -> Vec<(&Cut, u64)> {
        match &self.postponed {
            Some(postponed) => postponed.cuts().collect(),
            None => self.cuts.iter().map(|cut| (cut, 0)).collect(),
        }
    }

    /// Where a moment has gone that was run: what was postponed goes by other bounds than those of layers. Nothing for the mark of
    /// its place.
    pub(crate) fn has_gone_to(&self, moment: Moment) -> Option<Moment> {
        self.postponed.as_ref().map_or(Some(moment), |postponed| postponed.moment(moment))
    }

    /// How many moments are left out between two moments of the tape, at the first but not the last.
    pub(crate) fn moments_left_out(&self, from: Moment, to: Moment) -> u32 {
        let cuts = self.cuts.iter().filter(|cut| from <= cut.at && cut.at < to);
        cuts.map(|cut| cut.moments).sum()
    }
}
