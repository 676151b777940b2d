//! Where on a step's timeline each layer runs, and what the device holds there.

use super::profile::{Figures, Halves};
use crate::torch::tape::{CopiedFor, Tape};
use crate::{Plan, Step};
use peakledger_core::{Device, Moment, Phase};

/// What the device holds, at device level, in the stretches of both steps.
pub(super) struct Stretches {
    /// The largest totals while a layer runs.
    pub(super) peaks: Vec<Halves>,
    /// What is kept when a layer's forward has ended, and when its backward begins, in the first micro-batch of the steady
    /// step.
    kept: Vec<Halves>,
    /// The largest totals between the last layer's forward and its backward.
    pub(super) between: Halves,
    /// The largest total outside all of these.
    pub(super) elsewhere: u64,
}

/// A stretch of the timeline.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stretch {
    Forward(u32),
    Head,
    HeadBackward,
    Backward(u32),
    Elsewhere,
}

impl Stretches {
    /// Reads them off a plan of a model with so many layers, whose offloaded activations come back so many layers ahead.
    pub(super) fn of(plan: &Plan, layers: u32, ahead: u32) -> Option<Stretches> {
        let none = vec![Halves::default(); layers as usize];
        let mut found =
            Stretches { peaks: none.clone(), kept: none, between: Halves::default(), elsewhere: 0 };
        for step in [Step::First, Step::Steady] {
            let mut is_first_batch = step == Step::Steady;
            let mut before = 0;
            let mut last = Stretch::Elsewhere;
            for (stretch, held) in labels(plan, step, layers, ahead).into_iter().zip(held(plan, step)?) {
                let peak = match stretch {
                    Stretch::Forward(layer) => &mut found.peaks.get_mut(layer as usize)?.forward,
                    Stretch::Backward(layer) => &mut found.peaks.get_mut(layer as usize)?.backward,
                    Stretch::Head => &mut found.between.forward,
                    Stretch::HeadBackward => &mut found.between.backward,
                    Stretch::Elsewhere => &mut found.elsewhere,
                };
                *peak = (*peak).max(held.total);
                match stretch {
                    Stretch::Forward(layer) if is_first_batch => {
                        found.kept.get_mut(layer as usize)?.forward = held.after;
                    }
                    Stretch::Backward(layer) if is_first_batch && last != stretch => {
                        found.kept.get_mut(layer as usize)?.backward = before;
                    }
                    _ => {}
                }
                is_first_batch &= !(matches!(last, Stretch::Backward(0)) && last != stretch);
                (before, last) = (held.after, stretch);
            }
        }
        found.kept.iter().all(|kept| kept.forward > 0 && kept.backward > 0).then_some(found)
    }

    /// What these change for a layer beside the plan that keeps all: they are of one in which only that layer is not kept.
    pub(super) fn figures(&self, kept: &Stretches, layer: usize, time: u128) -> Figures {
        let end = |of: &Stretches| of.kept.last().copied().unwrap_or_default();
        let more = |at: Option<usize>| {
            let peaks = |of: &Stretches| at.and_then(|at| of.peaks.get(at)).copied().unwrap_or_default();
            peaks(self).zip(peaks(kept), |here, there| {
                i64::try_from(here).unwrap_or(i64::MAX).saturating_sub_unsigned(there)
            })
        };
        let saved = end(kept).zip(end(self), u64::saturating_sub);
        let is_last = layer + 1 == self.peaks.len();
        let after = more(Some(layer + 1)).zip(saved, |more, saved| saved.saturating_add_signed(more));
        Figures {
            more: more(Some(layer)),
            saved,
            in_flight: if is_last { Halves::default() } else { after },
            before: more(layer.checked_sub(1)),
            time,
        }
    }

