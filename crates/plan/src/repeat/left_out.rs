//! What layers and micro-batches that are not run add to the sums over those that are ([`super::folded`]).

use super::folded::{Between, Cut, More, PhaseRun};
use super::layers::{Repeat, When, Whole};
use super::turns::{Along, Meaning, Place, Turns};
use crate::torch::Costs;
use crate::torch::tape::{ModuleId, NEVER, Role, StorageId, Stored, Tape};
use crate::torch::trail::{Part, Trail};
use peakledger_core::{Category, Device, Moment};
use std::collections::BTreeMap;
use std::ops::Range;

/// What layers add.
pub(super) struct OfLayers {
    pub(super) stand_ins: Range<usize>,
    pub(super) more: Vec<More>,
    pub(super) cuts: Vec<Cut>,
    pub(super) costs: Vec<Costs>,
    pub(super) ran_for: Vec<(Moment, ModuleId)>,
    pub(super) made_for: Vec<(StorageId, ModuleId)>,
}

/// The modules that layers run and make something for.
type ForOthers = (Vec<(Moment, ModuleId)>, Vec<(StorageId, ModuleId)>);

/// What micro-batches add.
pub(super) struct OfMicroBatches {
    pub(super) more: Vec<More>,
    pub(super) phases: Vec<PhaseRun>,
    /// When the batches of those that are not run are seen.
    pub(super) seen: Vec<(StorageId, Moment)>,
}

impl Repeat {
    /// What the layers that are left out add; nothing where those that were run are not alike.
    pub(super) fn adds(&self, run: &Tape, trail: &Trail) -> Option<OfLayers> {
        let whole = self.compared(run, trail)?;
        whole.once()?;
        let cuts = whole.cuts()?;
        let (stand_ins, mut more) = whole.in_place_of_stand_ins(&cuts)?;
        more.extend(whole.more(&cuts)?);
        let (ran_for, made_for) = whole.for_others()?;
        let cuts = cuts.into_values().collect();
        Some(OfLayers { stand_ins, more, cuts, costs: whole.costs()?, ran_for, made_for })
    }
}

