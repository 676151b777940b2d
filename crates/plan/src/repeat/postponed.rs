//! What was postponed while layers were left out is put in its place ([`crate::torch::postponed`]).
//!
//! On the tape of the whole step there is a place for all of it. On that of a step that is only counted, what belongs to layers
//! that were not run has none: it is taken off the tape, and [`Aside`] says how much it had. Where nothing of it was there any
//! longer than it ran itself, it matters only if it is the most that ever was there: then all is written down. What a rank keeps of
//! it is put where the layers that were not run end, and that some of them have it too is looked at in the same way.

use super::folded::{Cut, Folded, More};
use crate::torch::postponed::{PLACE, POSTPONED};
use crate::torch::tape::{CopiedFor, Mark, ModuleId, NEVER, Once, Ran, StorageId, Stored, Tape};
use peakledger_core::{Device, Moment};
use std::collections::BTreeMap;
use std::ops::Range;

/// The tape with everything in its place; nothing where as much was not done as was postponed.
pub(super) fn put_in_place(tape: &Tape) -> Option<Tape> {
    let moved = Moved::of(tape, &BTreeMap::new())?;
    moved.tape(tape, &moved.storages(tape)?)
}

/// What of a folded step was postponed.
#[derive(Debug)]
pub(crate) struct Postponed {
    /// What was run, as it was run.
    pub(super) as_run: Tape,
    /// Where layers are left out of that.
    cuts: Vec<Cut>,
    /// Where each of its moments has gone.
    to: Vec<Moment>,
    /// What belongs to layers that were not run.
    pub(crate) aside: Vec<Aside>,
    /// How many bytes of that are kept on the card, by cut.
    kept: Vec<u64>,
}

/// Something that belongs to a layer that was not run, so many units before the first one after it that was.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Aside {
    /// The moments before its place in the unit that was run before those left out, and in the one after.
    pub(crate) beside: [Moment; 2],
    pub(crate) units: u32,
    /// How many units are left out.
    pub(crate) copies: u32,
    /// The most that it had on the card.
    pub(crate) most: u64,
    /// What was kept by then of what belongs to these layers, and is kept by all of them.
    pub(crate) kept: [u64; 2],
}

impl Postponed {
    /// Where units are left out, and what is kept from there on of what belongs to them.
    pub(crate) fn cuts(&self) -> impl Iterator<Item = (&Cut, u64)> {
        self.cuts.iter().zip(self.kept.iter().copied())
    }

    /// Where a moment of the tape that was run has gone; nothing for the mark of a place.
    pub(crate) fn moment(&self, moment: Moment) -> Option<Moment> {
        let is_place = self.as_run.ran.get(moment.index()).is_none_or(|ran| ran.op == PLACE);
        if is_place { None } else { self.to.get(moment.index()).copied() }
    }
}

/// What of a folded step is another when what was postponed is in its place.
struct Parts {
    run: Tape,
    more: Vec<More>,
    cuts: Vec<Cut>,
    ran_for: Vec<(Moment, ModuleId)>,
    made_for: Vec<(StorageId, ModuleId)>,
    to: Vec<Moment>,
    aside: Vec<Aside>,
    kept: Vec<u64>,
}

impl Folded {
    /// The step with what was postponed in its place: counted if it can be, else written down.
    pub(crate) fn with_postponed(self) -> Option<Folded> {
        match self.parts() {
            Some(Parts { run, more, cuts, ran_for, made_for, to, aside, kept }) => {
                let postponed = Postponed { as_run: self.run, cuts: self.cuts, to, aside, kept };
                let postponed = Some(postponed);
                Some(Folded { run, more, cuts, ran_for, made_for, postponed, ..self })
            }
            None => put_in_place(&self.unfolded()?).map(Folded::of),
        }
    }