    /// For every layer one that it is like: in a step that keeps all it stores the same, and so do those beside it.
    pub(super) fn kinds(&self, plan: &Plan) -> Vec<usize> {
        let mut stored = vec![Vec::new(); self.peaks.len()];
        for storage in &plan.tape().stored {
            let layer = plan.tape().layer(storage.module).and_then(|layer| stored.get_mut(layer as usize));
            if let Some(layer) = layer {
                layer.push((storage.bytes, storage.category));
            }
        }
        let beside =
            |at: usize| (at.checked_sub(1).and_then(|at| stored.get(at)), stored.get(at), stored.get(at + 1));
        let mut kinds: Vec<usize> = Vec::with_capacity(stored.len());
        for layer in 0..stored.len() {
            let like = kinds.iter().copied().find(|kind| beside(*kind) == beside(layer));
            kinds.push(like.unwrap_or(layer));
        }
        kinds
    }
}

/// What the device holds at a moment, and what it goes on holding after it.
struct Held {
    total: u64,
    after: u64,
}

/// That of every moment of a step; nothing where a total does not fit into 64 bits.
fn held(plan: &Plan, step: Step) -> Option<impl Iterator<Item = Held>> {
    let moments = plan.step(step).timeline.moments();
    let (mut born, mut gone) = (vec![0_u64; moments], vec![0_u64; moments]);
    for stored in &plan.tape().stored {
        let Some(residency) = plan.residency(step, stored).filter(|at| at.device == Device::Gpu) else {
            continue;
        };
        for (column, moment) in [(&mut born, residency.start), (&mut gone, residency.end)] {
            let slot = column.get_mut(moment.index())?;
            *slot = slot.checked_add(stored.bytes)?;
        }
    }
    let mut now = 0_u64;
    Some(born.into_iter().zip(gone).map(move |(born, gone)| {
        let total = now.saturating_add(born);
        now = total.saturating_sub(gone);
        Held { total, after: now }
    }))
}

/// The stretch of every moment of a step.
fn labels(plan: &Plan, step: Step, layers: u32, ahead: u32) -> Vec<Stretch> {
    let tape = plan.tape();
    let back = coming_back(tape, layers, ahead);
    let mut labels = Vec::new();
    for slot in plan.step(step).timeline.slots() {
        let mut layer: Option<u32> = None;
        for at in slot.first.0..=slot.last.0 {
            let moment = step.on_tape(tape, Moment(at));
            let runs = tape.ran.get(moment.index()).and_then(|ran| tape.layer(ran.module));
            labels.push(match slot.phase {
                Phase::Forward => {
                    let is_done = runs.is_none() && layer == Some(layers - 1);
                    layer = if is_done { layer } else { runs.or(layer) };
                    layer.map_or(Stretch::Elsewhere, |layer| {
                        if is_done { Stretch::Head } else { Stretch::Forward(layer) }
                    })
                }
                Phase::Loss => Stretch::Head,
                // autocast's copies of the weights are still there
                Phase::Backward if at == slot.first.0 => Stretch::Head,
                Phase::Backward => {
                    let comes = back.get(moment.index()).copied().flatten();
                    let here = runs.into_iter().chain(comes).min();
                    let is_done = here.is_none() && layer == Some(0);
                    layer = layer.into_iter().chain(here).min();
                    layer.map_or(Stretch::HeadBackward, |layer| {
                        if is_done { Stretch::Elsewhere } else { Stretch::Backward(layer) }
                    })
                }
                _ => Stretch::Elsewhere,
            });
        }
    }
    labels
}

/// For each moment at which an offloaded tensor comes back: the layer whose backward is about to begin.
fn coming_back(tape: &Tape, layers: u32, ahead: u32) -> Vec<Option<u32>> {
    let mut at = vec![None; tape.ran.len()];
    for stored in &tape.stored {
        let is_copy =
            matches!(stored.copied_for, Some(CopiedFor::Offload(_))) && stored.device == Device::Gpu;
        let of_layer = tape.layer(stored.module).filter(|_| is_copy);
        if let (Some(layer), Some(slot)) = (of_layer, at.get_mut(stored.birth.index())) {
            *slot = Some((layer + ahead).min(layers - 1));
        }
    }
    at
}