impl Whole<'_> {
    /// Where each pass leaves layers out.
    fn cuts(&self) -> Option<BTreeMap<usize, Cut>> {
        let mut cuts = BTreeMap::new();
        let mut from: Option<u32> = None;
        for piece in &self.stretches.pieces {
            let stretch = self.stretches.get(piece.stretch)?;
            if piece.is_copy {
                from.get_or_insert(piece.moment);
            } else if let Some(from) = from.take() {
                let copies = u32::try_from(self.repeat.alike.copies).ok()?;
                let cut = Cut { at: Moment(stretch.moments.start), moments: piece.moment - from, copies };
                cuts.insert(stretch.pass, cut);
            }
        }
        Some(cuts)
    }

    /// What stands for a gradient is there from the backward on that would have made it.
    fn in_place_of_stand_ins(&self, cuts: &BTreeMap<usize, Cut>) -> Option<(Range<usize>, Vec<More>)> {
        let mut stand_ins = self.stretches.iter().filter(|stretch| stretch.part == Part::StandIns);
        let Some(stretch) = stand_ins.next() else { return Some((0..0, Vec::new())) };
        stand_ins.next().is_none().then_some(())?;
        let mut made: BTreeMap<(u32, Device), Moment> = BTreeMap::new();
        for (at, pass) in self.written_again() {
            let (stored, when) = (self.tape.stored.get(at)?, self.when.get(at)?);
            if let Some(parameter) = gradient_after_backward(stored, *when) {
                let cut = cuts.get(&pass)?.at;
                made.insert((parameter, stored.device), cut).is_none().then_some(())?;
            }
        }
        let mut more = Vec::with_capacity(stretch.stored.len());
        for at in stretch.stored.clone() {
            let stored = self.tape.stored.get(at)?;
            let Role::Of { parameter, .. } = stored.role else { return None };
            let made = made.get(&(self.repeat.written_from(parameter)?, stored.device));
            // what the ranks share is not made in a layer: then what stands for it is in no layer that is written down either
            let Some(birth) = made.copied() else { continue };
            let like = StorageId(u32::try_from(at).ok()?);
            more.push(More { like, birth, death: stored.death, copies: 1, layers: 0 });
        }
        Some((stretch.stored.clone(), more))
    }

    /// What is made in the layers that are left out and is there beyond the pass.
    fn more(&self, cuts: &BTreeMap<usize, Cut>) -> Option<Vec<More>> {
        let alike = &self.repeat.alike;
        let (copies, layers) =
            (u32::try_from(alike.copies).ok()?, u32::try_from(alike.left_out().len()).ok()?);
        let mut more = Vec::new();
        for (at, pass) in self.written_again() {
            let (stored, when) = (self.tape.stored.get(at)?, *self.when.get(at)?);
            let cut = |pass: &usize| cuts.get(pass).map(|cut| cut.at);
            let death = match when {
                When::In { pass: to, .. } if to == pass => continue,
                When::In { pass: to, .. } => Moment(cut(&to)?.0.checked_sub(1)?),
                When::At(_) | When::Never if self.has_stand_ins_later(stored, when)? => continue,
                When::At(_) | When::Never => stored.death,
            };
            let birth = cut(&pass)?;
            if death < birth {
                return None;
            }
            more.push(More { like: StorageId(u32::try_from(at).ok()?), birth, death, copies, layers });
        }
        Some(more)
    }

    /// Storages of the unit that is written down again, each with the pass that makes it.
    fn written_again(&self) -> impl Iterator<Item = (usize, usize)> {
        let again = self.repeat.alike.again();
        let of_unit = move |part| matches!(part, Part::Layer(layer) if again.contains(&layer));
        let stretches = self.stretches.iter().filter(move |stretch| of_unit(stretch.part));
        stretches.flat_map(|stretch| stretch.stored.clone().map(|at| (at, stretch.pass)))
    }

    /// Whether something stands for this gradient in each layer that is left out; nothing where it does in some.
    fn has_stand_ins_later(&self, stored: &Stored, when: When) -> Option<bool> {
        let Some(parameter) = gradient_after_backward(stored, when) else { return Some(false) };
        let [_, each, _] = self.repeat.in_unit;
        let stands_in = |units: usize| {
            let later = parameter.checked_add(u32::try_from(units * each).ok()?)?;
            Some(self.stand_in(later, stored.device).is_some())
        };
        let mut all = (1..=self.repeat.alike.copies).map(stands_in);
        let first = all.next()??;
        all.all(|other| other == Some(first)).then_some(first)
    }

    /// What layers that were run do for others, as far as those are not run in the whole step.
    fn for_others(&self) -> Option<ForOthers> {
        let (mut ran_for, mut made_for) = (Vec::new(), Vec::new());
        for piece in self.stretches.pieces.iter().filter(|piece| !piece.is_copy && piece.layer.is_some()) {
            let stretch = self.stretches.get(piece.stretch)?;
            let mut module = self.modules(piece, stretch.part);
            for moment in stretch.moments.clone() {
                let of = self.tape.ran.get(moment as usize)?.module;
                ran_for.extend(Some((Moment(moment), module(of)?)).filter(|(_, meant)| *meant != of));
            }
            for (id, at) in (u32::try_from(stretch.stored.start).ok()?..).zip(stretch.stored.clone()) {
                let of = self.tape.stored.get(at)?.module;
                made_for.extend(Some((StorageId(id), module(of)?)).filter(|(_, meant)| *meant != of));
            }
        }
        Some((ran_for, made_for))
    }

    /// What the layers that are left out cost, by phase.
    fn costs(&self) -> Option<Vec<Costs>> {
        let marks = self.marks()?;
        Some(marks.iter().zip(&self.tape.marks).map(|(whole, run)| whole.costs - run.costs).collect())
    }
}

/// The parameter of a gradient that is there when backward has ended.
fn gradient_after_backward(stored: &Stored, when: When) -> Option<u32> {
    match (stored.role, when) {
        (Role::Of { parameter, .. }, When::At(_) | When::Never) if stored.category == Category::Gradient => {
            Some(parameter)
        }
        _ => None,
    }
}