    /// What of it is another then; nothing where something has no place and yet is on the host for long.
    fn parts(&self) -> Option<Parts> {
        let tape = &self.run;
        self.stand_ins.is_empty().then_some(())?;
        let units: Option<Vec<Unit>> = self.cuts.iter().map(|cut| Unit::of(tape, cut)).collect();
        let units: BTreeMap<u32, Unit> =
            units?.into_iter().filter_map(|unit| Some((*unit.after.first()?, unit))).collect();
        let moved = Moved::of(tape, &units)?;
        let storages = moved.storages(tape)?;
        let run = moved.tape(tape, &storages)?;
        let cuts = moved.cuts(&self.cuts, &units)?;
        let more = |more: &More| {
            let like = storages.id(more.like)?;
            let birth = moved.from(more.birth)?;
            Some(More { like, birth, death: moved.moment(more.death)?, ..*more })
        };
        let more = self.more.iter().map(more).collect::<Option<_>>()?;
        let ran_for = |(moment, module): &(Moment, ModuleId)| Some((moved.moment(*moment)?, *module));
        let is_kept = |(moment, _): &&(Moment, ModuleId)| moved.places.binary_search(&moment.0).is_err();
        let ran_for = self.ran_for.iter().filter(is_kept).map(ran_for).collect::<Option<_>>()?;
        let made_for = |(id, module): &(StorageId, ModuleId)| Some((storages.id(*id)?, *module));
        let made_for = self.made_for.iter().map(made_for).collect::<Option<Vec<_>>>()?;
        made_for.is_sorted_by_key(|(id, _)| *id).then_some(())?;
        let kept = self.cuts.iter().map(|cut| moved.kept.of_cut(cut.at)).collect();
        let Moved { to, aside, .. } = moved;
        Some(Parts { run, more, cuts, ran_for, made_for, to, aside, kept })
    }
}

/// Places in the units before and after those that are left out of a pass.
struct Unit {
    /// Where they are left out.
    at: Moment,
    before: Vec<u32>,
    after: Vec<u32>,
    copies: u32,
}

impl Unit {
    fn of(tape: &Tape, cut: &Cut) -> Option<Unit> {
        let length = cut.moments.checked_div(cut.copies)?;
        let places = |from: u32| {
            let ran = (from..from + length).zip(tape.ran.iter().skip(from as usize));
            ran.filter(|(_, ran)| ran.op == PLACE).map(|(moment, _)| moment).collect()
        };
        let unit = Unit {
            at: cut.at,
            before: places(cut.at.0.checked_sub(length)?),
            after: places(cut.at.0),
            copies: cut.copies,
        };
        (unit.before.len() == unit.after.len()).then_some(unit)
    }
}

/// The moments in the order in which they belong.
struct Moved {
    ran: Vec<Ran>,
    /// Where each moment has gone; a mark to the moment that was the last when it was made, what has no place nowhere.
    to: Vec<Moment>,
    places: Vec<u32>,
    aside: Vec<Aside>,
    kept: Kept,
    /// How many moments have no place, by the first place after them.
    without_place: BTreeMap<u32, u32>,
}

/// What has no place and yet is kept: where the layers end that were not run.
#[derive(Default)]
struct Kept {
    /// Its new birth, by its place among storages.
    births: BTreeMap<usize, Moment>,
    /// How much of it each cut has.
    bytes: BTreeMap<Moment, u64>,
}

impl Kept {
    fn of_cut(&self, at: Moment) -> u64 {
        self.bytes.get(&at).copied().unwrap_or(0)
    }
}

impl Moved {
    /// The moments of a tape from which units are left out, each by its first place.
    fn of(tape: &Tape, units: &BTreeMap<u32, Unit>) -> Option<Moved> {
        let (places, done) = postponed(&tape.ran)?;
        let mut moved = Moved {
            ran: Vec::with_capacity(tape.ran.len()),
            to: vec![NEVER; tape.ran.len()],
            places: places.clone(),
            aside: Vec::new(),
            kept: Kept::default(),
            without_place: BTreeMap::new(),
        };
        let (mut from, mut done) = (0, done.into_iter());
        for place in places {
            moved.put(tape, from..place)?;
            if let Some(unit) = units.get(&place) {
                moved.leave_aside(tape, (place, unit), &mut done)?;
            }
            moved.put(tape, done.next()?)?;
            moved.leave_out(place)?;
            from = place + 1;
        }
        moved.put(tape, from..tape.next().0)?;
        done.next().is_none().then_some(moved)
    }

