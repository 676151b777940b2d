//! Figures derived from bytes: shares in whole per mille, signed differences.

use peakledger_core::Bytes;
use peakledger_plan::Picoseconds;
use std::fmt;

/// What stands before the reason why a measurement is only a part.
pub(crate) const INCOMPLETE: &str = "incomplete: ";

/// A part of a whole in percent with one digit, rounded half up in integers: `36.4 %`.
pub(crate) fn percent(part: Bytes, whole: Bytes) -> String {
    let (part, whole) = (u128::from(part.get()), u128::from(whole.get()));
    let per_mille = (part * 1000 + whole / 2).checked_div(whole).unwrap_or(0);
    format!("{}.{} %", per_mille / 10, per_mille % 10)
}

/// A part of a whole as a fraction, for machine formats.
#[allow(clippy::cast_precision_loss)] // a ratio for reading; the exact bytes are given with it
pub(crate) fn share(part: Bytes, whole: Bytes) -> f64 {
    if whole == Bytes::ZERO { 0.0 } else { part.get() as f64 / whole.get() as f64 }
}

/// Bits a second in Gb/s, as networks are sold.
#[allow(clippy::cast_precision_loss)] // for people, and machine formats in which it is a number
pub(crate) fn gbps(bits_per_second: u64) -> f64 {
    bits_per_second as f64 / 1e9
}

/// A difference of sizes with its sign: `-300.00 MiB`.
pub(crate) fn signed(difference: i128) -> String {
    let sign = if difference < 0 { "-" } else { "" };
    // a difference of two 64-bit numbers has a magnitude of 64 bits
    format!("{sign}{}", Bytes::new(u64::try_from(difference.unsigned_abs()).unwrap_or(u64::MAX)))
}

/// A number with a comma every three digits.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A name without the number that the planner or a reader gave it to make it one of its own.
pub(crate) fn unnumbered(name: &str) -> &str {
    let number = |tail: &str| !tail.is_empty() && tail.bytes().all(|byte| byte.is_ascii_digit());
    name.rsplit_once(" #").filter(|(_, tail)| number(tail)).map_or(name, |(name, _)| name)
}

/// A change with its sign, also where it is more.
pub(crate) fn plus(change: i128) -> String {
    if change > 0 { format!("+{}", signed(change)) } else { signed(change) }
}

/// A difference of sizes in MiB, for the `*_mb` fields.
#[allow(clippy::cast_precision_loss)] // for people; the exact bytes are given with it
pub(crate) fn mib_of_difference(difference: i128) -> f64 {
    difference as f64 / 1_048_576.0
}

/// `1 state`, `2 states`.
pub(crate) fn count(number: usize, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// What is said of the entries of a list that are not shown: `and 3 more, 7.75 KiB`. Nothing where all are shown.
pub(crate) fn and_more(entries: usize, together: impl fmt::Display) -> Option<String> {
    (entries > 0).then(|| format!("and {entries} more, {together}"))
}

/// What is left of a card's memory, in words: `7.27 GiB to spare`; or what would be taken beyond it, `16.61 GiB too much`.
pub(crate) fn spare_or_too_much(headroom: i128) -> String {
    match headroom {
        headroom if headroom < 0 => format!("{} too much", signed(-headroom)),
        _ => format!("{} to spare", signed(headroom)),
    }
}

/// A saving in words: `5.00 MiB less`, `5.00 MiB more`, `the same`.
pub(crate) fn less_or_more(saving: i128) -> String {
    match saving {
        0 => "the same".to_owned(),
        saving if saving < 0 => format!("{} more", signed(-saving)),
        _ => format!("{} less", signed(saving)),
    }
}

/// FLOPs in three digits or so: `31.2 TFLOP`.
pub(crate) fn flop(flops: u128) -> String {
    const UNITS: [&str; 7] = ["FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP"];
    let mut unit = 1_u128;
    let mut units = UNITS.iter().peekable();
    loop {
        let name = units.next().copied().unwrap_or_default();
        if units.peek().is_none() || flops < unit * 1000 {
            let tenths = (flops * 10 + unit / 2) / unit;
            return match unit {
                1 => format!("{flops} {name}"),
                _ => format!("{}.{} {name}", tenths / 10, tenths % 10),
            };
        }
        unit *= 1000;
    }
}

/// An amount of bytes, as people read it.
pub(crate) fn amount(bytes: u128) -> Bytes {
    Bytes::new(u64::try_from(bytes).unwrap_or(u64::MAX))
}

/// A time in seconds, for machine formats.
#[allow(clippy::cast_precision_loss)] // for people; the exact counts are given with it
pub(crate) fn seconds(time: Picoseconds) -> f64 {
    time.0 as f64 / 1e12
}

/// A difference of times with its sign: `+68.80 ms`.
pub(crate) fn added_time(picoseconds: i128) -> String {
    let sign = if picoseconds < 0 { "-" } else { "+" };
    format!("{sign}{}", Picoseconds(picoseconds.unsigned_abs()))
}

/// A difference of times in seconds, for machine formats.
#[allow(clippy::cast_precision_loss)] // for people; the exact counts are given with it
pub(crate) fn signed_seconds(picoseconds: i128) -> f64 {
    picoseconds as f64 / 1e12
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_round_half_up_and_bear_any_size() {
        let percent = |part, whole| percent(Bytes::new(part), Bytes::new(whole));
        assert_eq!(percent(800, 2200), "36.4 %");
        assert_eq!(percent(1, 2000), "0.1 %");
        assert_eq!(percent(0, 0), "0.0 %");
        assert_eq!(percent(u64::MAX, u64::MAX), "100.0 %");
    }

    #[test]
    fn flops_have_three_digits_or_so() {
        let said = [0, 999, 1_000, 31_249_000_000_000, 999_960_000_000, u128::from(u64::MAX)];
        let said = said.map(flop);
        let wanted = ["0 FLOP", "999 FLOP", "1.0 kFLOP", "31.2 TFLOP", "1000.0 GFLOP", "18.4 EFLOP"];
        assert_eq!(said, wanted);
    }

    #[test]
    fn differences_keep_their_sign() {
        assert_eq!(signed(-(300 << 20)), "-300.00 MiB");
        assert_eq!(signed(512), "512 B");
        assert_eq!([5 << 20, -512, 0].map(less_or_more), ["5.00 MiB less", "512 B more", "the same"]);
        assert_eq!(
            [5 << 20, -512, 0].map(spare_or_too_much),
            ["5.00 MiB to spare", "512 B too much", "0 B to spare"]
        );
        assert_eq!(signed(-i128::from(u64::MAX)), "-16384.00 PiB");
    }
}
