//! The stretches of a tape on which layers are left out, each inside a layer or between, and where each comes on the whole
//! tape.

use super::alike::Alike;
use crate::torch::Costs;
use crate::torch::hooks::Carried;
use crate::torch::tape::{StorageId, Tape};
use crate::torch::trail::{Entry, Part, Trail};
use peakledger_core::Moment;
use std::ops::Range;

/// A stretch of the tape that was run.
#[derive(Debug)]
pub(super) struct Stretch {
    pub(super) part: Part,
    pub(super) pass: usize,
    pub(super) moments: Range<u32>,
    pub(super) stored: Range<usize>,
    pub(super) costs: Costs,
    pub(super) carried: Carried,
}

/// A stretch at its place on the whole tape.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    /// Which stretch.
    pub(super) stretch: usize,
    /// The layer of the whole model, if it is inside one.
    pub(super) layer: Option<usize>,
    /// How many units later the layer is than the one that was run.
    pub(super) units: usize,
    /// Whether it is written down again.
    pub(super) is_copy: bool,
    /// Its first moment and storage.
    pub(super) moment: u32,
    pub(super) stored: usize,
}

/// All stretches, and all pieces.
pub(super) struct Stretches {
    all: Vec<Stretch>,
    pub(super) pieces: Vec<Piece>,
    /// Where a stretch that is in no layer comes, by its place among the stretches.
    between: Vec<Option<Piece>>,
    /// Where a layer of the whole model comes in a pass.
    in_layers: Vec<Vec<Option<Piece>>>,
    /// Of the same their first moments and how many they are.
    spans: Vec<Vec<(u32, u32)>>,
}

impl Stretches {
    /// Lays the stretches of a run out for a model of so many layers.
    pub(super) fn of(tape: &Tape, trail: &Trail, alike: &Alike, layers: usize) -> Option<Stretches> {
        let begin = Entry {
            part: Part::Between,
            pass: 0,
            moment: 0,
            stored: 0,
            costs: Costs::default(),
            carried: Carried::default(),
        };
        let entries: Vec<Entry> = std::iter::once(begin).chain(trail.entries.iter().copied()).collect();
        let end = (tape.next().0, tape.stored.len());
        let ends = entries.iter().skip(1).map(|next| (next.moment, next.stored, Some(next.costs)));
        let ends = ends.chain([(end.0, end.1, None)]);
        let stretch = |(entry, (moment, stored, costs)): (&Entry, (u32, usize, Option<Costs>))| Stretch {
            part: entry.part,
            pass: entry.pass,
            moments: entry.moment..moment,
            stored: entry.stored..stored,
            costs: costs.map_or(Costs::default(), |costs| costs - entry.costs),
            carried: entry.carried,
        };
        let all: Vec<Stretch> = entries.iter().zip(ends).map(stretch).collect();
        let passes = entries.last().map_or(0, |entry| entry.pass) + 1;
        let mut stretches = Stretches {
            between: vec![None; all.len()],
            in_layers: vec![vec![None; layers]; passes],
            spans: vec![vec![(0, 0); layers]; passes],
            pieces: Vec::with_capacity(all.len() + passes * layers),
            all,
        };
        stretches.lay_out(alike)?;
        Some(stretches)
    }

    pub(super) fn get(&self, stretch: usize) -> Option<&Stretch> {
        self.all.get(stretch)
    }

