//! Finds the place of a JSON pointer in a text. Only runs once something is wrong, so it is simple rather than fast:
//! one walk over the bytes, no recursion, no tree. It trusts the text up to the place it looks for.

/// Line and column (in characters) of a byte offset, both from 1.
pub(crate) fn line_column(text: &[u8], offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line_start = before.iter().rposition(|b| *b == b'\n').map_or(0, |newline| newline + 1);
    let line = 1 + before.iter().filter(|b| **b == b'\n').count();
    let is_first_byte = |b: &&u8| (**b & 0xC0) != 0x80;
    let column = 1 + before.iter().skip(line_start).filter(is_first_byte).count();
    (line, column)
}

/// The byte offset of a line and a column in bytes, both from 1, as serde_json counts them.
pub(crate) fn offset(text: &str, line: usize, column: usize) -> usize {
    let ends = text.bytes().enumerate().filter(|(_, b)| *b == b'\n').map(|(at, _)| at + 1);
    let start = std::iter::once(0).chain(ends).nth(line.saturating_sub(1)).unwrap_or(text.len());
    (start + column.saturating_sub(1)).min(text.len())
}

/// Where the value at the pointer begins; of a key that appears several times, the last.
pub(crate) fn value(text: &str, pointer: &str) -> Option<usize> {
    let mut walk = Walk { text, at: 0 };
    walk.space();
    for word in words(pointer) {
        walk.enter(&word)?;
    }
    Some(walk.at)
}

/// Where the key with this name begins in the object at the pointer, each time it appears there.
pub(crate) fn keys(text: &str, pointer: &str, name: &str) -> Vec<usize> {
    let Some(at) = value(text, pointer) else { return Vec::new() };
    let mut found = Vec::new();
    let mut walk = Walk { text, at };
    if walk.take(b'{').is_some() {
        while let Some((key_at, key)) = walk.word() {
            if key == name {
                found.push(key_at);
            }
            if walk.take(b':').is_none() || walk.pass().is_none() || walk.take(b',').is_none() {
                break;
            }
        }
    }
    found
}

/// Where the colon belongs that the key at this place does not have.
pub(crate) fn missing_colon(text: &str, key: usize) -> Option<usize> {
    let mut walk = Walk { text, at: key };
    walk.string()?;
    let end = walk.at;
    match walk.take(b':') {
        Some(()) => None,
        None => Some(end),
    }
}

/// The words of a JSON pointer, unescaped.
pub(crate) fn words(pointer: &str) -> impl Iterator<Item = String> + '_ {
    pointer.split('/').skip(1).map(|word| word.replace("~1", "/").replace("~0", "~"))
}

/// Writes a word into a JSON pointer.
pub(crate) fn push_word(pointer: &mut String, word: &str) {
    pointer.push('/');
    pointer.push_str(&word.replace('~', "~0").replace('/', "~1"));
}

struct Walk<'a> {
    text: &'a str,
    at: usize,
}

impl Walk<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn space(&mut self) {
        while self.peek().is_some_and(|b| b.is_ascii_whitespace()) {
            self.at += 1;
        }
    }

    /// Passes this byte and the space after it.
    fn take(&mut self, byte: u8) -> Option<()> {
        self.space();
        if self.peek() != Some(byte) {
            return None;
        }
        self.at += 1;
        self.space();
        Some(())
    }

    /// Goes to the value that a word names in the list or object here.
    fn enter(&mut self, word: &str) -> Option<()> {
        if self.take(b'[').is_some() {
            for _ in 0..word.parse::<usize>().ok()? {
                self.pass()?;
                self.take(b',')?;
            }
            return Some(());
        }
        self.take(b'{')?;
        let mut last = None;
        while let Some((_, key)) = self.key() {
            if key == word {
                last = Some(self.at);
            }
            if self.pass().is_none() || self.take(b',').is_none() {
                break;
            }
        }
        self.at = last?;
        Some(())
    }

    /// Passes a key and its colon; gives the place of the key and its name.
    fn key(&mut self) -> Option<(usize, String)> {
        let key = self.word()?;
        self.take(b':')?;
        Some(key)
    }

    /// Passes a string; gives its place and what it says.
    fn word(&mut self) -> Option<(usize, String)> {
        self.space();
        let from = self.at;
        self.string()?;
        Some((from, serde_json::from_str(self.text.get(from..self.at)?).ok()?))
    }

    fn string(&mut self) -> Option<()> {
        if self.peek() != Some(b'"') {
            return None;
        }
        self.at += 1;
        loop {
            match self.peek()? {
                b'"' => break,
                b'\\' => self.at += 2,
                _ => self.at += 1,
            }
        }
        self.at += 1;
        Some(())
    }

    /// Passes one whole value.
    fn pass(&mut self) -> Option<()> {
        let mut depth = 0usize;
        loop {
            self.space();
            match self.peek()? {
                b'"' => self.string()?,
                b'[' | b'{' => {
                    depth += 1;
                    self.at += 1;
                }
                b']' | b'}' => {
                    depth = depth.checked_sub(1)?;
                    self.at += 1;
                }
                b',' | b':' => self.at += 1,
                _ => self.scalar(),
            }
            if depth == 0 {
                return Some(());
            }
        }
    }

    fn scalar(&mut self) {
        let ends = |b: u8| matches!(b, b',' | b']' | b'}' | b':' | b'"') || b.is_ascii_whitespace();
        while self.peek().is_some_and(|b| !ends(b)) {
            self.at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        "{\n \"a/b\": [1, {\"x\": \"]}\\\"\"}, [ ], -2.5e3 , \"é\"],\n \"z\": {\"k\": 1, \"\\u006b\": null}}";

    #[test]
    fn finds_values_and_keys() {
        let rest = |pointer: &str| TEXT.get(value(TEXT, pointer).unwrap()..).unwrap();
        assert!(rest("").starts_with('{'));
        assert!(rest("/a~1b").starts_with("[1"));
        assert!(rest("/a~1b/0").starts_with("1,"));
        assert!(rest("/a~1b/1/x").starts_with("\"]}"));
        assert!(rest("/a~1b/3").starts_with("-2.5"));
        assert!(rest("/z/k").starts_with("null"), "the last of two equal keys");
        assert_eq!(keys(TEXT, "/z", "k").len(), 2);
        for absent in ["/y", "/a~1b/7", "/a~1b/x", "/a~1b/0/x"] {
            assert_eq!(value(TEXT, absent), None, "{absent}");
        }
    }

    #[test]
    fn no_text_makes_it_hang_or_panic() {
        for end in (0..TEXT.len()).filter(|end| TEXT.is_char_boundary(*end)) {
            for pointer in ["", "/a~1b/1/x", "/z/k", "/a~1b/4"] {
                let _found = value(&TEXT[..end], pointer);
                let _keys = keys(&TEXT[..end], pointer, "k");
            }
        }
    }

    #[test]
    fn lines_and_columns_count_characters() {
        let at = value(TEXT, "/z").unwrap();
        assert_eq!(line_column(TEXT.as_bytes(), at), (3, 7));
        assert_eq!(line_column("é,x".as_bytes(), 3), (1, 3));
        assert_eq!(offset(TEXT, 3, 7), at);
        assert_eq!(offset(TEXT, 99, 1), TEXT.len());
    }
}
