//! The passes of micro-batches as they were run, and where each comes in the whole step.

use super::rounds::{Again, Rounds};
use crate::parallel::schedule::{Action, Pass};
use crate::torch::tape::{NEVER, Stored, Tape};
use peakledger_core::{Moment, Phase};
use std::ops::Range;

/// What was run of a micro-batch in one go.
pub(super) struct Turn {
    pub(super) action: Action,
    pub(super) marks: Range<usize>,
    pub(super) moments: Range<u32>,
    pub(super) stored: Range<usize>,
}

/// A turn at its place in the whole step.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    /// Which turn was run.
    pub(super) turn: usize,
    /// How many micro-batches later this is.
    pub(super) later: u32,
    pub(super) moment: u32,
    pub(super) stored: u32,
}

/// A place on the tape that was run: a moment or a storage, by how far it is from the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Before(u32),
    In { turn: usize, offset: u32 },
    After(u32),
}

/// What a turn means by a place, in whichever micro-batch it is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Meaning {
    /// This one of the whole tape.
    Fixed(u32),
    /// So far into an action as many micro-batches later as the turn is, and so many more where the two are of one round.
    Follows(Action, u32, i64),
}

/// What is counted along the tape.
#[derive(Clone, Copy)]
pub(super) enum Along {
    Moments,
    Storages,
}

/// All turns of a tape, and where they come in the whole step.
pub(super) struct Turns<'a> {
    pub(super) rounds: &'a Rounds,
    pub(super) tape: &'a Tape,
    pub(super) turns: Vec<Turn>,
    moved: Vec<u32>,
    /// Where the turn of a pass and micro-batch is among those that were run.
    pub(super) turn_of: Vec<Vec<usize>>,
    pub(super) pieces: Vec<Piece>,
    /// Where an action of the whole step is among the pieces.
    pub(super) piece_of: Vec<Vec<usize>>,
    /// The first moment and storage after all turns, as they were run and in the whole step.
    pub(super) after: [(u32, u32); 2],
}

