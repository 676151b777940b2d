//! The storages of a step that was run with its facts: which are wanted, and which of them are alike.

use super::names::Layer;
use super::{Explained, Explanation, When};
use crate::plan::{Level, Step};
use crate::torch::Dtype;
use crate::torch::facts::{Facts, Keeper};
use crate::torch::tape::{Role, Stored, Tape};
use peakledger_core::{Bytes, Category, Detail, Device, Moment};
use std::collections::BTreeMap;

/// A step that was run with its facts.
pub(super) struct Study<'a> {
    pub(super) tape: &'a Tape,
    facts: Facts,
    step: Step,
    /// Which backwards need a storage.
    pub(super) keepers: BTreeMap<u32, Vec<Keeper>>,
}

/// What storages that are explained together have in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Alike {
    name: String,
    category: Category,
    detail: Option<Detail>,
    shape: Vec<u64>,
    dtype: Dtype,
    each: u64,
    op: Option<&'static str>,
    why: String,
    source: Option<&'static str>,
    from: Option<When>,
    until: Option<When>,
}

impl<'a> Study<'a> {
    pub(super) fn new(tape: &'a Tape, facts: Facts, step: Step) -> Study<'a> {
        let mut keepers: BTreeMap<u32, Vec<Keeper>> = BTreeMap::new();
        for keeper in &facts.keepers {
            let of_storage = keepers.entry(keeper.storage.0).or_default();
            if !of_storage.contains(keeper) {
                of_storage.push(*keeper);
            }
        }
        Study { tape, facts, step, keepers }
    }

    /// The storages that are wanted: those at a moment of the step, or all of it.
    pub(super) fn of(&self, moment: Option<Moment>, wanted: impl Fn(&Stored, &str) -> bool) -> Explanation {
        let level_of = |stored: &Stored, level| self.step.interval(self.tape, stored, level);
        let mut alike: BTreeMap<Alike, (u64, String)> = BTreeMap::new();
        for (id, stored) in (0_u32..).zip(&self.tape.stored) {
            let intervals = match moment {
                Some(_) => [level_of(stored, Level::Op), None],
                None => [Level::Op, Level::Untracked].map(|level| level_of(stored, level)),
            };
            let there = |(from, to): (Moment, Moment)| moment.is_none_or(|m| from <= m && m <= to);
            if moment.is_some() && stored.device == Device::Cpu {
                continue; // no part of the peak
            }
            if !intervals.into_iter().flatten().any(there) {
                continue;
            }
            let name = self.name(stored, Layer::Said);
            if wanted(stored, &name) {
                alike.entry(self.alike(id, stored)).or_insert((0, name)).0 += 1;
            }
        }
        // one alone has its layer in its name
        let part = |(alike, (count, name)): (Alike, (u64, String))| match count {
            1 => Alike { name, ..alike }.times(1),
            count => alike.times(count),
        };
        let mut parts: Vec<Explained> = alike.into_iter().map(part).collect();
        parts.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
        let bytes = parts.iter().fold(0, |n: u64, part| n.saturating_add(part.bytes.get()));
        Explanation { step: self.step, at_peak: moment.is_some(), parts, bytes: Bytes::new(bytes) }
    }

    fn alike(&self, id: u32, stored: &Stored) -> Alike {
        let (why, source) = self.why(id, stored);
        let shape = self.facts.layouts.get(id as usize).map(|layout| layout.sizes().to_vec());
        let placed =
            matches!(stored.role, Role::Input { .. } | Role::Named { .. } | Role::Of { state: "", .. });
        let made = !placed && stored.category != Category::MasterWeight;
        let persists = stored.outlives_the_step();
        let began_before = persists && (self.step == Step::Steady || !made);
        Alike {
            name: self.name(stored, Layer::Any),
            category: stored.category,
            detail: stored.detail,
            shape: shape.unwrap_or_default(),
            dtype: stored.dtype,
            each: stored.bytes,
            op: self.tape.ran.get(stored.birth.index()).filter(|_| made).map(|ran| ran.op),
            why,
            source,
            from: if began_before { None } else { self.when(stored.birth) },
            until: if persists { None } else { self.when(stored.death) },
        }
    }

    /// The moment of the tape, in words.
    fn when(&self, moment: Moment) -> Option<When> {
        let ran = self.tape.ran.get(moment.index())?;
        let mark = self.tape.marks.iter().rev().find(|mark| mark.first <= moment)?;
        Some(When { phase: mark.phase.clone(), module: self.path(ran.module, Layer::Any), op: ran.op })
    }
}

impl Alike {
    fn times(self, count: u64) -> Explained {
        let Alike { name, category, detail, shape, dtype, each, op, why, source, from, until } = self;
        let (bytes, each) = (Bytes::new(each.saturating_mul(count)), Bytes::new(each));
        let elements = shape.iter().fold(1, |n: u64, size| n.saturating_mul(*size));
        let requested = Bytes::new(elements.saturating_mul(dtype.width()));
        Explained {
            name,
            category,
            detail,
            shape,
            dtype,
            requested,
            each,
            count,
            bytes,
            op,
            why,
            source,
            from,
            until,
        }
    }
}
