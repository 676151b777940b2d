//! Whether layers that are written down again are like those that were run after them.

use super::layers::{When, Whole};
use super::stretches::{Piece, Stretch};
use crate::torch::tape::{NEVER, Role, Stored};
use crate::torch::trail::Part;
use peakledger_core::{Category, Device, Moment};
use std::ops::Range;

impl Whole<'_> {
    /// When what stands for a gradient goes.
    pub(super) fn stand_in(&self, parameter: u32, device: Device) -> Option<Moment> {
        let key = (parameter, device);
        let at = self.gradients.binary_search_by_key(&key, |(key, _)| *key).ok()?;
        self.gradients.get(at).map(|(_, death)| *death)
    }

    /// Whether a gradient of the unit after those that are left out has something that stands for it in each of them.
    fn has_stand_ins(&self, stored: &Stored) -> bool {
        let Role::Of { parameter, .. } = stored.role else { return false };
        let ([_, each, _], copies) = (self.repeat.in_unit, self.repeat.alike.copies);
        let earlier = |units: usize| parameter.checked_sub(u32::try_from(units * each).ok()?);
        let stands_in = |units| self.stand_in(earlier(units)?, stored.device);
        stored.category == Category::Gradient && (1..=copies).all(|units| stands_in(units).is_some())
    }

    /// Whether the copy that would come where the next unit was run is that unit, and what runs between the passes leaves
    /// both alone.
    pub(super) fn is_alike(&self) -> Option<()> {
        let alike = &self.repeat.alike;
        let inside = |stretch: &Stretch| matches!(stretch.part, Part::Layer(_));
        let (from, to) = (self.stretches.iter().position(inside)?, self.stretches.iter().rposition(inside)?);
        let between = self
            .stretches
            .iter()
            .enumerate()
            .filter(|(at, s)| (from..to).contains(at) && s.part == Part::Between);
        for (_, stretch) in between {
            self.leaves_layers_alone(stretch)?;
        }
        for pass in self.stretches.passes() {
            for layer in alike.again() {
                let run = |layer| Some(self.stretches.place(pass, alike.in_model(layer))?.stretch);
                let (a, b) = (run(layer), run(layer + alike.unit));
                let (Some(a), Some(b)) = (a, b) else {
                    (a == b).then_some(())?; // a layer in the middle of a checkpoint
                    continue;
                };
                let there = *self.stretches.place(pass, alike.in_model(layer + alike.unit))?;
                let copy = Piece { stretch: a, units: alike.copies + 1, ..there };
                let (a, b) = (self.stretches.get(a)?, self.stretches.get(b)?);
                (self.are_same([(&copy, a), (&there, b)])?).then_some(())?;
            }
        }
        Some(())
    }

    fn leaves_layers_alone(&self, stretch: &Stretch) -> Option<()> {
        let Range { start, end } = stretch.moments;
        let ran = self.tape.ran.get(start as usize..end as usize)?.iter().map(|ran| ran.module);
        let stored = self.tape.stored.get(stretch.stored.clone())?.iter().map(|stored| stored.module);
        let is_compared = |module| {
            let layer = self.repeat.outline.of_module(module);
            layer
                .and_then(|layer| self.repeat.alike.among_run(layer))
                .is_some_and(|l| self.repeat.alike.is_compared(l))
        };
        (!ran.chain(stored).any(is_compared)).then_some(())
    }

    fn are_same(&self, [a, b]: [(&Piece, &Stretch); 2]) -> Option<bool> {
        let alone = |stretch: &Stretch| (stretch.carried, stretch.moments.len(), stretch.stored.len());
        if alone(a.1) != alone(b.1) || a.1.costs != b.1.costs {
            return Some(false);
        }
        let ran = self.written_ran(a.0, a.1)?.zip(self.written_ran(b.0, b.1)?);
        let stored = self.without_stand_ins(a.0, a.1)?.zip(self.without_stand_ins(b.0, b.1)?);
        Some(are_equal(ran) && are_equal(stored))
    }

    /// The storages of a stretch as a piece means them; when a gradient goes after backward is known of each by itself.
    fn without_stand_ins<'a>(
        &'a self,
        piece: &'a Piece,
        stretch: &'a Stretch,
    ) -> Option<impl Iterator<Item = Option<Stored>> + 'a> {
        let written = self.written_stored(piece, stretch)?.zip(self.when.get(stretch.stored.clone())?);
        Some(written.map(|(stored, when)| {
            let stored = stored?;
            let stands_in = matches!(when, When::At(_) | When::Never) && self.has_stand_ins(&stored);
            Some(if stands_in { Stored { death: NEVER, ..stored } } else { stored })
        }))
    }
}

/// Whether all could be written down, and are the same.
fn are_equal<T: PartialEq>(mut pairs: impl Iterator<Item = (Option<T>, Option<T>)>) -> bool {
    pairs.all(|(a, b)| a.is_some() && a == b)
}
