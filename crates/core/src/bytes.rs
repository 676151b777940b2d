//! Exact sizes: a number of bytes, its binary units, and the two doors (MiB and text) through which it comes in.

use std::fmt;

/// A size in bytes. Exact: it is only ever added and subtracted, and every sum is checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(u64);

const UNITS: [(&str, u64); 5] =
    [("PiB", 1 << 50), ("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

impl Bytes {
    /// No bytes.
    pub const ZERO: Bytes = Bytes(0);

    /// A size of so many bytes.
    pub const fn new(bytes: u64) -> Self {
        Bytes(bytes)
    }

    /// The number of bytes.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The sum, or nothing where it passes 64 bits.
    pub fn checked_add(self, other: Bytes) -> Option<Bytes> {
        self.0.checked_add(other.0).map(Bytes)
    }

    /// What `self` has more than `other`: positive, zero or negative.
    pub fn minus(self, other: Bytes) -> i128 {
        i128::from(self.0) - i128::from(other.0)
    }

    /// The size of `mib` × 2^20 bytes, rounded to the nearest byte: the seed's `size_mb`.
    ///
    /// # Errors
    /// Says why the number is no size: not finite, negative, or 2^64 bytes and more.
    pub fn from_mib(mib: f64) -> Result<Bytes, &'static str> {
        if !mib.is_finite() {
            return Err("is not a finite number");
        }
        if mib < 0.0 {
            return Err("is negative");
        }
        let bytes = (mib * 1_048_576.0).round(); // exact: 2^20 only moves the exponent
        if bytes >= 18_446_744_073_709_551_616.0 {
            return Err("does not fit into 64 bits of bytes");
        }
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        // whole, ≥ 0 and < 2^64: checked above
        let bytes = bytes as u64;
        Ok(Bytes(bytes))
    }

    /// The size in MiB, for the `*_mb` fields of the seed's format.
    #[allow(clippy::cast_precision_loss)] // for people; the exact bytes are given with it
    pub fn mib(self) -> f64 {
        self.0 as f64 / 1_048_576.0
    }

    /// Reads what people write: `80GiB`, `24 GB`, `141.5 GiB`, `1024`, `85_899_345_920`. Decimal units (`GB`) are powers
    /// of ten; `_` between digits is passed over.
    ///
    /// # Errors
    /// Says what is wrong with the text.
    pub fn parse(text: &str) -> Result<Bytes, &'static str> {
        let text = text.trim();
        let split = text.find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_').unwrap_or(text.len());
        let (number, unit) = text.split_at(split);
        let scale: u64 = match unit.trim().to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "kib" | "k" => 1 << 10,
            "mib" | "m" => 1 << 20,
            "gib" | "g" => 1 << 30,
            "tib" | "t" => 1 << 40,
            "pib" | "p" => 1 << 50,
            "kb" => 1_000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            "tb" => 1_000_000_000_000,
            "pb" => 1_000_000_000_000_000,
            _ => return Err("has a unit other than B, KiB, MiB, GiB, TiB, PiB, KB, MB, GB, TB, PB"),
        };
        let number = number.replace('_', "");
        let (whole, fraction) = number.split_once('.').unwrap_or((&number, ""));
        let too_big = "does not fit into 64 bits of bytes";
        let digits = |s: &str| if s.is_empty() { Ok(0) } else { s.parse::<u64>() };
        if whole.is_empty() && fraction.is_empty() {
            return Err("has no number in it");
        }
        if fraction.len() > 15 || fraction.contains('.') {
            return Err("is not a decimal number");
        }
        let whole = digits(whole).map_err(|_| too_big)?;
        let numerator = digits(fraction).map_err(|_| "is not a decimal number")?;
        let denominator = 10u128.pow(u32::try_from(fraction.len()).unwrap_or(0));
        let fraction = (u128::from(numerator) * u128::from(scale) + denominator / 2) / denominator;
        let bytes = u128::from(whole) * u128::from(scale) + fraction;
        u64::try_from(bytes).map(Bytes).map_err(|_| too_big)
    }
}

/// Binary units with up to two digits after the point; honours a precision (`{:.1}`) and a width.
impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = f.precision().unwrap_or(2).min(6);
        let text = match UNITS.iter().find(|(_, unit)| self.0 >= *unit) {
            None => format!("{} B", self.0),
            Some((name, unit)) => {
                // integer rounding, half up: the same text on every machine
                let scale = 10u128.pow(u32::try_from(digits).unwrap_or(0));
                let scaled = (u128::from(self.0) * scale + u128::from(*unit) / 2) / u128::from(*unit);
                match digits {
                    0 => format!("{scaled} {name}"),
                    _ => format!("{}.{:0digits$} {name}", scaled / scale, scaled % scale),
                }
            }
        };
        f.pad_integral(true, "", &text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mib_rounds_once_to_the_nearest_byte() {
        assert_eq!(Bytes::from_mib(800.0), Ok(Bytes(838_860_800)));
        assert_eq!(Bytes::from_mib(0.000_000_5), Ok(Bytes(1)));
        assert!(Bytes::from_mib(-0.1).is_err() && Bytes::from_mib(f64::NAN).is_err());
        assert!(Bytes::from_mib(17_592_186_044_416.0).is_err(), "2^64 bytes");
        assert!(Bytes::from_mib(17_592_186_044_415.0).is_ok());
    }

    #[test]
    fn text_in_and_out() {
        assert_eq!(Bytes::parse("80GiB"), Ok(Bytes(80 << 30)));
        assert_eq!(Bytes::parse("24 GB"), Ok(Bytes(24_000_000_000)));
        assert_eq!(Bytes::parse("1.5 KiB"), Ok(Bytes(1536)));
        assert_eq!(Bytes::parse("1024"), Ok(Bytes(1024)));
        assert_eq!(Bytes::parse("1_024"), Ok(Bytes(1024)));
        for bad in ["", "GiB", "1.2.3", "-1", "99999999999999999999", "20000000 TiB", "8 QiB"] {
            assert!(Bytes::parse(bad).is_err(), "{bad}");
        }
        assert_eq!(Bytes(1023).to_string(), "1023 B");
        assert_eq!(Bytes(1 << 31).to_string(), "2.00 GiB");
        assert_eq!(format!("{:.1}|{:>10}", Bytes(1 << 31), Bytes(3 << 20)), "2.0 GiB|  3.00 MiB");
    }
}
