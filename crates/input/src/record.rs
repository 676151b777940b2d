//! A state of the seed's form as nearly every program writes it: flat, without escapes, with known fields. Read in one
//! walk over the bytes.
//!
//! This knows no errors either: whatever looks different is left to serde_json, which reads the same record or says no.

use peakledger_core::document::{StateRecord, Text};
use peakledger_core::{Category, Device};

/// The state at the start of the text and the bytes that it takes, if it is one of the usual kind.
pub(crate) fn usual(text: &str) -> Option<(StateRecord<'_>, usize)> {
    let mut walk = Walk { text, at: 0 };
    let (mut name, mut category, mut device, mut persistent) = (None, None, None, None);
    let (mut size_mb, mut size_bytes, mut start_phase, mut end_phase) = (None, None, None, None);
    walk.take(b'{')?;
    loop {
        let key = walk.string()?;
        walk.take(b':')?;
        match key {
            "name" => once(&mut name, walk.string()?)?,
            "category" => once(&mut category, Category::named(walk.string()?)?)?,
            "device" => {
                once(&mut device, Device::named(walk.string()?)?)?;
            }
            "start_phase" => once(&mut start_phase, walk.string()?)?,
            "end_phase" => once(&mut end_phase, walk.string()?)?,
            "size_mb" => once(&mut size_mb, walk.number()?.parse().ok()?)?,
            "size_bytes" => once(&mut size_bytes, walk.number()?.parse().ok()?)?,
            "persistent" => once(&mut persistent, walk.boolean()?)?,
            _ => return None,
        }
        if walk.take(b',').is_none() {
            break;
        }
    }
    walk.take(b'}')?;
    let record = StateRecord {
        name: Text::from(name?),
        category: category?,
        detail: None,
        size_mb,
        size_bytes,
        start_phase: start_phase.map(Text::from),
        end_phase: end_phase.map(Text::from),
        device,
        persistent: persistent?,
        residencies: Vec::new(),
    };
    Some((record, walk.at))
}

fn once<T>(field: &mut Option<T>, value: T) -> Option<()> {
    field.replace(value).is_none().then_some(())
}

struct Walk<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Walk<'a> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn space(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.peek() {
            self.at += 1;
        }
    }

    /// Passes this byte, and the space before it.
    fn take(&mut self, byte: u8) -> Option<()> {
        self.space();
        (self.peek() == Some(byte)).then(|| self.at += 1)
    }

    /// A string without escapes.
    fn string(&mut self) -> Option<&'a str> {
        self.take(b'"')?;
        let rest = self.text.as_bytes().get(self.at..)?;
        let length = plain_length(rest);
        let text = self.text.get(self.at..self.at + length)?;
        self.at += length;
        (self.peek() == Some(b'"')).then(|| self.at += 1)?;
        Some(text)
    }

    /// A number that is not negative and has no exponent: digits, no zero before others, perhaps a point and more digits.
    fn number(&mut self) -> Option<&'a str> {
        self.space();
        let from = self.at;
        let whole = self.digits()?;
        if whole > 1 && self.text.as_bytes().get(from) == Some(&b'0') {
            return None;
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        let next = self.peek()?;
        let ends = matches!(next, b',' | b'}' | b' ' | b'\n' | b'\r' | b'\t');
        ends.then(|| self.text.get(from..self.at)).flatten()
    }

    fn digits(&mut self) -> Option<usize> {
        let rest = self.text.as_bytes().get(self.at..)?;
        let length = rest.iter().take_while(|b| b.is_ascii_digit()).count();
        self.at += length;
        (length > 0).then_some(length)
    }

    fn boolean(&mut self) -> Option<bool> {
        self.space();
        let rest = self.text.get(self.at..)?;
        let (value, length) = match (rest.starts_with("true"), rest.starts_with("false")) {
            (true, _) => (true, 4),
            (_, true) => (false, 5),
            _ => return None,
        };
        self.at += length;
        Some(value)
    }
}

