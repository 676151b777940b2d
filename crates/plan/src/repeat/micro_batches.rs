//! Micro-batches are alike: few of them are run, and of those in the middle one is written down again for all that are not.
//!
//! What is made in a pass of one micro-batch goes in the same pass, in one of a micro-batch as many later, or in the same
//! one for all: which it is shows where two micro-batches in a row are compared. Nothing is assumed of a tape: where they
//! are not alike, all micro-batches are run.

use super::rounds::Rounds;
use crate::parallel::schedule::{Action, Pass};
use crate::torch::tape::{CopiedFor, Mark, NEVER, Once, Ran, Role, StorageId, Stored, Tape};
use peakledger_core::{Moment, Phase};
use std::ops::Range;

/// The tape of a whole step, of one on which the batches of all its micro-batches were loaded and few of them run; nothing
/// where those that are compared are not alike.
pub(crate) fn repeated(tape: Tape, rounds: &Rounds) -> Option<Tape> {
    let whole = Whole::of(&tape, rounds)?;
    whole.is_alike()?;
    let (stored, ran) = (whole.stored()?, whole.ran()?);
    let (marks, once) = (whole.marks()?, whole.once()?);
    Some(Tape { stored, ran, marks, once, ..tape })
}

/// What was run of a micro-batch in one go.
struct Turn {
    action: Action,
    marks: Range<usize>,
    moments: Range<u32>,
    stored: Range<usize>,
}

/// A turn at its place in the whole step.
#[derive(Clone, Copy)]
struct Piece {
    /// Which turn was run.
    turn: usize,
    /// How many micro-batches later this is.
    later: u32,
    moment: u32,
    stored: u32,
}

/// A place on the tape that was run: a moment or a storage, by how far it is from the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Before(u32),
    In { turn: usize, offset: u32 },
    After(u32),
}

/// What a turn means by a place, in whichever micro-batch it is.
#[derive(Clone, Copy, Debug)]
enum Meaning {
    /// This one of the whole tape.
    Fixed(u32),
    /// So far into an action as many micro-batches later as the turn is.
    Follows(Action, u32),
}

/// What is counted along the tape.
#[derive(Clone, Copy)]
enum Along {
    Moments,
    Storages,
}

/// The whole tape in the making.
struct Whole<'a> {
    rounds: &'a Rounds,
    tape: &'a Tape,
    turns: Vec<Turn>,
    /// Where the turn of a pass and micro-batch is among those that were run.
    turn_of: Vec<Vec<usize>>,
    pieces: Vec<Piece>,
    /// Where an action of the whole step is among the pieces.
    piece_of: Vec<Vec<usize>>,
    /// The first moment and storage after all turns, as they were run and in the whole step.
    after: [(u32, u32); 2],
}

