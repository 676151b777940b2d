//! What two numbers have in common.

/// The largest number that divides both; of none and another, the other.
pub(crate) fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The least number that both divide; nothing past 64 bits.
pub(crate) fn lcm(a: u64, b: u64) -> Option<u64> {
    a.checked_div(gcd(a, b)).unwrap_or(0).checked_mul(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_divides_both_and_what_both_divide() {
        assert_eq!([gcd(12, 8), gcd(8, 12), gcd(7, 1), gcd(0, 5), gcd(5, 0)], [4, 4, 1, 5, 5]);
        assert_eq!([lcm(12, 8), lcm(3, 8), lcm(0, 5), lcm(0, 0)], [Some(24), Some(24), Some(0), Some(0)]);
        assert_eq!([lcm(u64::MAX, u64::MAX), lcm(u64::MAX, 2)], [Some(u64::MAX), None]);
    }
}