impl Turns<'_> {
    /// What the micro-batches that are left out add, where layers add so much; nothing where those that were run are not alike.
    pub(super) fn adds(&self, of_layers: &[More]) -> Option<OfMicroBatches> {
        self.is_alike()?;
        Some(OfMicroBatches { more: self.more(of_layers)?, phases: self.phases()?, seen: self.seen()? })
    }

    /// The moment before which copies stand of the rows whose passes end there.
    fn cut(&self, end: usize) -> Moment {
        Moment(self.turns.get(end).map_or(self.after[0].0, |turn| turn.moments.start))
    }

    fn more(&self, of_layers: &[More]) -> Option<Vec<More>> {
        let by_layers: BTreeMap<u32, &More> = of_layers.iter().map(|more| (more.like.0, more)).collect();
        let mut more = Vec::new();
        for (turn_at, turn) in self.turns.iter().enumerate() {
            let cut = self.rounds.again_ends(turn_at).map(|end| self.cut(end));
            for storage in turn.stored.clone() {
                // where that is not known of any, nothing is
                let goes = self.moment(turn_at, storage, |stored| stored.death)?;
                let stored = self.tape.stored.get(storage)?;
                let (moved, step) = (self.moved(turn_at), self.rounds.step(turn_at));
                self.at(Along::Moments, goes, moved)?;
                let Some(cut) = cut else { continue };
                let last = self.rounds.copies(turn_at).checked_mul(step)?;
                [moved + step, moved + last]
                    .into_iter()
                    .try_for_each(|later| self.at(Along::Moments, goes, later).map(drop))?;
                let death = match goes {
                    Meaning::Fixed(_) => stored.death,
                    Meaning::Follows(action, ..) => {
                        match self.cut(self.rounds.goes_with(turn_at, self.turn(action)?)?) {
                            same if same == cut => continue,
                            other => Moment(other.0.checked_sub(1)?),
                        }
                    }
                };
                let is_seen_at_once = stored.tracked == NEVER || stored.tracked == stored.birth;
                if death < cut || !is_seen_at_once {
                    return None;
                }
                let like = StorageId(u32::try_from(storage).ok()?);
                let (each, layers) = match by_layers.get(&like.0) {
                    // one that goes in a later pass of its own layer would go there in each of those that are left out
                    Some(more) if matches!(goes, Meaning::Fixed(_)) && more.death != death => return None,
                    Some(more) => (more.copies.checked_add(1)?, more.layers),
                    None => (1, 0),
                };
                let copies = self.rounds.copies(turn_at).checked_mul(each)?;
                more.push(More { like, birth: cut, death, copies, layers });
            }
        }
        Some(more)
    }

    fn phases(&self) -> Option<Vec<PhaseRun>> {
        let mut phases = Vec::new();
        let before = self.turns.first()?.marks.start;
        let after = self.turns.last()?.marks.end;
        let as_run = |mark| PhaseRun { mark, later: 0, between: None };
        phases.extend((0..before).map(as_run));
        for piece in &self.pieces {
            let turn = self.turns.get(piece.turn)?;
            let moved = self.moved(piece.turn);
            let next = self.rounds.next(piece.turn).filter(|_| piece.later > moved);
            let next = next.and_then(|next| self.turns.get(next));
            for (offset, mark) in turn.marks.clone().enumerate() {
                let between = next.map(|next| Between {
                    next: next.marks.start + offset,
                    step: (piece.later - moved) / self.rounds.step(piece.turn),
                    of: self.rounds.copies(piece.turn) + 1,
                });
                phases.push(PhaseRun { mark, later: piece.later, between });
            }
        }
        phases.extend((after..self.tape.marks.len()).map(as_run));
        Some(phases)
    }

    /// From when on the batches of the micro-batches that are not run are seen: as many of a name as passes that see one of it are
    /// written down again.
    fn seen(&self) -> Option<Vec<(StorageId, Moment)>> {
        let first = self.turns.first()?.stored.start;
        let before = self.tape.stored.get(..first)?;
        let seen_in = |stored: &Stored| match self.place(Along::Moments, stored.tracked.0) {
            Place::In { turn, .. } => Some(turn),
            _ => None,
        };
        let is_run = |micro_batch| self.turns.iter().any(|turn| turn.action.micro_batch == micro_batch);
        // the cuts that batches of a name are seen from, in order
        let mut cuts: BTreeMap<&str, Vec<Moment>> = BTreeMap::new();
        for stored in before {
            self.seen_from_outside(stored.death)?;
            self.tracked(stored)?;
            let (Role::Input { name, .. }, Some(turn)) = (stored.role, seen_in(stored)) else { continue };
            if let Some(end) = self.rounds.again_ends(turn) {
                let copies = std::iter::repeat_n(self.cut(end), self.rounds.copies(turn) as usize);
                cuts.entry(name).or_default().extend(copies);
            }
        }
        let mut cuts: BTreeMap<&str, _> =
            cuts.into_iter().map(|(name, cuts)| (name, cuts.into_iter())).collect();
        let mut seen = Vec::new();
        for (id, stored) in (0..).map(StorageId).zip(before) {
            let Role::Input { name, micro_batch } = stored.role else { continue };
            if !is_run(micro_batch)
                && let Some(cut) = cuts.get_mut(name).and_then(Iterator::next)
            {
                seen.push((id, cut));
            }
        }
        Some(seen)
    }
}
