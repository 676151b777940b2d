//! Words in sentences: names from files, made safe to print (a name must not move the cursor, colour the screen or turn the
//! text around), and things that are counted.

use std::borrow::Cow;

/// `1 sequence`, `2 sequences`: so many of what takes an s.
pub fn counted(number: u64, of: &str) -> String {
    format!("{number} {of}{}", if number == 1 { "" } else { "s" })
}

/// The text with control characters and the marks that change its direction written as escapes.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unprintable) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match is_unprintable(c) {
            true => safe.extend(c.escape_default()),
            false => safe.push(c),
        }
    }
    Cow::Owned(safe)
}

/// Whether a terminal would act on the character, or the text around it be turned.
pub fn is_unprintable(c: char) -> bool {
    let turns_text =
        matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}');
    c.is_control() || turns_text || c == '\u{feff}'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_what_would_act_on_a_terminal() {
        assert!(matches!(printable("层.0 / 激活 é"), Cow::Borrowed(_)));
        assert_eq!(printable("\u{1b}[31mred\u{7}"), r"\u{1b}[31mred\u{7}");
        assert_eq!(printable("a\nb\tc"), r"a\nb\tc");
        assert_eq!(printable("x\u{202e}gpj.exe"), r"x\u{202e}gpj.exe");
    }
}