    /// Puts these moments next, but for those that are where they belong already, or are marks.
    fn put(&mut self, tape: &Tape, moments: Range<u32>) -> Option<()> {
        for moment in moments {
            let ran = tape.ran.get(moment as usize)?;
            let to = self.to.get_mut(moment as usize)?;
            if *to != NEVER {
                continue;
            }
            if ran.op == POSTPONED {
                self.leave_out(moment)?;
                continue;
            }
            *to = Moment(u32::try_from(self.ran.len()).ok()?);
            self.ran.push(*ran);
        }
        Some(())
    }

    fn leave_out(&mut self, mark: u32) -> Option<()> {
        let last = u32::try_from(self.ran.len()).ok()?.checked_sub(1)?;
        *self.to.get_mut(mark as usize)? = Moment(last);
        Some(())
    }

    /// Takes off the tape what belongs to units that were not run, the last of them first, but for what is kept of it.
    fn leave_aside(
        &mut self,
        tape: &Tape,
        (place, unit): (u32, &Unit),
        done: &mut impl Iterator<Item = Range<u32>>,
    ) -> Option<()> {
        let of_others = self.aside.len();
        for units in (1..=unit.copies).rev() {
            for (before, after) in unit.before.iter().zip(&unit.after) {
                let moments = done.next()?;
                *self.without_place.entry(place).or_default() += moments.end - moments.start;
                for moment in moments.clone() {
                    *self.to.get_mut(moment as usize)? = GONE;
                }
                let most = self.keep(tape, &moments, unit.at)?;
                let kept = self.kept.of_cut(unit.at);
                let beside = [before, after].map(|place| last_before(tape, *place));
                let beside = [beside[0]?, beside[1]?];
                let (copies, kept) = (unit.copies, [kept, kept]);
                self.aside.extend((most > 0).then_some(Aside { beside, units, copies, most, kept }));
            }
        }
        let by_all = self.kept.of_cut(unit.at);
        self.aside.iter_mut().skip(of_others).for_each(|aside| aside.kept[1] = by_all);
        Some(())
    }

    /// Keeps what is there for longer than these moments, and says how much of the rest is there at once on the card, at most.
    fn keep(&mut self, tape: &Tape, moments: &Range<u32>, cut: Moment) -> Option<u64> {
        let birth = self.from(cut)?;
        let from = tape.stored.partition_point(|stored| stored.birth.0 < moments.start);
        let made = tape.stored.iter().enumerate().skip(from);
        let made = made.take_while(|(_, stored)| stored.birth.0 < moments.end);
        let is_kept = |stored: &Stored| stored.death.0 >= moments.end;
        for (at, stored) in made.clone().filter(|(_, stored)| is_kept(stored)) {
            (stored.device == Device::Gpu).then_some(())?;
            self.kept.births.insert(at, birth);
            let bytes = self.kept.bytes.entry(cut).or_default();
            *bytes = bytes.saturating_add(stored.bytes);
        }
        let on_card = || made.clone().map(|(_, it)| it).filter(|it| it.device == Device::Gpu && !is_kept(it));
        let there = |then: Moment| {
            let there = on_card().filter(|it| it.birth <= then && then <= it.death);
            there.map(|it| it.bytes).fold(0, u64::saturating_add)
        };
        Some(on_card().map(|stored| there(stored.birth)).max().unwrap_or(0))
    }

    fn moment(&self, moment: Moment) -> Option<Moment> {
        if moment == NEVER {
            return Some(NEVER);
        }
        self.to.get(moment.index()).copied().filter(|to| *to < GONE)
    }

    /// The first moment after all those before that one.
    fn from(&self, moment: Moment) -> Option<Moment> {
        match moment.0.checked_sub(1) {
            Some(last) => Some(Moment(self.moment(Moment(last))?.0 + 1)),
            None => Some(moment),
        }
    }

    fn cuts(&self, cuts: &[Cut], units: &BTreeMap<u32, Unit>) -> Option<Vec<Cut>> {
        let moved = |cut: &Cut| {
            let first = self.places.partition_point(|place| *place < cut.at.0);
            let first = self.places.get(first);
            let of_cut = first.and_then(|place| Some((place, units.get(place)?)));
            let of_cut = of_cut.filter(|(place, _)| **place < cut.at.0 + cut.moments / cut.copies.max(1));
            let (marks, more) = match of_cut {
                Some((place, unit)) => (
                    u32::try_from(unit.after.len()).ok()?.checked_mul(unit.copies)?,
                    self.without_place.get(place).copied().unwrap_or(0),
                ),
                None => (0, 0),
            };
            Some(Cut { at: self.from(cut.at)?, moments: cut.moments.checked_sub(marks)? + more, ..*cut })
        };
        cuts.iter().map(moved).collect()
    }

