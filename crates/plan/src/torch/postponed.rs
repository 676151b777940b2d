//! What is done in layers but goes by other bounds than theirs: where some layers are left out its place alone is marked in them,
//! and all of it is done when backward has ended. [`crate::repeat`] puts it to its places.

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
    pub(crate) fn catches_up<T>(&self, places: impl IntoIterator<Item = T>, mut act: impl FnMut(T)) {
        self.comes_to(Part::Postponed);
        for place in places {
            self.launch(POSTPONED);
            act(place);
        }
        self.launch(POSTPONED);
        self.comes_to(Part::Between);
    }
}
