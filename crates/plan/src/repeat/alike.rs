//! Which layers need not be run: those in the middle of a long row of the same.

use std::ops::Range;

/// Layers in a row that repeat: of them are run the first units, the unit that is written down again, one that is compared with
/// it, and the last. The first unit may differ from those after it, and so may what the second leaves to it in backward; the
/// last may. Where copies run ahead, more are run: the copies of the first layers and of the last are made and let go at other
/// places than those between, so no layer that is written down again, and none that it is compared with, may be as near to an
/// end that it reaches into them. A unit is the shortest run of layers that repeats: one layer, or as many as a
/// checkpoint has, or a few that look through a window and one that does not.
///
/// Positions here are those of layers that are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Alike {
    /// The first layer of the unit that is written down again.
    pub(super) first: usize,
    /// Layers in a unit.
    pub(super) unit: usize,
    /// How often the unit is written down again.
    pub(super) copies: usize,
    /// How far what is run in a layer may look ahead, in layers.
    pub(super) reach: usize,
}

/// The longest unit that is looked for, in checkpoints or layers; gemma3 looks through a window in five of six.
const LONGEST_UNIT: usize = 8;

impl Alike {
    /// Looks for the row that saves most in layers of those kinds from that one on. `ahead` is how many layers or checkpoints
    /// ahead copies run.
    pub(super) fn of(from: usize, kinds: &[usize], together: usize, ahead: usize) -> Option<Alike> {
        let together = together.max(1);
        let groups: Vec<&[usize]> = kinds.chunks(together).collect();
        // the ends reach so far into the row as copies run ahead, and a layer as far towards them
        let (reach, back) = (ahead.saturating_add(1), ahead.saturating_mul(2).saturating_add(1));
        let front = back.max(ahead.saturating_add(2));
        let mut best: Option<Alike> = None;
        for period in 1..=LONGEST_UNIT.min(groups.len()) {
            for row in rows(&groups, period) {
                let run = front.saturating_add(back).saturating_add(2);
                let spare = (row.len() / period).checked_sub(run).filter(|copies| *copies > 0);
                let Some(copies) = spare else { continue };
                let unit = period * together;
                let first = from + row.start * together + front * unit;
                let alike = Alike { first, unit, copies, reach: reach * unit };
                if best.is_none_or(|best| alike.left_out().len() > best.left_out().len()) {
                    best = Some(alike);
                }
            }
        }
        best
    }

    /// The layers that are not run, as the model numbers them.
    pub(super) fn left_out(&self) -> Range<usize> {
        let from = self.first + self.unit;
        from..from + self.unit * self.copies
    }

    /// How the model numbers a layer that is run.
    pub(super) fn in_model(&self, layer: usize) -> usize {
        if self.is_after(layer) { layer + self.unit * self.copies } else { layer }
    }

    /// Where a layer is among those that are run.
    pub(super) fn among_run(&self, in_model: usize) -> Option<usize> {
        let left_out = self.left_out();
        match in_model {
            layer if layer < left_out.start => Some(layer),
            layer if layer >= left_out.end => Some(layer - left_out.len()),
            _ => None,
        }
    }

    /// Whether a layer that is run comes after those that are not.
    pub(super) fn is_after(&self, layer: usize) -> bool {
        layer >= self.first + self.unit
    }

    /// Whether a layer is written down again, or compared with one that is: nothing but layers may tell it from others.
    pub(super) fn is_compared(&self, layer: usize) -> bool {
        (self.first..self.first + 2 * self.unit).contains(&layer)
    }

    /// The layers of the unit that is written down again.
    pub(super) fn again(&self) -> Range<usize> {
        self.first..self.first + self.unit
    }
}

/// The stretches in which each group is as the one a period before it.
fn rows(groups: &[&[usize]], period: usize) -> Vec<Range<usize>> {
    let mut rows: Vec<Range<usize>> = Vec::new();
    for (at, (group, later)) in groups.iter().zip(groups.iter().skip(period)).enumerate() {
        if group != later {
            continue;
        }
        match rows.last_mut() {
            Some(row) if row.end == at + period => row.end += 1,
            _ => rows.push(at..at + period + 1),
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(kinds: &[usize], together: usize, ahead: usize) -> Option<(Range<usize>, usize)> {
        Alike::of(0, kinds, together, ahead).map(|alike| (alike.left_out(), alike.unit))
    }

    #[test]
    fn the_middle_of_a_row_is_left_out() {
        assert_eq!(of(&[0; 32], 1, 0), Some((3..30, 1)));
        assert_eq!(of(&[0; 32], 1, 2), Some((6..26, 1)), "copies run ahead of the layers");
        assert_eq!(of(&[0; 5], 1, 0), None, "all five are needed");
        assert_eq!(of(&[0, 1].repeat(8), 1, 0), Some((6..12, 2)), "two kinds take turns");
        assert_eq!(of(&[[0; 3].as_slice(), &[3; 29]].concat(), 1, 0), Some((6..30, 1)), "the longer row");
        assert_eq!(of(&[0; 31], 4, 0), Some((12..20, 4)), "eight checkpoints, the last of three layers");
        assert_eq!(of(&[], 1, 0), None);
        let of_a_stage = Alike::of(40, &[0; 20], 1, 0).map(|alike| alike.left_out());
        assert_eq!(of_a_stage, Some(43..58), "counted over the whole model");
    }
}
