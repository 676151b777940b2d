//! The boundary between amounts that fit and those that do not.

use peakledger_core::Bytes;

/// The last amount that fits, and what one more would be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Boundary {
    pub(super) amount: Option<u64>,
    pub(super) next: Next,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    TooLarge,
    /// By what is reserved: of what is larger, up to this, some may fit again.
    TooMuchReserved {
        up_to: u64,
    },
    Unplanned,
    BeyondMost,
}

/// An amount that was tried, and what it takes: nothing where it cannot be planned.
#[derive(Clone, Copy)]
struct Probe {
    amount: u64,
    needed: Option<Bytes>,
}

/// Looks for an amount from 1 to `most` that fits where one more does not. It steps away from `start` by `stride` and twice
/// as far each time until it has tried both sides, and then between them.
///
/// Amounts are expected to take the more the larger they are. Should they not, what is found still fits and one more still
/// does not.
pub(super) fn boundary(
    start: u64,
    mut stride: u64,
    most: u64,
    capacity: Bytes,
    needed: impl Fn(u64) -> Option<Bytes>,
) -> Boundary {
    let most = most.max(1);
    let (mut below, mut above): (Option<Probe>, Option<Probe>) = (None, None);
    let (mut amount, mut turn) = (start.clamp(1, most), 0);
    loop {
        let tried = Probe { amount, needed: needed(amount) };
        let fits = tried.needed.is_some_and(|needed| needed <= capacity);
        *(if fits { &mut below } else { &mut above }) = Some(tried);
        amount = match (below, above) {
            (Some(below), Some(above)) => {
                if above.amount - below.amount <= 1 {
                    return Boundary { amount: Some(below.amount), next: above.next() };
                }
                turn += 1;
                between(below, above, capacity, fits, turn)
            }
            (Some(below), None) if below.amount >= most => {
                return Boundary { amount: Some(below.amount), next: Next::BeyondMost };
            }
            (None, Some(above)) if above.amount <= 1 => {
                return Boundary { amount: None, next: above.next() };
            }
            (Some(below), None) => below.amount.saturating_add(stride).min(most),
            (None, above) => above.map_or(1, |above| above.amount.saturating_sub(stride).max(1)),
        };
        stride = stride.saturating_mul(2).max(1);
    }
}

impl Probe {
    /// What it is to the amount before it, which fits.
    fn next(&self) -> Next {
        if self.needed.is_some() { Next::TooLarge } else { Next::Unplanned }
    }
}

/// Where to try next between an amount that fits and one that does not: where the line through both meets the capacity, as
/// totals mostly grow in proportion; then a little beyond that, seen from the side that was just moved, to get hold of it
/// from the other one too; and each third time in the middle, so that no shape makes it slow.
fn between(below: Probe, above: Probe, capacity: Bytes, moved_below: bool, turn: u32) -> u64 {
    let gap = above.amount - below.amount;
    let middle = below.amount + gap / 2;
    let (Some(from), Some(to)) = (below.needed, above.needed) else { return middle };
    if turn.is_multiple_of(3) {
        return middle;
    }
    let (room, rise) = (u128::from(capacity.get() - from.get()), u128::from(to.get() - from.get()));
    // `room < rise`, as the upper one does not fit: less than the gap
    let up = u64::try_from(u128::from(gap) * room / rise.max(1)).unwrap_or(gap);
    let beyond = |distance: u64| if turn == 1 { 0 } else { distance / 8 + 1 };
    let offset = match moved_below {
        true => up.saturating_add(beyond(up)),
        false => up.saturating_sub(beyond(gap - up)),
    };
    below.amount + offset.clamp(1, gap - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Whatever the shape, the answer fits and one more does not, and it takes few tries.
    #[test]
    fn any_shape_is_searched_in_few_tries() {
        type Shape = (&'static str, fn(u64) -> Option<u64>);
        let shapes: [Shape; 6] = [
            ("a line", |at| Some(1_000 + at * 77)),
            ("flat, then steep", |at| Some(900_000.max(at * 1_000))),
            ("steps", |at| Some(at * 100 / 512 * 512)),
            ("a parabola", |at| Some(at * at)),
            ("a jump", |at| Some(if at < 70_000 { 1 } else { 1 << 60 })),
            ("an end", |at| (at < 5_000).then_some(at)),
        ];
        for (name, shape) in shapes {
            for capacity in [0, 1, 1_000, 1_000_000, 999_999_999] {
                for start in [1, 2_048, 100_000] {
                    let tries = Cell::new(0);
                    let needed = |at| {
                        tries.set(tries.get() + 1);
                        shape(at).map(Bytes::new)
                    };
                    let found = boundary(start, start, 131_072, Bytes::new(capacity), needed);
                    let fits = |at| shape(at).is_some_and(|needed| needed <= capacity);
                    assert!(found.amount.is_none_or(fits), "{name}, {capacity}: {found:?}");
                    let more = found.amount.unwrap_or(0) + 1;
                    assert!(more > 131_072 || !fits(more), "{name}, {capacity}: {found:?}");
                    assert!(tries.get() <= 55, "{name}, {capacity}, from {start}: {} tries", tries.get());
                    if name == "a line" {
                        assert!(tries.get() <= 20, "{capacity}, from {start}: {} tries", tries.get());
                    }
                }
            }
        }
    }
}
