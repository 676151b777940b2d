//! Decoder layers of one kind are alike: of a long row a few are run, and one of them is written down again for those that
//! are not.
//!
//! The model is loaded and updated with all its layers; what is left out are forward and backward of some. A layer that is
//! written down again stands in the same places to the layers around it, so moments, modules and storages in other layers
//! are as many layers away as where it was run, and what lies outside the layers is where it is. The copy that would come
//! where the next layer was run has to be that layer, or nothing is repeated.

use super::alike::Alike;
use super::outline::{Loaded, Outline};
use super::stretches::{Piece, Stretch, Stretches};
use crate::nn::Parameter;
use crate::torch::Costs;
use crate::torch::tape::{CopiedFor, Mark, ModuleId, NEVER, Once, Ran, Role, StorageId, Stored, Tape};
use crate::torch::trail::{Part, Trail};
use peakledger_core::{Category, Device, Moment};
use std::ops::Range;

/// Layers that need not be run.
#[derive(Debug)]
pub(crate) struct Repeat {
    pub(super) outline: Outline,
    pub(super) alike: Alike,
    /// What a unit has of the loaded model.
    pub(super) in_unit: [usize; 3],
}

impl Repeat {
    /// The layers that need not be run of a model that was just loaded, if it has such. So many are a checkpoint
    /// `together`, and copies run so many `ahead`; layers are alike only if they are run in the same `way`.
    pub(crate) fn of<W: PartialEq>(
        tape: &Tape,
        parameters: &[Parameter],
        way: impl Fn(usize) -> W,
        together: usize,
        ahead: usize,
    ) -> Option<Repeat> {
        let outline = Outline::of(tape)?;
        let kinds = outline.kinds(tape, parameters, way);
        let alike = Alike::of(outline.first, &kinds, together, ahead)?;
        let unit = |layer| outline.layer(layer).zip(outline.layer(layer + alike.unit));
        let (a, b) = unit(alike.first)?;
        let between = |of: fn(&Loaded) -> &Range<usize>| of(b).start - of(a).start;
        let in_unit = [between(|l| &l.modules), between(|l| &l.parameters), between(|l| &l.stored)];
        Some(Repeat { outline, alike, in_unit })
    }

    /// Where a run is that leaves them out.
    pub(crate) fn trail(&self) -> Trail {
        Trail::without(self.alike.left_out(), self.alike.unit)
    }

    /// The parameter that a parameter of a layer that is not run is like.
    pub(super) fn written_from(&self, parameter: u32) -> Option<u32> {
        let layer = self.outline.of_parameter(parameter)?;
        if !self.alike.left_out().contains(&layer) {
            return None;
        }
        let units = (layer - self.alike.first) / self.alike.unit;
        let [_, parameters, _] = self.in_unit;
        parameter.checked_sub(u32::try_from(units * parameters).ok()?)
    }

    /// The tape of the whole model, of one on which layers are left out; nothing where what would be written down again is
    /// not alike.
    pub(super) fn whole(&self, tape: &Tape, trail: &Trail) -> Option<Tape> {
        let whole = self.compared(tape, trail)?;
        let (stored, ran) = (whole.stored()?, whole.ran()?);
        let (marks, once) = (whole.marks()?, whole.once()?);
        Some(tape.with(stored, ran, (marks, once)))
    }

    /// The whole tape in the making, where what would be written down again is alike.
    pub(super) fn compared<'a>(&'a self, tape: &'a Tape, trail: &Trail) -> Option<Whole<'a>> {
        if trail.is_lost {
            return None;
        }
        let stretches = Stretches::of(tape, trail, &self.alike, self.outline.end())?;
        let mut whole = Whole { repeat: self, tape, stretches, when: Vec::new(), gradients: Vec::new() };
        whole.when = whole.moments_of_death()?;
        whole.gradients = whole.gradients_of_stand_ins()?;
        whole.is_alike()?;
        Some(whole)
    }
}

