//! Micro-batches are alike: few of them are run, and of those in the middle one is written down again for all that are not.
//!
//! What is made in a pass of one micro-batch goes in the same pass, in one of a micro-batch as many later, or in the same
//! one for all: which it is shows where two micro-batches in a row are compared. Nothing is assumed of a tape: where they
//! are not alike, all micro-batches are run.

use super::rounds::Rounds;
use super::turns::{Along, Piece, Place, Turn, Turns};
use crate::torch::tape::{CopiedFor, Mark, NEVER, Once, Ran, Role, StorageId, Stored, Tape};
use peakledger_core::Moment;
use std::ops::Range;

/// The tape of a whole step, of one on which the batches of all its micro-batches were loaded and few of them run; nothing
/// where those that are compared are not alike.
pub(super) fn repeated(tape: &Tape, rounds: &Rounds) -> Option<Tape> {
    let turns = Turns::of(tape, rounds, &(0..0))?;
    turns.is_alike()?;
    let (stored, ran) = (turns.stored()?, turns.ran()?);
    let (marks, once) = (turns.marks()?, turns.once()?);
    Some(tape.with(stored, ran, (marks, once)))
}

impl Turns<'_> {
    /// Whether what is written down again is like what was run after it.
    pub(super) fn is_alike(&self) -> Option<()> {
        for again in self.rounds.again() {
            let turn = self.turns.get(again)?;
            let next = self.turns.get(self.rounds.next(again)?)?;
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
                stream,
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
            let kind = (bytes, device, stream, category, detail, dtype, module);
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
    pub(super) fn seen_from_outside(&self, moment: Moment) -> Option<Moment> {
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
        (!self.rounds.is_compared(turn)).then_some(())?;
        self.in_whole(along, turn, offset)
    }

    /// When torch's tracker first sees a storage that is there before all turns: a batch in its own turn.
    pub(super) fn tracked(&self, stored: &Stored) -> Option<Moment> {
        let Role::Input { name, micro_batch } = stored.role else {
            return self.seen_from_outside(stored.tracked);
        };
        let first = self.turns.first()?.stored.start;
        let batch = |of: u32| {
            let is_it = |stored: &&Stored| stored.role == Role::Input { name, micro_batch: of };
            self.tape.stored.get(..first)?.iter().find(is_it)
        };
        // whichever of its passes it is that first sees the batch of what was run for it
        let seen = |piece: &Piece| {
            let turn = self.turns.get(piece.turn)?;
            let tracked = batch(turn.action.micro_batch)?.tracked;
            match self.place(Along::Moments, tracked.0) {
                Place::In { turn, offset } if turn == piece.turn => Some(Moment(piece.moment + offset)),
                _ => None,
            }
        };
        let seen = self.pieces_of(micro_batch).find_map(seen);
        seen.or_else(|| self.seen_from_outside(stored.tracked))
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