/// How many bytes come before the first quote, backslash or control character: eight at a time, by the usual trick that
/// a byte of zero borrows from its neighbour when one is taken from it.
fn plain_length(bytes: &[u8]) -> usize {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let below = |word: u64, limit: u8| word.wrapping_sub(ONES * u64::from(limit)) & !word;
    let is = |word: u64, byte: u8| below(word ^ (ONES * u64::from(byte)), 1);
    let (words, rest) = bytes.as_chunks::<8>();
    for (index, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let ends = (is(word, b'"') | is(word, b'\\') | below(word, 0x20)) & (ONES << 7);
        if ends != 0 {
            return index * 8 + ends.trailing_zeros() as usize / 8;
        }
    }
    let plain = rest.iter().take_while(|b| !matches!(b, b'"' | b'\\' | 0..0x20)).count();
    bytes.len() - rest.len() + plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_end_where_they_end() {
        for length in 0..20 {
            for end in ["\"", "\\", "\n", "\u{1f}"] {
                let text = format!("{}{end}\"\\", "é".repeat(length));
                assert_eq!(plain_length(text.as_bytes()), 2 * length);
            }
            assert_eq!(plain_length(&vec![0x7f; length]), length, "no end is no end");
        }
    }

    /// What serde_json makes of the text must be what is made of it here, where anything is.
    fn agree(text: &str) -> bool {
        let mut values = serde_json::Deserializer::from_str(text).into_iter::<StateRecord<'_>>();
        let careful = values.next().map(|record| record.map(|record| format!("{record:?}")));
        match usual(text) {
            None => false,
            Some((record, length)) => {
                assert_eq!(careful.unwrap().unwrap(), format!("{record:?}"), "{text}");
                assert_eq!(length, values.byte_offset(), "{text}");
                true
            }
        }
    }

    const STATE: &str = r#"{"name": "层.a", "category": "gradient", "size_mb": 0.1, "start_phase": "load", "end_phase": "loss", "device": "cpu", "persistent": true}"#;

    #[test]
    fn the_usual_is_read_as_serde_reads_it() {
        assert!(agree(STATE));
        assert!(agree(&STATE.replace(' ', "")));
        assert!(agree(&STATE.replace(' ', "\n\t")));
        assert!(agree(&STATE.replace("\"size_mb\": 0.1", "\"size_bytes\": 18446744073709551615")));
        for size in [
            "0",
            "3",
            "0.30000000000000004",
            "15.866666793823242",
            "17592186044415.99999",
            "9007199254740993",
        ] {
            assert!(agree(&STATE.replace("0.1", size)), "{size}");
        }
    }

    #[test]
    fn the_unusual_is_left_alone() {
        for (from, to) in [
            ("0.1", "-0.1"),
            ("0.1", "01"),
            ("0.1", "1."),
            ("0.1", ".1"),
            ("0.1", "1e3"),
            ("0.1", "NaN"),
            ("0.1", "\"1\""),
            ("0.1", "1_0"),
            ("层.a", "a\\n"),
            ("层.a", "a\u{1}"),
            ("gradient", "gradients"),
            ("cpu", "tpu"),
            ("true", "1"),
            ("true", "truer"),
            ("\"name\"", "\"nam\""),
            ("\"device\"", "\"name\""),
            ("\"category\": \"gradient\", ", ""),
            ("}", ",}"),
            ("}", ""),
            (", ", " "),
        ] {
            assert!(!agree(&STATE.replacen(from, to, 1)), "{from} {to}");
        }
    }

    #[test]
    fn no_cut_or_changed_byte_is_read_otherwise() {
        for at in (0..STATE.len()).filter(|at| STATE.is_char_boundary(*at)) {
            assert!(!agree(&STATE[..at]));
            for with in ["\"", "\\", "{", "}", ",", ":", "0", "9", ".", "e", "-", " ", "\u{7f}", "é"] {
                let next =
                    STATE.char_indices().nth(1 + STATE[..at].chars().count()).map_or(STATE.len(), |(n, _)| n);
                agree(&format!("{}{with}{}", &STATE[..at], &STATE[next..]));
            }
        }
    }
}