impl Turns<'_> {
    /// The turns of a tape, without some storages that are made between two of them.
    pub(super) fn of<'a>(tape: &'a Tape, rounds: &'a Rounds, stand_ins: &Range<usize>) -> Option<Turns<'a>> {
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
            let mut stored = made(from)..made(to);
            if stand_ins.end == stored.end {
                stored.end = stand_ins.start.max(stored.start);
            }
            // (inside a turn that is compared they make it unlike the other)
            Turn { action: *action, marks, moments: from.0..to.0, stored }
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
        let mut all = Turns {
            rounds,
            tape,
            turns,
            moved: (0..rounds.run.len()).map(|run| rounds.moved(run)).collect(),
            turn_of,
            pieces: Vec::new(),
            piece_of: Vec::new(),
            after: [after; 2],
        };
        for Again { run, later } in rounds.written() {
            let turn = all.turns.get(run)?;
            let (moment, stored) = next;
            all.pieces.push(Piece { turn: run, later, moment, stored });
            next.0 += turn.moments.end - turn.moments.start;
            next.1 += u32::try_from(turn.stored.len()).ok()?;
        }
        all.after[1] = next;
        all.piece_of = table(rounds.whole.iter().copied());
        Some(all)
    }

    /// By how many micro-batches a turn is later in the whole step, where it first stands.
    pub(super) fn moved(&self, turn: usize) -> u32 {
        self.moved.get(turn).copied().unwrap_or(0)
    }

    pub(super) fn turn(&self, action: Action) -> Option<usize> {
        let at = self.turn_of.get(row(action))?.get(action.micro_batch as usize)?;
        (*at != usize::MAX).then_some(*at)
    }

    pub(super) fn piece(&self, action: Action) -> Option<&Piece> {
        self.pieces.get(*self.piece_of.get(row(action))?.get(action.micro_batch as usize)?)
    }

    /// The passes of a micro-batch of the whole step.
    pub(super) fn pieces_of(&self, micro_batch: u32) -> impl Iterator<Item = &Piece> {
        let piece = move |row: &Vec<usize>| row.get(micro_batch as usize).copied();
        self.piece_of.iter().filter_map(piece).filter_map(|piece| self.pieces.get(piece))
    }

    /// Where on the tape that was run a moment or a storage is.
    pub(super) fn place(&self, along: Along, at: u32) -> Place {
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
    /// many later as `neighbour` says: one of the next round, or of the one before.
    pub(super) fn meaning(
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
        let to = self.turns.get(place)?.action;
        let is_moved_alike = self.moved(turn) == self.moved(place);
        let more = if is_moved_alike { 0 } else { self.rounds.moved_more(turn, place) };
        let follows = Meaning::Follows(to, base, more);
        let is_again = self.rounds.is_again(turn);
        if !is_again && is_moved_alike {
            return Some(follows);
        }
        // a neighbour means the pass of a micro-batch as many later, or the same one
        let step = i64::from(self.rounds.step(turn));
        let by = |by: i64| {
            let Place::In { turn: there, offset } = self.place(along, neighbour(by)?) else { return None };
            let other = self.turns.get(there)?.action;
            (offset == base && row(other) == row(to)).then_some(())?;
            if i64::from(other.micro_batch) == i64::from(to.micro_batch) + by {
                return Some(follows);
            }
            let is_the_same = there == place && !self.rounds.is_compared(place);
            is_the_same.then(|| self.in_whole(along, place, base)).flatten().map(Meaning::Fixed)
        };
        // what is there longer than what any other has, and the last pass of a part lets go of, is there until then
        let is_last = || !is_again && self.is_last_of_part(place) && neighbour(step).is_none_or(|it| it < at);
        let until_last = || self.in_whole(along, place, base).filter(|_| is_last());
        by(step).or_else(|| by(-step)).or_else(|| until_last().map(Meaning::Fixed))
    }

    /// Whether no turn of the same part comes later.
    fn is_last_of_part(&self, turn: usize) -> bool {
        let part = |turn: &Turn| turn.action.part;
        let later = self.turns.get(turn + 1..).unwrap_or_default();
        self.turns.get(turn).is_some_and(|last| later.iter().all(|turn| part(turn) != part(last)))
    }

    /// A place in a turn as it was run, in the whole step.
    pub(super) fn in_whole(&self, along: Along, turn: usize, base: u32) -> Option<u32> {
        let action = self.turns.get(turn)?.action;
        self.at(along, Meaning::Follows(action, base, 0), self.moved(turn))
    }

    /// Where that is in the whole step, for a turn so many micro-batches later.
    pub(super) fn at(&self, along: Along, meaning: Meaning, later: u32) -> Option<u32> {
        let (to, base, more) = match meaning {
            Meaning::Fixed(at) => return Some(at),
            Meaning::Follows(to, base, more) => (to, base, more),
        };
        let micro_batch = u32::try_from(i64::from(to.micro_batch) + i64::from(later) + more).ok()?;
        let piece = self.piece(Action { micro_batch, ..to })?;
        self.rounds.goes_alike(self.turn(to)?, piece.turn).then_some(())?;
        let turn = self.turns.get(piece.turn)?;
        match along {
            Along::Moments => (base < turn.moments.end - turn.moments.start).then_some(piece.moment + base),
            Along::Storages => ((base as usize) < turn.stored.len()).then_some(piece.stored + base),
        }
    }

    /// A storage of the same turn of the micro-batch so many later, at the same place in it.
    pub(super) fn beside(&self, turn: usize, storage: usize, by: i64) -> Option<&Stored> {
        let here = self.turns.get(turn)?;
        let micro_batch = u32::try_from(i64::from(here.action.micro_batch) + by).ok()?;
        let there = self.turns.get(self.turn(Action { micro_batch, ..here.action })?)?;
        (there.stored.len() == here.stored.len()).then_some(())?;
        self.tape.stored.get(there.stored.start + storage.checked_sub(here.stored.start)?)
    }

    pub(super) fn moment(&self, turn: usize, storage: usize, of: fn(&Stored) -> Moment) -> Option<Meaning> {
        match of(self.tape.stored.get(storage)?) {
            NEVER => Some(Meaning::Fixed(NEVER.0)),
            at => self.meaning(Along::Moments, turn, at.0, |by| Some(of(self.beside(turn, storage, by)?).0)),
        }
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
