//! Figures with two digits after the point, and how far off they may be.

use peakledger_core::Bytes;
use std::fmt;

/// A size as a message writes it: `22.78 GiB` is any size of 22.775 to 22.785 GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rounded {
    /// The figure itself.
    pub bytes: Bytes,
    /// How much more or less it may be. Nothing where it is written in bytes.
    pub off_by: Bytes,
}

impl Rounded {
    /// The size at the beginning of a text, and what follows it. A size of 2^64 bytes is PyTorch's word for none.
    pub(super) fn parse(text: &str) -> Option<(Option<Rounded>, &str)> {
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, rest) = text.split_at_checked(end)?;
        let rest = rest.trim_start();
        let units = [("bytes", 0), ("KiB", 10), ("MiB", 20), ("GiB", 30)];
        let (unit, rest) =
            units.iter().find_map(|(word, shift)| Some((1u128 << shift, rest.strip_prefix(word)?)))?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let scale = 10u128.checked_pow(u32::try_from(fraction.len()).ok().filter(|digits| *digits <= 9)?)?;
        let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
        let bytes = digits.checked_mul(unit)?.checked_add(scale / 2)? / scale;
        let off_by = if unit == 1 { 0 } else { unit.div_ceil(2 * scale) };
        let size = |n: u128| u64::try_from(n).ok().map(Bytes::new);
        Some((size(bytes).and_then(|bytes| Some(Rounded { bytes, off_by: size(off_by)? })), rest))
    }

    /// The smallest and the largest size that is written so.
    pub(super) fn range(self) -> (i128, i128) {
        let (middle, off) = (i128::from(self.bytes.get()), i128::from(self.off_by.get()));
        ((middle - off).max(0), middle + off)
    }
}

/// The figure alone; `{:#}` says how far off it may be.
impl fmt::Display for Rounded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.off_by {
            off if f.alternate() && off > Bytes::ZERO => write!(f, "{} ± {off}", self.bytes),
            _ => self.bytes.fmt(f),
        }
    }
}

/// Sums and differences of figures, which add up how far off they may be.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sum {
    middle: i128,
    off: i128,
}

impl Sum {
    pub(super) fn plus(self, figure: Option<Rounded>) -> Sum {
        let (middle, off) = parts(figure);
        Sum { middle: self.middle + middle, off: self.off + off }
    }

    pub(super) fn minus(self, figure: Option<Rounded>) -> Sum {
        let (middle, off) = parts(figure);
        Sum { middle: self.middle - middle, off: self.off + off }
    }

    pub(super) fn minus_sum(self, other: Sum) -> Sum {
        Sum { middle: self.middle - other.middle, off: self.off + other.off }
    }

    /// Whether it is as much as the figure and, if so, for certain.
    pub(super) fn holds(self, figure: Rounded) -> Holds {
        let (low, high) = figure.range();
        match () {
            () if self.middle - self.off >= high => Holds::Yes,
            () if self.middle + self.off < low => Holds::No,
            () => Holds::WithinRounding(self.middle >= i128::from(figure.bytes.get())),
        }
    }

    /// As a figure; nothing where it is less than zero, beyond what rounding explains.
    pub(super) fn figure(self) -> Option<Rounded> {
        let size = |n: i128| u64::try_from(n).ok().map(Bytes::new);
        if self.middle + self.off < 0 {
            return None;
        }
        Some(Rounded { bytes: size(self.middle.max(0))?, off_by: size(self.off)? })
    }
}

fn parts(figure: Option<Rounded>) -> (i128, i128) {
    figure.map_or((0, 0), |f| (i128::from(f.bytes.get()), i128::from(f.off_by.get())))
}

/// Whether one sum holds another, given that both are rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holds {
    Yes,
    No,
    /// Rounding decides; the figures as they are written say so.
    WithinRounding(bool),
}

impl Holds {
    pub(super) fn yes(self) -> bool {
        matches!(self, Holds::Yes | Holds::WithinRounding(true))
    }

    pub(super) fn is_certain(self) -> bool {
        !matches!(self, Holds::WithinRounding(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_carry_half_of_their_last_digit() {
        let figure = |text| Rounded::parse(text).unwrap().0.unwrap();
        let gib = figure("22.78 GiB of it");
        assert_eq!((gib.bytes.get(), gib.off_by.get()), (24_459_838_751, 5_368_710));
        assert_eq!(figure("0 bytes is free"), Rounded { bytes: Bytes::ZERO, off_by: Bytes::ZERO });
        assert_eq!(figure("179.00 KiB").to_string(), "179.00 KiB");
        assert_eq!(format!("{:#}", figure("16.00 GiB")), "16.00 GiB ± 5.12 MiB");
        assert_eq!(Rounded::parse("17179869184.00 GiB").unwrap().0, None, "2^64 bytes: no figure");
        for none in [
            "GiB",
            "1.5",
            "1.5 Gib",
            "1.2.3 GiB",
            "12",
            "",
            "1.0000000001 GiB",
            "99999999999999999999999999999999999 GiB",
        ] {
            assert!(Rounded::parse(none).is_none(), "{none}");
        }
    }
}