/// When a storage goes, as seen from where it was made.
#[derive(Clone, Copy, Debug)]
pub(super) enum When {
    Never,
    /// At a moment of the whole tape.
    At(u32),
    /// In the layer so many later (or earlier), at that moment of it.
    In {
        pass: usize,
        from: usize,
        to: usize,
        offset: u32,
    },
}

/// What a layer is to one on the other side of those that are left out.
enum Across {
    /// As many layers away as where both were run.
    AsFarAway,
    /// The one that it is: the first layers and the last know each other, as by what the forward pass ends with.
    ThereAlone,
}

/// The whole tape in the making.
pub(super) struct Whole<'a> {
    pub(super) repeat: &'a Repeat,
    pub(super) tape: &'a Tape,
    pub(super) stretches: Stretches,
    /// When each storage goes.
    pub(super) when: Vec<When>,
    /// When what stands for a gradient goes: by parameter and device.
    pub(super) gradients: Vec<((u32, Device), Moment)>,
}

impl Whole<'_> {
    fn moments_of_death(&self) -> Option<Vec<When>> {
        let mut all = Vec::with_capacity(self.tape.stored.len());
        for stretch in self.stretches.iter() {
            let stored = self.tape.stored.get(stretch.stored.clone())?;
            for stored in stored {
                all.push(self.when(stretch, stored.death)?);
            }
        }
        Some(all)
    }

    fn gradients_of_stand_ins(&self) -> Option<Vec<((u32, Device), Moment)>> {
        let mut gradients = Vec::new();
        for stretch in self.stretches.iter().filter(|stretch| stretch.part == Part::StandIns) {
            let of_stretch = |column: &mut Vec<_>, stored: &Stored, when: &When| {
                let (Role::Of { parameter, .. }, When::At(_) | When::Never) = (stored.role, when) else {
                    return None;
                };
                column.push(((parameter, stored.device), self.moment(*when, 0)?));
                Some(())
            };
            let (stored, when) =
                (self.tape.stored.get(stretch.stored.clone())?, self.when.get(stretch.stored.clone())?);
            stored
                .iter()
                .zip(when)
                .try_for_each(|(stored, when)| of_stretch(&mut gradients, stored, when))?;
        }
        gradients.sort_by_key(|(key, _)| *key);
        Some(gradients)
    }

    /// A moment as seen from a stretch.
    fn when(&self, from: &Stretch, moment: Moment) -> Option<When> {
        if moment == NEVER {
            return Some(When::Never);
        }
        let at = self.stretches.at(moment)?;
        let to = self.stretches.get(at)?;
        let offset = moment.0 - to.moments.start;
        Some(match (from.part, to.part) {
            (Part::Layer(from), Part::Layer(layer)) => match self.across(from, layer)? {
                Across::AsFarAway => When::In { pass: to.pass, from, to: layer, offset },
                Across::ThereAlone => {
                    let layer = self.repeat.alike.in_model(layer);
                    When::At(self.stretches.place(to.pass, layer)?.moment + offset)
                }
            },
            (_, Part::Layer(layer)) => {
                // what is made outside and goes in a layer goes in that layer alone
                let layer = Some(layer).filter(|layer| !self.repeat.alike.is_compared(*layer))?;
                When::At(self.stretches.place(to.pass, self.repeat.alike.in_model(layer))?.moment + offset)
            }
            _ => When::At(self.stretches.between(at)?.moment + offset),
        })
    }

    /// How one layer that is run means another; nothing where it is not known.
    fn across(&self, from: usize, to: usize) -> Option<Across> {
        let alike = &self.repeat.alike;
        if alike.is_after(from) == alike.is_after(to) || from.abs_diff(to) <= alike.reach {
            return Some(Across::AsFarAway);
        }
        (!alike.is_compared(to)).then_some(Across::ThereAlone)
    }

    /// The moment on the whole tape, for what is made in a layer.
    fn moment(&self, when: When, layer: usize) -> Option<Moment> {
        match when {
            When::Never => Some(NEVER),
            When::At(moment) => Some(Moment(moment)),
            When::In { pass, from, to, offset } => {
                self.stretches.moment(pass, (layer + to).checked_sub(from)?, offset)
            }
        }
    }

    /// Something of a loaded layer, as a piece means it: in a layer as far away as from the layer that was run.
    fn meant(&self, piece: &Piece, run: Part, id: u32, layer: Option<usize>, in_unit: usize) -> Option<u32> {
        let (Part::Layer(from), Some(in_model)) = (run, layer) else { return Some(id) };
        let alike = &self.repeat.alike;
        let by = |units: usize| u32::try_from(units * in_unit).ok();
        let already = |layer| if alike.is_after(layer) { alike.copies } else { 0 };
        if in_model == alike.in_model(from) {
            return id.checked_add(by(piece.units.checked_sub(already(from))?)?);
        }
        let to = alike.among_run(in_model)?;
        if piece.units == already(to) {
            return Some(id);
        }
        if from.abs_diff(to) > alike.reach {
            return None;
        }
        match piece.units.checked_sub(already(to)) {
            Some(later) => id.checked_add(by(later)?),
            None => id.checked_sub(by(already(to) - piece.units)?),
        }
    }

    /// Modules as a piece means them: many in a row are the same.
    pub(super) fn modules<'a>(
        &'a self,
        piece: &'a Piece,
        run: Part,
    ) -> impl FnMut(ModuleId) -> Option<ModuleId> + use<'a> {
        let [modules, ..] = self.repeat.in_unit;
        let mut last = None;
        move |module| match last {
            Some((known, meant)) if known == module => Some(meant),
            _ => {
                let layer = self.repeat.outline.of_module(module);
                let meant = self.meant(piece, run, module.0, layer, modules).map(ModuleId)?;
                last = Some((module, meant));
                Some(meant)
            }
        }
    }

    fn storage(&self, piece: &Piece, run: Part, storage: StorageId) -> Option<StorageId> {
        let [.., stored] = self.repeat.in_unit;
        if let Some(layer) = self.repeat.outline.of_loaded(storage) {
            return self.meant(piece, run, storage.0, layer, stored).map(StorageId);
        }
        let at = self.stretches.making(storage)?;
        let made = self.stretches.get(at)?;
        let there = match (run, made.part) {
            (Part::Layer(from), Part::Layer(to)) => {
                self.stretches.place(made.pass, (piece.layer? + to).checked_sub(from)?)?
            }
            (_, Part::Layer(layer)) => {
                let layer = Some(layer).filter(|layer| !self.repeat.alike.is_compared(*layer))?;
                self.stretches.place(made.pass, self.repeat.alike.in_model(layer))?
            }
            _ => self.stretches.between(at)?,
        };
        let offset = storage.0 as usize - made.stored.start;
        u32::try_from(there.stored + offset).ok().map(StorageId)
    }

    /// The storages of a stretch as a piece means them, each nothing where it cannot be written down.
    pub(super) fn written_stored<'a>(
        &'a self,
        piece: &'a Piece,
        stretch: &'a Stretch,
    ) -> Option<impl Iterator<Item = Option<Stored>> + 'a> {
        let range = stretch.stored.clone();
        let mut module = self.modules(piece, stretch.part);
        let stored = self.tape.stored.get(range.clone())?.iter().zip(self.when.get(range)?);
        Some(stored.map(move |(stored, when)| self.written(piece, stretch, (stored, *when), &mut module)))
    }

    fn written(
        &self,
        piece: &Piece,
        stretch: &Stretch,
        (stored, when): (&Stored, When),
        module: &mut impl FnMut(ModuleId) -> Option<ModuleId>,
    ) -> Option<Stored> {
        let (run, [_, parameters, _]) = (stretch.part, self.repeat.in_unit);
        let mut written = *stored;
        written.module = module(stored.module)?;
        written.birth = Moment(piece.moment + stored.birth.0.checked_sub(stretch.moments.start)?);
        written.tracked = match stored.tracked {
            NEVER => NEVER,
            tracked if tracked == stored.birth => written.birth,
            _ if matches!(run, Part::Layer(_)) => return None,
            tracked => self.moment(self.when(stretch, tracked)?, 0)?,
        };
        written.death = self.moment(when, piece.layer.unwrap_or(0))?;
        if let Role::Of { parameter, .. } = &mut written.role {
            let layer = self.repeat.outline.of_parameter(*parameter);
            *parameter = self.meant(piece, run, *parameter, layer, parameters)?;
            let is_copied_gradient = piece.is_copy && stored.category == Category::Gradient;
            if is_copied_gradient && matches!(when, When::At(_) | When::Never) {
                written.death = self.stand_in(*parameter, stored.device).unwrap_or(written.death);
            }
        }
        if let Some(CopiedFor::Offload(storage)) = &mut written.copied_for {
            *storage = self.storage(piece, run, *storage)?;
        }
        Some(written)
    }

    /// What ran in a stretch, as a piece means it.
    pub(super) fn written_ran<'a>(
        &'a self,
        piece: &'a Piece,
        stretch: &Stretch,
    ) -> Option<impl Iterator<Item = Option<Ran>> + 'a> {
        let range = stretch.moments.start as usize..stretch.moments.end as usize;
        let mut module = self.modules(piece, stretch.part);
        let ran = self.tape.ran.get(range)?.iter();
        Some(ran.map(move |ran| Some(Ran { module: module(ran.module)?, ..*ran })))
    }

    fn stored(&self) -> Option<Vec<Stored>> {
        let (last, first) = (self.stretches.pieces.last()?, self.stretches.iter().last()?);
        let mut all = Vec::with_capacity(last.stored + first.stored.len());
        for piece in &self.stretches.pieces {
            for stored in self.written_stored(piece, self.stretches.get(piece.stretch)?)? {
                all.push(stored?);
            }
        }
        Some(all)
    }

    fn ran(&self) -> Option<Vec<Ran>> {
        let (last, first) = (self.stretches.pieces.last()?, self.stretches.iter().last()?);
        let mut all = Vec::with_capacity((last.moment + (first.moments.end - first.moments.start)) as usize);
        for piece in &self.stretches.pieces {
            for ran in self.written_ran(piece, self.stretches.get(piece.stretch)?)? {
                all.push(ran?);
            }
        }
        Some(all)
    }

    /// A moment outside the layers, or the one that comes after all.
    fn outside(&self, moment: u32) -> Option<u32> {
        let at = self.stretches.at(Moment(moment))?;
        let piece = self.stretches.between(at)?;
        Some(piece.moment + (moment - self.stretches.get(at)?.moments.start))
    }

    pub(super) fn marks(&self) -> Option<Vec<Mark>> {
        let ends = self.tape.marks.iter().skip(1).map(|mark| mark.first).chain([self.tape.next()]);
        let again = self.repeat.alike.again();
        let is_again =
            |stretch: &&Stretch| matches!(stretch.part, Part::Layer(layer) if again.contains(&layer));
        let moved = |(mark, end): (&Mark, Moment)| {
            let unit = self.stretches.beginning_in(mark.first.0..end.0).iter().filter(is_again);
            let unit: Costs = unit.map(|stretch| stretch.costs).sum();
            let more = unit.times(u32::try_from(self.repeat.alike.copies).ok()?);
            Some(Mark {
                first: Moment(self.outside(mark.first.0)?),
                costs: mark.costs + more,
                ..mark.clone()
            })
        };
        self.tape.marks.iter().zip(ends).map(moved).collect()
    }

    /// What is done once is done in one go, outside the layers.
    pub(super) fn once(&self) -> Option<Vec<Once>> {
        let moved = |once: &Once| {
            let Once { moments: Range { start, end }, costs } = once;
            let last = end.saturating_sub(1).max(*start);
            (self.stretches.at(Moment(*start)) == self.stretches.at(Moment(last))).then_some(())?;
            let moved = self.outside(*start)?;
            Some(Once { moments: moved..moved + (end - start), costs: *costs })
        };
        self.tape.once.iter().map(moved).collect()
    }
}
