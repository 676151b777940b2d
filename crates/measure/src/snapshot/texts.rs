//! The words of a snapshot, each kept once, as the bytes that the file has.

use hashbrown::{DefaultHashBuilder, HashTable};
use std::fmt::Write as _;
use std::hash::BuildHasher;

/// A word of the snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TextId(pub(crate) u32);

/// All words, one after another.
#[derive(Clone, Debug, Default)]
pub struct Texts {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    known: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl Texts {
    /// The word with these bytes, new or known; nothing where there are more words than the columns can count.
    pub(crate) fn intern(&mut self, text: &[u8]) -> Option<TextId> {
        let Texts { bytes, ends, known, hasher } = self;
        let hash = hasher.hash_one(text);
        if let Some(found) = known.find(hash, |id| slice(bytes, ends, *id) == text) {
            return Some(TextId(*found));
        }
        let id = u32::try_from(ends.len()).ok().filter(|id| *id < crate::pickle::MOST_ROWS)?;
        bytes.extend_from_slice(text);
        ends.push(bytes.len());
        known.insert_unique(hash, id, |id| hasher.hash_one(slice(bytes, ends, *id)));
        Some(TextId(id))
    }

    /// The bytes of a word.
    pub fn bytes(&self, id: TextId) -> &[u8] {
        slice(&self.bytes, &self.ends, id.0)
    }

    /// A word as text. What is not UTF-8, as `surrogatepass` file names are, is shown as `\xNN`: no two words look the
    /// same, and none is lost.
    pub fn text(&self, id: TextId) -> String {
        let mut shown = String::new();
        for part in self.bytes(id).utf8_chunks() {
            shown.push_str(part.valid());
            for byte in part.invalid() {
                let _infallible = write!(shown, "\\x{byte:02x}");
            }
        }
        shown
    }
}

fn slice<'a>(bytes: &'a [u8], ends: &[usize], id: u32) -> &'a [u8] {
    let at = id as usize;
    let start = at.checked_sub(1).and_then(|before| ends.get(before)).copied().unwrap_or(0);
    let end = ends.get(at).copied().unwrap_or(start);
    bytes.get(start..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_kept_once_and_what_is_no_text_is_shown() {
        let mut texts = Texts::default();
        let ids = [b"alloc".as_slice(), b"free", b"alloc", b"", b"caf\xe9 \xed\xa0\x80"]
            .map(|text| texts.intern(text).unwrap());
        assert_eq!(ids[0], ids[2]);
        assert_eq!(ids.map(|id| texts.text(id)), ["alloc", "free", "alloc", "", r"caf\xe9 \xed\xa0\x80"]);
    }
}