    pub(super) fn iter(&self) -> std::slice::Iter<'_, Stretch> {
        self.all.iter()
    }

    /// The stretches that begin at some moments.
    pub(super) fn beginning_in(&self, moments: Range<u32>) -> &[Stretch] {
        let before = |moment: u32| self.all.partition_point(|stretch| stretch.moments.start < moment);
        self.all.get(before(moments.start)..before(moments.end)).unwrap_or_default()
    }

    /// Passes through the layers, forward and backward.
    pub(super) fn passes(&self) -> Range<usize> {
        1..self.in_layers.len()
    }

    /// Where a layer of the whole model comes in a pass.
    pub(super) fn place(&self, pass: usize, layer: usize) -> Option<&Piece> {
        self.in_layers.get(pass)?.get(layer)?.as_ref()
    }

    /// A moment of a layer of the whole model in a pass, if it has so many.
    pub(super) fn moment(&self, pass: usize, layer: usize, offset: u32) -> Option<Moment> {
        let (first, length) = *self.spans.get(pass)?.get(layer)?;
        (offset < length).then(|| Moment(first + offset))
    }

    /// Where a stretch between the layers comes.
    pub(super) fn between(&self, stretch: usize) -> Option<&Piece> {
        self.between.get(stretch)?.as_ref()
    }

    /// The stretch that a moment is in.
    pub(super) fn at(&self, moment: Moment) -> Option<usize> {
        self.all.partition_point(|stretch| stretch.moments.start <= moment.0).checked_sub(1)
    }

    /// The stretch that a storage is made in.
    pub(super) fn making(&self, storage: StorageId) -> Option<usize> {
        let storage = storage.0 as usize;
        let at = self.all.partition_point(|stretch| stretch.stored.start <= storage).checked_sub(1)?;
        self.all.get(at).filter(|stretch| stretch.stored.contains(&storage)).map(|_| at)
    }

    /// Puts each stretch to its place, and between the unit that is written down again and the one after it, or in backward
    /// before it, the copies.
    fn lay_out(&mut self, alike: &Alike) -> Option<()> {
        let mut next = (0, 0);
        for at in 0..self.all.len() {
            let (part, pass) = self.all.get(at).map(|stretch| (stretch.part, stretch.pass))?;
            let layer = match part {
                Part::StandIns => continue,
                Part::Between | Part::Postponed => None,
                Part::Layer(layer) => Some(layer),
            };
            let units = if layer.is_some_and(|layer| alike.is_after(layer)) { alike.copies } else { 0 };
            self.put(
                Piece {
                    stretch: at,
                    layer: layer.map(|layer| alike.in_model(layer)),
                    units,
                    is_copy: false,
                    moment: 0,
                    stored: 0,
                },
                pass,
                &mut next,
            )?;
            let after = self.all.get(at + 1).filter(|after| after.pass == pass).map(|after| after.part);
            let (Some(layer), Some(Part::Layer(after))) = (layer, after) else { continue };
            match (alike.is_after(layer), alike.is_after(after)) {
                (false, true) => {
                    let unit = self.unit(alike, pass);
                    (1..=alike.copies).try_for_each(|copy| self.copy(alike, &unit, copy, pass, &mut next))?;
                }
                (true, false) => {
                    let unit = self.unit(alike, pass);
                    let mut copies = (1..=alike.copies).rev();
                    copies.try_for_each(|copy| self.copy(alike, &unit, copy, pass, &mut next))?;
                }
                _ => {}
            }
        }
        Some(())
    }

    /// The unit that is written down again, in a pass: its stretches in the order in which they were run, with their layers.
    fn unit(&self, alike: &Alike, pass: usize) -> Vec<(usize, usize)> {
        let again = alike.again();
        let of_pass = self.all.partition_point(|stretch| stretch.pass < pass);
        let of_pass =
            self.all.iter().enumerate().skip(of_pass).take_while(|(_, stretch)| stretch.pass == pass);
        let of_unit = |(at, stretch): (usize, &Stretch)| match stretch.part {
            Part::Layer(layer) if again.contains(&layer) => Some((at, layer)),
            _ => None,
        };
        of_pass.filter_map(of_unit).collect()
    }

    /// The unit once more, so many units later.
    fn copy(
        &mut self,
        alike: &Alike,
        unit: &[(usize, usize)],
        units: usize,
        pass: usize,
        next: &mut (u32, usize),
    ) -> Option<()> {
        for (stretch, layer) in unit {
            let layer = Some(layer + units * alike.unit);
            let piece = Piece { stretch: *stretch, layer, units, is_copy: true, moment: 0, stored: 0 };
            self.put(piece, pass, next)?;
        }
        Some(())
    }

    fn put(&mut self, piece: Piece, pass: usize, next: &mut (u32, usize)) -> Option<()> {
        let stretch = self.all.get(piece.stretch)?;
        let placed = Piece { moment: next.0, stored: next.1, ..piece };
        *next = (next.0 + (stretch.moments.end - stretch.moments.start), next.1 + stretch.stored.len());
        let slot = match piece.layer {
            None => self.between.get_mut(piece.stretch)?,
            Some(layer) => {
                let length = stretch.moments.end - stretch.moments.start;
                *self.spans.get_mut(pass)?.get_mut(layer)? = (placed.moment, length);
                self.in_layers.get_mut(pass)?.get_mut(layer)?
            }
        };
        if slot.replace(placed).is_some() {
            return None; // a layer that is come to twice in a pass
        }
        self.pieces.push(placed);
        Some(())
    }
}
