//! Values of any kind in events of a trace: a wrong one is told of, and never stops the reading.

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::borrow::Cow;
use std::fmt;

/// A JSON value of which only what a trace may say is kept.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum Loose<'a> {
    /// Left out, `null`, or no kind of value that matters.
    #[default]
    None,
    Text(Cow<'a, str>),
    Whole(i128),
    Float(f64),
}

impl<'a> Loose<'a> {
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Loose::Text(text) => Some(text),
            _ => None,
        }
    }

    /// A whole number, also where it is written as `512.0`.
    pub(super) fn whole(&self) -> Option<i128> {
        match self {
            Loose::Whole(number) => Some(*number),
            Loose::Float(number) if number.fract() == 0.0 && number.abs() < 9_007_199_254_740_992.0 => {
                #[allow(clippy::cast_possible_truncation)] // whole and below 2^53: just seen
                Some(*number as i128)
            }
            _ => None,
        }
    }

    /// A number of microseconds as nanoseconds. Rounding keeps the order of times.
    pub(super) fn nanoseconds(&self) -> Option<i64> {
        match self {
            Loose::Whole(number) => i64::try_from(number.checked_mul(1000)?).ok(),
            Loose::Float(number) => {
                let nanoseconds = (number * 1000.0).round();
                #[allow(clippy::cast_possible_truncation)] // below 2^62 just after
                (nanoseconds.abs() < 4.6e18).then_some(nanoseconds as i64)
            }
            _ => None,
        }
    }
}

/// As the name of a thread, which is a number or a text.
impl fmt::Display for Loose<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Loose::None => Ok(()),
            Loose::Text(text) => f.write_str(text),
            Loose::Whole(number) => number.fmt(f),
            Loose::Float(number) => number.fmt(f),
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Loose<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(LooseVisitor)
    }
}

struct LooseVisitor;

impl<'de> Visitor<'de> for LooseVisitor {
    type Value = Loose<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Loose<'de>, E> {
        Ok(Loose::None)
    }

    fn visit_unit<E>(self) -> Result<Loose<'de>, E> {
        Ok(Loose::None)
    }

    fn visit_i64<E>(self, number: i64) -> Result<Loose<'de>, E> {
        Ok(Loose::Whole(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Loose<'de>, E> {
        Ok(Loose::Whole(number.into()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Loose<'de>, E> {
        Ok(Loose::Float(number))
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Loose<'de>, E> {
        Ok(Loose::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Loose<'de>, E> {
        Ok(Loose::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Loose<'de>, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Loose::None)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Loose<'de>, A::Error> {
        while object.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Loose::None)
    }
}