    /// The storages that are left, in the order in which they are made.
    fn storages(&self, tape: &Tape) -> Option<Order> {
        let mut order: Vec<(Moment, bool, usize)> = Vec::with_capacity(tape.stored.len());
        for (at, stored) in tape.stored.iter().enumerate() {
            if self.to.get(stored.birth.index()) == Some(&GONE) {
                order.extend(self.kept.births.get(&at).map(|birth| (*birth, false, at)));
                continue;
            }
            // what is made at a mark comes after what is done there
            let is_after = tape.ran.get(stored.birth.index()).is_some_and(|ran| ran.op == PLACE);
            // what comes last is born at the moment that would be next
            let birth = match self.to.get(stored.birth.index()) {
                Some(to) => *to,
                None => Moment(u32::try_from(self.ran.len()).ok()?),
            };
            order.push((birth, is_after, at));
        }
        order.sort(); // mostly it is in order
        let mut ids = vec![StorageId::NOWHERE; tape.stored.len()];
        for (id, (_, _, at)) in (0..).map(StorageId).zip(&order) {
            *ids.get_mut(*at)? = id;
        }
        Some(Order { order, ids })
    }

    fn tape(&self, tape: &Tape, Order { order, ids }: &Order) -> Option<Tape> {
        let mut all = Vec::with_capacity(order.len());
        for (birth, _, at) in order {
            let stored = tape.stored.get(*at)?;
            let tracked = if stored.tracked == stored.birth { *birth } else { self.moment(stored.tracked)? };
            let copied_for = match stored.copied_for {
                Some(CopiedFor::Offload(of)) => Some(CopiedFor::Offload(*ids.get(of.0 as usize)?)),
                other => other,
            };
            let death = self.moment(stored.death)?;
            all.push(Stored { birth: *birth, tracked, death, copied_for, ..*stored });
        }
        let mark = |mark: &Mark| Some(Mark { first: self.moment(mark.first)?, ..mark.clone() });
        let once = |once: &Once| {
            let Range { start, end } = once.moments;
            let from = self.from(Moment(start))?.0;
            Some(Once { moments: from..from + (end - start), costs: once.costs })
        };
        let marks = tape.marks.iter().map(mark).collect::<Option<_>>()?;
        let once = tape.once.iter().map(once).collect::<Option<_>>()?;
        Some(tape.with(all, self.ran.clone(), (marks, once)))
    }
}

/// Where moments have gone that have no place.
const GONE: Moment = Moment(u32::MAX - 1);

/// Storages in the order in which they are made: when, whether at a mark, and which.
struct Order {
    order: Vec<(Moment, bool, usize)>,
    /// Which one each has become.
    ids: Vec<StorageId>,
}

impl Order {
    fn id(&self, of: StorageId) -> Option<StorageId> {
        self.ids.get(of.0 as usize).copied().filter(|id| *id != StorageId::NOWHERE)
    }
}

/// The last moment before that one which is no place.
fn last_before(tape: &Tape, moment: u32) -> Option<Moment> {
    let is_ran = |before: &u32| tape.ran.get(*before as usize).is_some_and(|ran| ran.op != PLACE);
    (0..moment).rev().find(is_ran).map(Moment)
}

/// The places, and what was done of what belongs there: what is between two marks in a row with no place between them.
fn postponed(ran: &[Ran]) -> Option<(Vec<u32>, Vec<Range<u32>>)> {
    let (mut places, mut done) = (Vec::new(), Vec::new());
    let mut from: Option<u32> = None;
    for (moment, ran) in (0..).zip(ran) {
        match ran.op {
            PLACE => {
                places.push(moment);
                from = None;
            }
            POSTPONED => {
                done.extend(from.map(|from| from..moment));
                from = Some(moment + 1);
            }
            _ => {}
        }
    }
    (places.len() <= done.len()).then_some((places, done))
}