impl Whole<'_> {
    fn of<'a>(tape: &'a Tape, rounds: &'a Rounds) -> Option<Whole<'a>> {
        tape.stored.is_sorted_by_key(|stored| stored.birth).then_some(())?;
        let mut marks: Vec<Range<usize>> = Vec::new();
        for (at, mark) in tape.marks.iter().enumerate().filter(|(_, mark)| mark.micro_batch.is_some()) {
            match marks.last_mut() {
                Some(last) if mark.phase == Phase::Loss => last.end = at + 1,
                _ => marks.push(at..at + 1),
            }
        }
        let in_a_row = marks.iter().zip(marks.iter().skip(1)).all(|(mark, next)| mark.end == next.start);
        (marks.len() == rounds.run.len() && in_a_row).then_some(())?;
        let first = |mark: usize| tape.marks.get(mark).map(|mark| mark.first).unwrap_or(tape.next());
        let made = |moment: Moment| tape.stored.partition_point(|stored| stored.birth < moment);
        let turn = |(action, marks): (&Action, Range<usize>)| {
            let (from, to) = (first(marks.start), first(marks.end));
            Turn { action: *action, marks, moments: from.0..to.0, stored: made(from)..made(to) }
        };
        let turns: Vec<Turn> = rounds.run.iter().zip(marks).map(turn).collect();
        let is_of = |turn: &Turn| {
            tape.marks.get(turn.marks.start).is_some_and(|it| it.micro_batch == Some(turn.action.micro_batch))
        };
        turns.iter().all(is_of).then_some(())?;
        let turn_of = table(turns.iter().map(|turn| turn.action));
        let (begin, end) = (turns.first()?, turns.last()?);
        let mut next = (begin.moments.start, u32::try_from(begin.stored.start).ok()?);
        let after = (end.moments.end, u32::try_from(end.stored.end).ok()?);
        let mut whole = Whole {
            rounds,
            tape,
            turns,
            turn_of,
            pieces: Vec::new(),
            piece_of: Vec::new(),
            after: [after; 2],
        };
        for action in &rounds.whole {
            let micro_batch = rounds.run_for(action.pass, action.micro_batch);
            let at = whole.turn(Action { micro_batch, ..*action })?;
            let turn = whole.turns.get(at)?;
            let (moment, stored) = next;
            whole.pieces.push(Piece { turn: at, later: action.micro_batch - micro_batch, moment, stored });
            next.0 += turn.moments.end - turn.moments.start;
            next.1 += u32::try_from(turn.stored.len()).ok()?;
        }
        whole.after[1] = next;
        whole.piece_of = table(rounds.whole.iter().copied());
        Some(whole)
    }

    fn turn(&self, action: Action) -> Option<usize> {
        let at = self.turn_of.get(row(action))?.get(action.micro_batch as usize)?;
        (*at != usize::MAX).then_some(*at)
    }

    fn piece(&self, action: Action) -> Option<&Piece> {
        self.pieces.get(*self.piece_of.get(row(action))?.get(action.micro_batch as usize)?)
    }

    /// Where on the tape that was run a moment or a storage is.
    fn place(&self, along: Along, at: u32) -> Place {
        let start = |turn: &Turn| match along {
            Along::Moments => turn.moments.start,
            Along::Storages => u32::try_from(turn.stored.start).unwrap_or(u32::MAX),
        };
        let after = match along {
            Along::Moments => self.after[0].0,
            Along::Storages => self.after[0].1,
        };
        if at >= after {
            return Place::After(at - after);
        }
        match self.turns.partition_point(|turn| start(turn) <= at).checked_sub(1) {
            Some(turn) => Place::In { turn, offset: at - self.turns.get(turn).map_or(0, start) },
            None => Place::Before(at),
        }
    }

    /// What a turn means by something that it knows as `at` on the tape that was run, and the same turn of the micro-batch so
    /// many later as `neighbour` says.
    fn meaning(
        &self,
        along: Along,
        turn: usize,
        at: u32,
        neighbour: impl Fn(i64) -> Option<u32>,
    ) -> Option<Meaning> {
        let (place, base) = match self.place(along, at) {
            Place::Before(at) => return Some(Meaning::Fixed(at)),
            Place::After(offset) => {
                let [_, (moment, stored)] = self.after;
                let first = match along {
                    Along::Moments => moment,
                    Along::Storages => stored,
                };
                return Some(Meaning::Fixed(first + offset));
            }
            Place::In { turn, offset } => (turn, offset),
        };
        let (from, to) = (self.turns.get(turn)?.action, self.turns.get(place)?.action);
        let follows = Meaning::Follows(to, base);
        let is_early = |action: Action| action.micro_batch <= self.rounds.again(action.pass);
        let is_again = from.micro_batch == self.rounds.again(from.pass);
        if place == turn || (is_early(from) == is_early(to) && !is_again) {
            return Some(follows);
        }
        // a neighbour means the pass of a micro-batch as many later, or the same one
        let by = |by: i64| {
            let Place::In { turn, offset } = self.place(along, neighbour(by)?) else { return None };
            let there = self.turns.get(turn)?.action;
            (offset == base && row(there) == row(to)).then_some(())?;
            if i64::from(there.micro_batch) == i64::from(to.micro_batch) + by {
                return Some(follows);
            }
            let again = self.rounds.again(to.pass);
            let is_the_same = there == to && !(again..again + 2).contains(&to.micro_batch);
            is_the_same.then(|| self.in_whole(along, to, base)).flatten().map(Meaning::Fixed)
        };
        // what no other has, and the last pass of all lets go of, is there until then
        let is_last = place + 1 == self.turns.len() && !is_again && neighbour(1).is_none();
        let until_last = || self.in_whole(along, to, base);
        by(1).or_else(|| by(-1)).or_else(|| is_last.then(until_last).flatten().map(Meaning::Fixed))
    }

    /// A place in an action as it was run, in the whole step.
    fn in_whole(&self, along: Along, action: Action, base: u32) -> Option<u32> {
        let later = self.rounds.in_whole(action).micro_batch - action.micro_batch;
        self.at(along, Meaning::Follows(action, base), later)
    }

    /// Where that is in the whole step, for a turn so many micro-batches later.
    fn at(&self, along: Along, meaning: Meaning, later: u32) -> Option<u32> {
        let (to, base) = match meaning {
            Meaning::Fixed(at) => return Some(at),
            Meaning::Follows(to, base) => (to, base),
        };
        self.rounds.goes_alike(to, to.micro_batch + later).then_some(())?;
        let piece = self.piece(Action { micro_batch: to.micro_batch + later, ..to })?;
        let turn = self.turns.get(piece.turn)?;
        match along {
            Along::Moments => (base < turn.moments.end - turn.moments.start).then_some(piece.moment + base),
            Along::Storages => ((base as usize) < turn.stored.len()).then_some(piece.stored + base),
        }
    }

    /// A storage of the same turn of the micro-batch so many later, at the same place in it.
    fn beside(&self, turn: usize, storage: usize, by: i64) -> Option<&Stored> {
        let here = self.turns.get(turn)?;
        let micro_batch = u32::try_from(i64::from(here.action.micro_batch) + by).ok()?;
        let there = self.turns.get(self.turn(Action { micro_batch, ..here.action })?)?;
        (there.stored.len() == here.stored.len()).then_some(())?;
        self.tape.stored.get(there.stored.start + storage.checked_sub(here.stored.start)?)
    }

    fn moment(&self, turn: usize, storage: usize, of: fn(&Stored) -> Moment) -> Option<Meaning> {
        match of(self.tape.stored.get(storage)?) {
            NEVER => Some(Meaning::Fixed(NEVER.0)),
            at => self.meaning(Along::Moments, turn, at.0, |by| Some(of(self.beside(turn, storage, by)?).0)),
        }
    }

    /// Whether what is written down again is like what was run after it.
    fn is_alike(&self) -> Option<()> {
        let again = |turn: &&Turn| turn.action.micro_batch == self.rounds.again(turn.action.pass);
        for turn in self.turns.iter().filter(again) {
            let next = Action { micro_batch: turn.action.micro_batch + 1, ..turn.action };
            let next = self.turns.get(self.turn(next)?)?;
            let ran = |turn: &Turn| {
                self.tape.ran.get(turn.moments.start as usize..turn.moments.end as usize).unwrap_or_default()
            };
            let marks = |turn: &Turn| {
                let marks = self.tape.marks.get(turn.marks.clone()).unwrap_or_default();
                let first = turn.moments.start;
                marks.iter().map(|it| (&it.phase, it.first.0 - first, it.costs)).collect::<Vec<_>>()
            };
            (ran(turn) == ran(next) && marks(turn) == marks(next)).then_some(())?;
            (turn.stored.len() == next.stored.len()).then_some(())?;
            turn.stored
                .clone()
                .zip(next.stored.clone())
                .all(|(a, b)| self.are_same([(turn, a), (next, b)]))
                .then_some(())?;
        }
        Some(())
    }

    fn are_same(&self, both: [(&Turn, usize); 2]) -> bool {
        let of = |(turn, storage): (&Turn, usize)| {
            let stored = self.tape.stored.get(storage)?;
            let Stored {
                birth,
                tracked,
                bytes,
                device,
                category,
                detail,
                dtype,
                module,
                role,
                copied_for,
                ..
            } = *stored;
            let role = match role {
                Role::Input { name, micro_batch } => {
                    Role::Input { name, micro_batch: micro_batch.checked_sub(turn.action.micro_batch)? }
                }
                other => other,
            };
            let copied_for = match copied_for {
                Some(CopiedFor::Offload(_)) => None,
                other => Some(other),
            };
            let tracked = (tracked != NEVER).then_some(tracked == birth);
            let kind = (bytes, device, category, detail, dtype, module);
            Some((birth.0 - turn.moments.start, tracked, kind, role, copied_for))
        };
        let [a, b] = both.map(of);
        // what is there after all turns goes at the same moment; what goes in one is followed when it is moved
        let stays = |(_, storage): (&Turn, usize)| {
            self.tape
                .stored
                .get(storage)
                .map(|stored| stored.death)
                .filter(|death| death.0 >= self.after[0].0)
        };
        let [first, next] = both.map(stays);
        a.is_some() && a == b && (first.is_none() || first == next)
    }

    fn stored(&self) -> Option<Vec<Stored>> {
        let (first, last) = (self.turns.first()?.stored.start, self.turns.last()?.stored.end);
        let before = self.tape.stored.get(..first)?;
        let after = self.tape.stored.get(last..)?;
        let [_, (_, made)] = self.after;
        let mut all = Vec::with_capacity(made as usize + after.len());
        for stored in before {
            let death = self.seen_from_outside(stored.death)?;
            all.push(Stored { death, tracked: self.tracked(stored)?, ..*stored });
        }
        let mut deaths = Vec::with_capacity(last - first);
        for (at, turn) in self.turns.iter().enumerate() {
            for storage in turn.stored.clone() {
                deaths.push(self.moment(at, storage, |stored| stored.death)?);
            }
        }
        for piece in &self.pieces {
            let turn = self.turns.get(piece.turn)?;
            let moved = turn.moments.start;
            for storage in turn.stored.clone() {
                let stored = self.tape.stored.get(storage)?;
                let birth = Moment(stored.birth.0 - moved + piece.moment);
                let death = self.at(Along::Moments, *deaths.get(storage - first)?, piece.later)?;
                let tracked = match stored.tracked {
                    NEVER => NEVER,
                    tracked if tracked == stored.birth => birth,
                    _ => {
                        let meaning = self.moment(piece.turn, storage, |stored| stored.tracked)?;
                        Moment(self.at(Along::Moments, meaning, piece.later)?)
                    }
                };
                let copied_for = match stored.copied_for {
                    Some(CopiedFor::Offload(source)) => {
                        let neighbour = |by| match self.beside(piece.turn, storage, by)?.copied_for {
                            Some(CopiedFor::Offload(source)) => Some(source.0),
                            _ => None,
                        };
                        let meaning = self.meaning(Along::Storages, piece.turn, source.0, neighbour)?;
                        Some(CopiedFor::Offload(StorageId(self.at(Along::Storages, meaning, piece.later)?)))
                    }
                    other => other,
                };
                let role = match stored.role {
                    Role::Input { name, micro_batch } => {
                        Role::Input { name, micro_batch: micro_batch + piece.later }
                    }
                    role => role,
                };
                all.push(Stored { birth, tracked, death: Moment(death), copied_for, role, ..*stored });
            }
        }
        for stored in after {
            let [birth, tracked, death] =
                [stored.birth, stored.tracked, stored.death].map(|at| self.seen_from_outside(at));
            let copied_for = match stored.copied_for {
                Some(CopiedFor::Offload(source)) => {
                    Some(CopiedFor::Offload(self.storage_from_outside(source)?))
                }
                other => other,
            };
            all.push(Stored { birth: birth?, tracked: tracked?, death: death?, copied_for, ..*stored });
        }
        Some(all)
    }

    /// A moment as seen from outside the turns; not one in a turn that is written down again or compared.
    fn seen_from_outside(&self, moment: Moment) -> Option<Moment> {
        if moment == NEVER {
            return Some(NEVER);
        }
        self.outside(Along::Moments, moment.0).map(Moment)
    }

    fn storage_from_outside(&self, storage: StorageId) -> Option<StorageId> {
        self.outside(Along::Storages, storage.0).map(StorageId)
    }

    fn outside(&self, along: Along, at: u32) -> Option<u32> {
        let Place::In { turn, offset } = self.place(along, at) else {
            let meaning = self.meaning(along, 0, at, |_| None)?;
            return self.at(along, meaning, 0);
        };
        let action = self.turns.get(turn)?.action;
        let again = self.rounds.again(action.pass);
        (!(again..again + 2).contains(&action.micro_batch)).then_some(())?;
        self.in_whole(along, action, offset)
    }

    /// When torch's tracker first sees a storage that is there before all turns: a batch in its own turn.
    fn tracked(&self, stored: &Stored) -> Option<Moment> {
        let Role::Input { name, micro_batch } = stored.role else {
            return self.seen_from_outside(stored.tracked);
        };
        let first = self.turns.first()?.stored.start;
        let batch = |of: u32| {
            let is_it = |stored: &&Stored| stored.role == Role::Input { name, micro_batch: of };
            self.tape.stored.get(..first)?.iter().find(is_it)
        };
        let seen = |stored: &Stored| match self.place(Along::Moments, stored.tracked.0) {
            Place::In { turn, offset } => self.turns.get(turn).map(|turn| (turn.action, offset)),
            _ => None,
        };
        // which pass it is in shows with the first batch
        let Some((pass, _)) = seen(batch(0)?).map(|(action, _)| (action.pass, ())) else {
            return Some(stored.tracked);
        };
        let run = batch(self.rounds.run_for(pass, micro_batch))?;
        let Role::Input { micro_batch: was, .. } = run.role else { return None };
        let (action, offset) = seen(run)?;
        (action.micro_batch == was).then_some(())?;
        let later = micro_batch.checked_sub(was)?;
        self.at(Along::Moments, Meaning::Follows(action, offset), later).map(Moment)
    }

    fn ran(&self) -> Option<Vec<Ran>> {
        let (first, [(last, _), (end, _)]) = (self.turns.first()?.moments.start, self.after);
        let rest = self.tape.ran.get(last as usize..)?;
        let mut all = Vec::with_capacity(end as usize + rest.len());
        all.extend_from_slice(self.tape.ran.get(..first as usize)?);
        for piece in &self.pieces {
            let Range { start, end } = self.turns.get(piece.turn)?.moments;
            all.extend_from_slice(self.tape.ran.get(start as usize..end as usize)?);
        }
        all.extend_from_slice(rest);
        Some(all)
    }

    fn marks(&self) -> Option<Vec<Mark>> {
        let (first, last) = (self.turns.first()?.marks.start, self.turns.last()?.marks.end);
        let mut all = self.tape.marks.get(..first)?.to_vec();
        for piece in &self.pieces {
            let turn = self.turns.get(piece.turn)?;
            all.extend(self.tape.marks.get(turn.marks.clone())?.iter().map(|mark| Mark {
                micro_batch: mark.micro_batch.map(|micro_batch| micro_batch + piece.later),
                first: Moment(mark.first.0 - turn.moments.start + piece.moment),
                ..mark.clone()
            }));
        }
        for mark in self.tape.marks.get(last..)? {
            all.push(Mark { first: self.seen_from_outside(mark.first)?, ..mark.clone() });
        }
        Some(all)
    }

    fn once(&self) -> Option<Vec<Once>> {
        let moved = |once: &Once| {
            let Once { moments: Range { start, end }, costs } = once;
            let from = self.outside(Along::Moments, *start)?;
            Some(Once { moments: from..from + (end - start), costs: *costs })
        };
        self.tape.once.iter().map(moved).collect()
    }
}

/// Which row of a table an action is in: those of its pass, in its part of the stage.
fn row(action: Action) -> usize {
    let pass = match action.pass {
        Pass::Forward => 0,
        Pass::Backward => 1,
        Pass::InputGrad => 2,
        Pass::WeightGrad => 3,
    };
    action.part as usize * 4 + pass
}

/// Where actions are in a list, by row and micro-batch.
fn table(actions: impl Iterator<Item = Action>) -> Vec<Vec<usize>> {
    let mut rows: Vec<Vec<usize>> = Vec::new();
    for (at, action) in actions.enumerate() {
        let (row, column) = (row(action), action.micro_batch as usize);
        if rows.len() <= row {
            rows.resize(row + 1, Vec::new());
        }
        let Some(row) = rows.get_mut(row) else { continue };
        if row.len() <= column {
            row.resize(column + 1, usize::MAX);
        }
        if let Some(slot) = row.get_mut(column) {
            *slot = at;
        }
    }
    rows
}
