//! What is done while layers run backward, but at another place in each of them: ZeRO 2 reduces its bucket of gradients whenever
//! that is full, which may be after the first matrix of one layer and the last of the next. So layers that are alike leave other
//! stretches of the tape, and none could stand for another.
//!
//! Where layers are left out it is therefore postponed. A layer only marks the places at which it might be done (each gradient
//! that comes), which are the same in all; and when backward has ended, and every gradient is known, also those of layers that
//! were not run, all of it is done, place after place. [`crate::repeat`] then puts each to its place on the tape.

use super::Torch;
use super::trail::Part;

/// Stands where something that is postponed belongs.
pub(crate) const PLACE: &str = "place of what is postponed";

/// Stands before what belongs to a place, in the order of places, and after the last of it.
pub(crate) const POSTPONED: &str = "postponed";

impl Torch {
    /// Whether layers are left out, so that what goes by other bounds has to be postponed.
    pub(crate) fn postpones(&self) -> bool {
        self.trail.borrow().is_some()
    }

    /// Marks where something belongs that is done later. What goes here goes when that is done.
    pub(crate) fn marks_place(&self) {
        self.launch(PLACE);
    }

    /// Does what was postponed: of each place in turn what belongs there.
    pub(crate) fn does_postponed<T>(&self, places: impl IntoIterator<Item = T>, mut act: impl FnMut(T)) {
        self.comes_to(Part::Postponed);
        for place in places {
            self.launch(POSTPONED);
            act(place);
        }
        self.launch(POSTPONED);
        self.comes_to(Part::Between);
    }
}
