//! The time axis: phases in order, each cut into moments. Hand-written ledgers have one moment a phase.

use std::fmt;
use std::num::NonZeroU32;

/// What a stretch of the training step is doing. The first six are the seed's, in their order; a timeline of one's own
/// (a rollout, a scoring pass) may name others.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// The model, the states that persist and the batch are on the device.
    Load,
    /// The forward pass.
    Forward,
    /// The loss from the model's output.
    Loss,
    /// The backward pass.
    Backward,
    /// Gradient clipping and the optimizer step.
    Update,
    /// Gradients are let go.
    ZeroGrad,
    /// A phase of a timeline of one's own.
    Other(Box<str>),
}

impl Phase {
    /// The seed's phase table, in order.
    pub const STANDARD: [Phase; 6] =
        [Phase::Load, Phase::Forward, Phase::Loss, Phase::Backward, Phase::Update, Phase::ZeroGrad];

    /// The phase of that name.
    pub fn named(name: &str) -> Phase {
        let standard = Phase::STANDARD.into_iter().find(|phase| phase.as_str() == name);
        standard.unwrap_or_else(|| Phase::Other(name.into()))
    }

    /// Its name in files.
    pub fn as_str(&self) -> &str {
        match self {
            Phase::Load => "load",
            Phase::Forward => "forward",
            Phase::Loss => "loss",
            Phase::Backward => "backward",
            Phase::Update => "update",
            Phase::ZeroGrad => "zero_grad",
            Phase::Other(name) => name,
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A tick of the timeline, counted over all phases from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(pub u32);

impl Moment {
    /// As an index into a column of moments.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// One phase on the timeline: which, of which micro-batch, and the moments it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// What happens.
    pub phase: Phase,
    /// The micro-batch, where the step has several.
    pub micro_batch: Option<u32>,
    /// The first moment.
    pub first: Moment,
    /// The last moment.
    pub last: Moment,
}

impl Slot {
    /// How many moments it takes, one or more.
    pub fn moments(&self) -> u32 {
        self.last.0 - self.first.0 + 1
    }

    /// The moment of that number in the phase, counted from 0, if the phase has so many.
    pub fn moment(&self, number: u32) -> Option<Moment> {
        self.first.0.checked_add(number).map(Moment).filter(|moment| *moment <= self.last)
    }

    /// The number of a moment in the phase, counted from 0: the way back from [`moment`](Slot::moment).
    pub fn moment_in(&self, moment: Moment) -> u32 {
        moment.0 - self.first.0
    }

    /// The name that files use: `update`, `forward.0`.
    pub fn id(&self) -> String {
        match self.micro_batch {
            None => self.phase.to_string(),
            Some(i) => format!("{}.{i}", self.phase),
        }
    }
}

/// Ordered phases, each with one or more moments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeline {
    slots: Vec<Slot>,
}

impl Timeline {
    /// The seed's: six phases of one moment.
    pub fn standard() -> Self {
        let mut timeline = Timeline { slots: Vec::new() };
        for phase in Phase::STANDARD {
            timeline.push(phase, None, NonZeroU32::MIN);
        }
        timeline
    }

    /// One without phases yet.
    pub fn empty() -> Self {
        Timeline { slots: Vec::new() }
    }

    /// Adds a phase at the end. Returns whether there was room: moments are counted in 32 bits.
    #[must_use = "a timeline that is full takes no further phase"]
    pub fn try_push(&mut self, phase: Phase, micro_batch: Option<u32>, moments: NonZeroU32) -> bool {
        let first = u32::try_from(self.moments()).unwrap_or(u32::MAX);
        let Some(last) = first.checked_add(moments.get() - 1).filter(|last| *last < u32::MAX) else {
            return false;
        };
        self.slots.push(Slot { phase, micro_batch, first: Moment(first), last: Moment(last) });
        true
    }

    fn push(&mut self, phase: Phase, micro_batch: Option<u32>, moments: NonZeroU32) {
        let _room = self.try_push(phase, micro_batch, moments);
    }

    /// The phases in order.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// How many moments there are in all.
    pub fn moments(&self) -> usize {
        self.slots.last().map_or(0, |slot| slot.last.index() + 1)
    }

    /// The phase that a moment lies in.
    pub fn slot_at(&self, moment: Moment) -> Option<&Slot> {
        let index = self.slots.partition_point(|slot| slot.last < moment);
        self.slots.get(index)
    }

    /// The phase with this name and micro-batch.
    pub fn find(&self, phase: &Phase, micro_batch: Option<u32>) -> Option<&Slot> {
        self.slots.iter().find(|slot| slot.phase == *phase && slot.micro_batch == micro_batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_counted_over_all_phases() {
        let mut timeline = Timeline::empty();
        let three = NonZeroU32::new(3).unwrap();
        assert!(timeline.try_push(Phase::Forward, Some(0), three));
        assert!(timeline.try_push(Phase::named("rollout"), None, NonZeroU32::MIN));
        assert_eq!(timeline.moments(), 4);
        let ids: Vec<String> = (0..4).map(|m| timeline.slot_at(Moment(m)).unwrap().id()).collect();
        let forward = &timeline.slots()[0];
        let numbers: Vec<Option<Moment>> = [0, 2, 3, u32::MAX].map(|n| forward.moment(n)).into();
        assert_eq!(numbers, [Some(Moment(0)), Some(Moment(2)), None, None]);
        assert_eq!((forward.moments(), forward.moment_in(Moment(2))), (3, 2));
        assert_eq!(ids, ["forward.0", "forward.0", "forward.0", "rollout"]);
        assert!(timeline.slot_at(Moment(4)).is_none());
        assert!(!timeline.try_push(Phase::Update, None, NonZeroU32::MAX), "32 bits of moments");
        assert_eq!(Timeline::standard().moments(), 6);
    }
}
