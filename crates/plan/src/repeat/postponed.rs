//! What was postponed while layers were left out is put to its places on the tape of the whole step ([`crate::torch::postponed`]).

use crate::torch::postponed::{PLACE, POSTPONED};
use crate::torch::tape::{CopiedFor, Mark, NEVER, Once, Ran, StorageId, Stored, Tape};
use peakledger_core::Moment;
use std::ops::Range;

/// The tape with everything in its place; nothing where as much was not done as was postponed.
pub(super) fn put_in_place(tape: &Tape) -> Option<Tape> {
    let moved = Moved::of(tape)?;
    let stored = moved.stored(tape)?;
    let marks = tape.marks.iter().map(|mark| Some(Mark { first: moved.moment(mark.first)?, ..mark.clone() }));
    let marks = marks.collect::<Option<_>>()?;
    let once = |once: &Once| {
        let Range { start, end } = once.moments;
        let from = moved.moment(Moment(start))?.0;
        Some(Once { moments: from..from + (end - start), costs: once.costs })
    };
    let once = tape.once.iter().map(once).collect::<Option<_>>()?;
    Some(tape.with(stored, moved.ran, (marks, once)))
}

/// The moments in the order in which they belong.
struct Moved {
    ran: Vec<Ran>,
    /// Where each moment has gone; a mark to the moment that was the last when it was made.
    to: Vec<Moment>,
    places: Vec<u32>,
    /// What was done of what was postponed.
    done: Vec<Range<u32>>,
}

impl Moved {
    fn of(tape: &Tape) -> Option<Moved> {
        let (places, done) = postponed(&tape.ran)?;
        let marks = places.len() * 2;
        let mut moved = Moved {
            ran: Vec::with_capacity(tape.ran.len().saturating_sub(marks)),
            to: vec![NEVER; tape.ran.len()],
            places,
            done,
        };
        let mut from = 0;
        for at in 0..moved.places.len() {
            let (place, done) = (*moved.places.get(at)?, moved.done.get(at)?.clone());
            moved.put(tape, from..place)?;
            moved.put(tape, done)?;
            moved.leave_out(place)?;
            from = place + 1;
        }
        moved.put(tape, from..tape.next().0)?;
        Some(moved)
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

    fn moment(&self, moment: Moment) -> Option<Moment> {
        if moment == NEVER { Some(NEVER) } else { self.to.get(moment.index()).copied() }
    }

    /// The storages in the order in which they are made.
    fn stored(&self, tape: &Tape) -> Option<Vec<Stored>> {
        let mut order: Vec<(Moment, bool, usize)> = Vec::with_capacity(tape.stored.len());
        for (at, stored) in tape.stored.iter().enumerate() {
            // what is made at a mark comes after what is done there
            let is_after = self.places.binary_search(&stored.birth.0).is_ok();
            order.push((self.moment(stored.birth)?, is_after, at));
        }
        order.sort_unstable();
        let mut ids = vec![StorageId::NOWHERE; order.len()];
        for (id, (_, _, at)) in (0..).map(StorageId).zip(&order) {
            *ids.get_mut(*at)? = id;
        }
        let moved = |(birth, _, at): &(Moment, bool, usize)| {
            let stored = tape.stored.get(*at)?;
            let [tracked, death] = [stored.tracked, stored.death].map(|moment| self.moment(moment));
            let copied_for = match stored.copied_for {
                Some(CopiedFor::Offload(of)) => Some(CopiedFor::Offload(*ids.get(of.0 as usize)?)),
                other => other,
            };
            Some(Stored { birth: *birth, tracked: tracked?, death: death?, copied_for, ..*stored })
        };
        order.iter().map(moved).collect()
    }
}

/// The places, and what was done of what belongs there.
fn postponed(ran: &[Ran]) -> Option<(Vec<u32>, Vec<Range<u32>>)> {
    let (mut places, mut done) = (Vec::new(), Vec::new());
    let mut from = None;
    for (moment, ran) in (0..).zip(ran) {
        match ran.op {
            PLACE => places.push(moment),
            POSTPONED => {
                done.extend(from.take().map(|from| from..moment));
                from = (done.len() < places.len()).then_some(moment + 1);
            }
            _ => {}
        }
    }
    (from.is_none() && done.len() == places.len()).then_some((places, done))
}
