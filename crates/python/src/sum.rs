//! Floats added as Python's `sum` adds them, so that totals are the same to the last bit.
//!
//! Since 3.12 `sum` carries what additions lose and adds it at the end (Neumaier's variant of Kahan's summation;
//! `Python/bltinmodule.c`, `cs_add` and `cs_to_double`). Before, it just adds.

/// A sum that grows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sum {
    compensated: bool,
    total: f64,
    lost: f64,
    empty: bool,
}

impl Sum {
    /// Of nothing yet; compensated or not.
    pub(crate) fn new(compensated: bool) -> Sum {
        Sum { compensated, total: 0.0, lost: 0.0, empty: true }
    }

    /// Adds a number.
    pub(crate) fn add(&mut self, number: f64) {
        let total = self.total + number;
        // the first is added to the integer 0 with which `sum` starts, which loses nothing
        if self.compensated && !self.empty {
            self.lost += match self.total.abs() >= number.abs() {
                true => (self.total - total) + number,
                false => (number - total) + self.total,
            };
        }
        self.total = total;
        self.empty = false;
    }

    /// The sum; nothing where nothing was added, for which Python has the integer 0.
    pub(crate) fn get(self) -> Option<f64> {
        let whole =
            if self.lost != 0.0 && self.lost.is_finite() { self.total + self.lost } else { self.total };
        (!self.empty).then_some(whole)
    }
}
